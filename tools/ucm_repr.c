/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_repr.c - ucm sparse repr: the representations of blocks; see ucm(1).
 *
 * A block's file is read through the mount, or in the directories of tiers, and
 * what stands for its keys is written beside it, or below another folder. A file
 * gets its name when it is whole. The arithmetic is the library's; what a file is
 * to say is in ucm_repr_plan.c, the reading of blocks in ucm_repr_make.c.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/osfile.h"
#include "hashing/tree.h"
#include "tools/ucm_ids.h"
#include "tools/ucm_report.h"
#include "tools/ucm_repr.h"
#include "tools/ucm_store.h"
#include "tools/ucm_text.h"
#include "tools/ucm_tool.h"

#define STAT_MAX ((size_t)1 << 32) /* bytes of a file that is shown */

#define SIDE_MAX ((size_t)1 << 30) /* bytes of centers, or of channels */

static struct options {
	unsigned kind;	/* of kinds[] */
	unsigned dtype; /* of dtypes[] */
	const char *to, *centers, *channels;
	uint64_t bits, rope_dim, seed, merge_tokens;
	bool counts, norms;
} opt = { .kind = UCM_REPR_MINMAX, .merge_tokens = 4 };

static const uint32_t kinds[] = { UCM_REPR_MEAN, UCM_REPR_MAX, UCM_REPR_NORMED,
				  UCM_REPR_MINMAX, UCM_REPR_FILE_CODES,
				  UCM_REPR_FILE_CHANNELS };
static const uint32_t dtypes[] = { UCM_DTYPE_BFLOAT16, UCM_DTYPE_FLOAT16,
				   UCM_DTYPE_FLOAT32, UCM_DTYPE_INT8 };

static const struct ucm_arg args[] = {
	{ "mount", 'm', "MOUNT", ucm_arg_text, &ucm_store_opt.mount,
	  .help = "where the store is mounted" },
	{ "tiers", 0, "SOURCE", ucm_arg_text, &ucm_store_opt.tiers,
	  .help = "instead of a mount: the directories of its tiers, written "
		  "as in ucmfs(8)" },
	UCM_ARG_SPACE(ucm_store_opt),
	UCM_ARG_JSON(ucm_store_opt),
	{ "all", .to = &ucm_store_opt.all,
	  .help = "every block of the space" },
	{ "to", 0, "DIRECTORY", ucm_arg_text, &opt.to,
	  .help = "where the files are: DIRECTORY/3f/3f9a....repr (in the "
		  "mount, beside the blocks)" },
	/* in the order of kinds[] */
	{ "kind", 0, "mean|max|normed|minmax|codes|channels", ucm_arg_choice,
	  &opt.kind, .help = "build: what stands for a block (minmax)" },
	/* in the order of dtypes[] */
	{ "dtype", 0, "bfloat16|float16|float32|int8", ucm_arg_choice,
	  &opt.dtype,
	  .help = "build: the type that is stored (bfloat16); codes have none" },
	{ "bits", 0, "N", ucm_arg_number, &opt.bits,
	  .help = "codes: of a token, a multiple of 8 (as many as channels)",
	  .min = 8, .max = UCM_CODE_BITS_MAX },
	{ "rope-dim", 0, "N", ucm_arg_number, &opt.rope_dim,
	  .help = "codes: the last channels, encoded apart (MLA); their bits "
		  "come on top", .min = 0, .max = UCM_REPR_HEAD_DIM_MAX },
	{ "seed", 0, "N", ucm_arg_number, &opt.seed,
	  .help = "codes: of the random directions (0)" },
	{ "counts", .to = &opt.counts,
	  .help = "codes: how many tokens have each bit, in their place" },
	{ "norms", .to = &opt.norms,
	  .help = "codes: with each what an estimate scales it by" },
	{ "centers", 0, "FILE", ucm_arg_text, &opt.centers,
	  .help = "codes: float32 numbers that are subtracted from keys, for "
		  "each layer, head and channel" },
	{ "merge-tokens", 0, "N", ucm_arg_number, &opt.merge_tokens,
	  .help = "channels: tokens of a group (4)", .min = 1,
	  .max = UCM_REPR_BLOCK_SIZE_MAX },
	{ "channels", 0, "FILE", ucm_arg_text, &opt.channels,
	  .help = "channels: 16-bit numbers of those that are kept, for each "
		  "layer and head (all)" },
	{ 0 },
};

struct job {
	int (*run)(struct job *job, int block, const struct stat *st,
		   const struct ucm_id *id, struct ucm_error *error);
	struct ucm_store_dirs dirs;
	struct ucm_ids ids;
	int to; /* the directory of the files */
	struct ucm_repr_side centers, channels;
	struct ucm_repr_encoders *encoders;
	struct ucm_report report;
	uint64_t blocks, bytes, built, kept, equal;
	bool incomplete; /* not every block was looked for */
};

/* ---- files ---- */

/* A path below the directory, in its bucket. */
static void file_path(const struct ucm_id *id, const char *ending,
		      char path[UCM_TREE_PATH_MAX])
{
	char bucket[3], name[UCM_TREE_REPR_LEN + 1];

	ucm_tree_bucket_name(ucm_tree_bucket(id), bucket);
	ucm_tree_repr_name(id, name);
	snprintf(path, UCM_TREE_PATH_MAX, "%s/%s%s", bucket, name, ending);
}

/* All of a file; to free. The error says why not. */
static int file_load(int dirfd, const char *path, uint8_t **bytes,
		     uint64_t *len, struct ucm_error *error)
{
	_cleanup_fd_ int fd = -1;
	_cleanup_free_ uint8_t *all = NULL;
	struct stat st;
	ssize_t got;

	fd = ucm_os_open_regular(dirfd, path, O_RDONLY, &st);
	if (fd == -ENOENT)
		return ucm_error_set(error, fd, "absent");
	if (fd < 0)
		return ucm_error_set(error, fd, "%s", strerror(-fd));
	all = malloc(st.st_size ? (size_t)st.st_size : 1);
	if (!all)
		return ucm_error_set(error, -ENOMEM, "%s", strerror(ENOMEM));
	got = ucm_os_read_at(fd, all, (size_t)st.st_size, 0);
	if (got < 0)
		return ucm_error_set(error, (int)got, "%s",
				     strerror((int)-got));
	*bytes = all;
	*len = (uint64_t)got;
	all = NULL;
	return 0;
}

static int file_write(int dirfd, const char *path,
		      const struct ucm_repr_made *made)
{
	_cleanup_fd_ int fd = ucm_os_open(
		dirfd, path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	int err = fd < 0 ? fd : ucm_os_write_at(fd, made->bytes, made->len, 0);

	return err ? err : ucm_os_flush(fd);
}

/* Under a name of its own first: nobody sees half a file. */
static int file_store(struct job *job, const struct ucm_id *id,
		      const struct ucm_repr_made *made)
{
	char path[UCM_TREE_PATH_MAX], temp[UCM_TREE_PATH_MAX], bucket[3];
	int err;

	ucm_tree_bucket_name(ucm_tree_bucket(id), bucket);
	err = opt.to ? ucm_os_mkdir(job->to, bucket, 0777) : 0;
	if (err && err != -EEXIST)
		return err;
	file_path(id, "", path);
	file_path(id, ".tmp", temp);
	err = file_write(job->to, temp, made);
	if (!err)
		err = ucm_os_rename(job->to, temp, job->to, path);
	if (err)
		ucm_os_unlink(job->to, temp);
	return err;
}

/* ---- centers, and channels ---- */

static int side_load(const char *path, struct ucm_repr_side *out)
{
	char *bytes;
	int err = path ? ucm_tool_read(path, SIDE_MAX, &bytes, &out->len) : 0;

	if (err)
		return ucm_tool_complain("%s: %s", path, strerror(-err));
	if (path)
		out->bytes = bytes;
	return 0;
}

static const struct ucm_repr_side *side_of(const struct job *job,
					   uint32_t kind)
{
	static const struct ucm_repr_side none;

	return kind == UCM_REPR_FILE_CODES	? &job->centers
	       : kind == UCM_REPR_FILE_CHANNELS ? &job->channels
						: &none;
}

/* ---- build ---- */

static struct ucm_repr_method method_wanted(struct job *job)
{
	uint32_t kind = kinds[opt.kind];

	return (struct ucm_repr_method){
		.kind = kind,
		.dtype = dtypes[opt.dtype],
		.codes = {
			.form = opt.counts ? UCM_CODE_COUNTS : UCM_CODE_TOKENS,
			.bits = (uint32_t)opt.bits,
			.rope_dim = (uint32_t)opt.rope_dim,
			.norms = opt.norms,
			.seed = opt.seed,
		},
		.star = { .merge_tokens = (uint32_t)opt.merge_tokens },
		.side = *side_of(job, kind),
		.encoders = &job->encoders,
	};
}

/* Is there a file already that says what is wanted, and is whole? */
static bool is_built(struct job *job, const struct ucm_id *id,
		     const struct ucm_repr_file *want)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	struct ucm_repr_file file;
	char path[UCM_TREE_PATH_MAX];
	uint64_t len;

	file_path(id, "", path);
	return !file_load(job->to, path, &bytes, &len, NULL) &&
	       !ucm_repr_file_verify(bytes, len, &file, NULL) &&
	       !memcmp(&file, want, sizeof(file));
}

static int build_block(struct job *job, int block, const struct stat *st,
		       const struct ucm_id *id, struct ucm_error *error)
{
	const struct ucm_repr_method method = method_wanted(job);
	uint64_t size = (uint64_t)st->st_size;
	struct ucm_repr_made made;
	struct ucm_repr_file want;
	struct ucm_block header;
	int err = ucm_repr_plan(block, size, id, &method, &header, &want,
				error);

	if (err)
		return err;
	if (is_built(job, id, &want)) {
		job->kept++;
		return 0;
	}
	err = ucm_repr_make(block, size, id, &method, &made, error);
	if (err)
		return err;
	err = file_store(job, id, &made);
	if (err)
		ucm_error_set(error, err, "%s", strerror(-err));
	else
		job->bytes += made.len;
	free(made.bytes);
	job->built += !err;
	return err;
}

/* ---- verify ---- */

/* The first layer in which two files of one header differ. */
static int compare_layers(const struct ucm_repr_file *file,
			  const uint8_t *bytes, const uint8_t *want,
			  struct ucm_error *error)
{
	for (uint32_t i = 0; i < file->geometry.num_layers; i++) {
		uint64_t at = ucm_repr_file_layer_offset(file, i);

		if (memcmp(bytes + at, want + at, file->layer_bytes) != 0)
			return ucm_error_set(error, -EBADMSG, "layer %" PRIu32
					     ": not what the block's keys "
					     "make", i);
	}
	return 0;
}

static int verify_block(struct job *job, int block, const struct stat *st,
			const struct ucm_id *id, struct ucm_error *error)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	struct ucm_repr_method method;
	struct ucm_repr_made made;
	struct ucm_repr_file file;
	char path[UCM_TREE_PATH_MAX];
	uint64_t len;
	int err;

	file_path(id, "", path);
	err = file_load(job->to, path, &bytes, &len, error);
	if (err)
		return err;
	/* what is no such file, or another block's, is damaged, too */
	if (ucm_repr_file_verify(bytes, len, &file, error))
		return -EBADMSG;
	err = ucm_repr_method_of(&file, side_of(job, file.spec.kind), &method,
				 error);
	if (err)
		return err;
	method.encoders = &job->encoders;
	err = ucm_repr_make(block, (uint64_t)st->st_size, id, &method, &made,
			    error);
	if (err)
		return err;
	if (memcmp(&made.file, &file, sizeof(file)) != 0)
		err = ucm_error_set(error, -EBADMSG,
				    "its header is not of this block");
	else
		err = compare_layers(&file, bytes, made.bytes, error);
	free(made.bytes);
	job->bytes += err ? 0 : len;
	job->equal += !err;
	return err;
}

/* ---- blocks ---- */

/* A block's file in the first directory that has it: a descriptor. */
static int block_open(const struct job *job, const struct ucm_id *id,
		      struct stat *st)
{
	char path[UCM_TREE_PATH_MAX];
	int fd = -ENOENT;

	ucm_tree_block_path(job->dirs.folder, id, path);
	for (unsigned i = 0; fd == -ENOENT && i < job->dirs.num; i++)
		fd = ucm_os_open_regular(job->dirs.fds[i], path, O_RDONLY, st);
	return fd;
}

static void do_block(struct job *job, const struct ucm_id *id)
{
	struct ucm_error error = { "" };
	struct stat st;
	_cleanup_fd_ int fd = block_open(job, id, &st);
	int err = fd < 0 ? fd : 0;

	/* of all that are there, one that goes meanwhile is none */
	if (fd == -ENOENT && ucm_store_opt.all)
		return;
	job->blocks++;
	if (fd == -ENOENT)
		ucm_error_set(&error, fd, "no such block");
	else if (fd < 0)
		ucm_error_set(&error, fd, "%s", strerror(-fd));
	else
		err = job->run(job, fd, &st, id, &error);
	if (err)
		ucm_report_text(&job->report, id, NULL, err, error.text);
	ucm_progress_tell(&job->report.progress, job->blocks,
			  ucm_store_opt.all ? 0 : job->ids.num, job->bytes);
}

static int add_id(void *arg, unsigned dir, const struct ucm_id *id)
{
	struct job *job = arg;
	char path[UCM_TREE_PATH_MAX];
	struct stat st;

	ucm_tree_block_path(job->dirs.folder, id, path);
	/* once, where several directories have it */
	for (unsigned i = 0; i < dir; i++) {
		if (!ucm_os_stat(job->dirs.fds[i], path, &st))
			return 0;
	}
	return ucm_ids_add(&job->ids, id);
}

static int do_bucket(struct job *job, unsigned dir, unsigned bucket)
{
	char path[UCM_TREE_PATH_MAX];
	int err;

	job->ids.num = 0;
	err = ucm_store_each(&job->dirs, dir, bucket, add_id, job);
	if (err) {
		ucm_tree_bucket_path(job->dirs.folder, bucket, path);
		ucm_tool_complain("%s/%s: %s", job->dirs.paths[dir], path,
				  strerror(-err));
		job->incomplete = true;
	}
	for (size_t i = 0; i < job->ids.num; i++)
		do_block(job, &job->ids.ids[i]);
	return err;
}

static int do_all(struct job *job)
{
	for (unsigned dir = 0; dir < job->dirs.num; dir++) {
		for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++)
			do_bucket(job, dir, bucket);
	}
	return 0;
}

static int do_ids(struct job *job, const char *name)
{
	int err = ucm_ids_read(name, &job->ids);

	for (size_t i = 0; !err && i < job->ids.num; i++)
		do_block(job, &job->ids.ids[i]);
	return err;
}

/* ---- stat ---- */

static int stat_file(const char *path, json_t *rows)
{
	_cleanup_free_ char *bytes = NULL;
	struct ucm_repr_file file;
	struct ucm_error error;
	size_t len;
	int err = ucm_tool_read(path, STAT_MAX, &bytes, &len);

	if (err)
		return ucm_tool_complain("%s: %s", path, strerror(-err));
	if (ucm_repr_file_verify(bytes, len, &file, &error))
		return ucm_tool_complain("%s: %s", path, error.text);
	if (rows)
		json_array_append_new(rows, ucm_repr_json(path, &file));
	else
		ucm_repr_print(path, &file);
	return 0;
}

static int stat_files(int argc, char **argv)
{
	json_t *rows = ucm_store_opt.json ? json_array() : NULL;
	int status = 0;

	for (int i = 0; i < argc; i++) {
		if (stat_file(argv[i], rows))
			status = UCM_EXIT_FAILED;
	}
	if (ucm_store_opt.json)
		return ucm_json_print(json_pack("{so}", "files", rows),
				      status);
	return ucm_tool_flush() | status;
}

/* ---- the command ---- */

static int open_target(struct job *job)
{
	_cleanup_free_ char *beside = NULL;
	const char *path = opt.to;

	if (!path && asprintf(&beside, "%s/%s", job->dirs.paths[0],
			      job->dirs.folder) < 0)
		return ucm_tool_complain("%s", strerror(ENOMEM));
	path = path ? path : beside;
	job->to = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return job->to < 0
		       ? ucm_tool_complain("%s: %s", path, strerror(errno))
		       : 0;
}

static int finish(struct job *job)
{
	const struct ucm_count counts[] = { { "built", job->built },
					    { "kept", job->kept },
					    { "equal", job->equal },
					    { NULL, 0 } };
	int err = ucm_report_end(&job->report, counts, job->blocks,
				 job->bytes);

	if (!err && (job->incomplete ||
		     job->blocks != job->built + job->kept + job->equal))
		err = -EIO;
	return err;
}

static int run_job(struct job *job, int argc, char **argv)
{
	int err = ucm_report_init(&job->report, ucm_store_opt.json, stdout);

	if (!err)
		err = ucm_store_dirs_open(&ucm_store_opt, &job->dirs);
	if (!err)
		err = open_target(job);
	if (!err)
		err = side_load(opt.centers, &job->centers);
	if (!err)
		err = side_load(opt.channels, &job->channels);
	if (!err)
		err = ucm_store_opt.all ? do_all(job)
					: do_ids(job, argc ? argv[0] : "-");
	if (!err)
		err = finish(job);
	ucm_report_fini(&job->report);
	ucm_store_dirs_close(&job->dirs);
	ucm_ids_fini(&job->ids);
	ucm_repr_encoders_free(job->encoders);
	free(job->centers.bytes);
	free(job->channels.bytes);
	if (job->to >= 0)
		close(job->to);
	return err ? UCM_EXIT_FAILED : 0;
}

static int check_options(int argc, char **argv)
{
	if (ucm_store_options_take(argc, argv))
		return UCM_EXIT_USAGE;
	if (!ucm_store_opt.mount && !ucm_store_opt.tiers)
		return ucm_tool_fail(UCM_EXIT_USAGE,
				     "no --mount or --tiers; try --help");
	if (!opt.to && !ucm_store_opt.mount)
		return ucm_tool_fail(UCM_EXIT_USAGE, "--tiers needs --to; try "
				     "--help");
	return ucm_args_limit(argc, argv, !ucm_store_opt.all);
}

static int run(int argc, char **argv)
{
	struct job job = { .to = -1 };
	const char *action = argc ? argv[0] : "";
	int status;

	if (!strcmp(action, "stat")) {
		if (argc < 2)
			return ucm_tool_fail(UCM_EXIT_USAGE,
					     "no FILE; try --help");
		return stat_files(argc - 1, argv + 1);
	}
	if (!strcmp(action, "build"))
		job.run = build_block;
	else if (!strcmp(action, "verify"))
		job.run = verify_block;
	else
		return ucm_tool_fail(UCM_EXIT_USAGE, "'%s': must be build, "
				     "stat or verify; try --help", action);
	status = check_options(argc - 1, argv + 1);
	return status < 0 ? run_job(&job, argc - 1, argv + 1) : status;
}

const struct ucm_command ucm_repr_command = {
	.name = "sparse",
	.word = "repr",
	.does = "make and check representations of blocks",
	.operands = "build [IDS | --all]\n"
		    "verify [IDS | --all]\n"
		    "stat FILE...",
	.about = "Make files that stand for the keys of blocks, for programs "
		 "that select blocks by them (ucm-repr(5)): of the blocks that "
		 "IDS or standard input lists, or of all of a space; compare "
		 "such files with the blocks; or show what FILEs say.",
	.args = args,
	.end = "Exit status 1: a block is absent or damaged, or there is no "
	       "such file of it.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
