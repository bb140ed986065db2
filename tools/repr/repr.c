/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr.c - ucm repr: the representations of blocks; see ucm(1).
 *
 * A block's file is read through the mount, or in the directories of tiers, and
 * what stands for its keys is saved as a block of a sibling space, which is made
 * for the first. The arithmetic is the library's; what that space holds is in
 * plan.c, the reading of blocks in make.c.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ucm/repr_load.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "hashing/tree.h"
#include "tools/lib/ids.h"
#include "tools/lib/report.h"
#include "tools/lib/store.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"
#include "tools/repr/repr.h"

#define SIDE_MAX ((size_t)1 << 30) /* bytes of centers, or of channels */

/* Representations that are saved at a time, and about the memory of them. */
#define BATCH 64u
#define BATCH_BYTES ((uint64_t)64 << 20)

static struct options {
	unsigned kind;	/* of kinds[] */
	unsigned dtype; /* of dtypes[] */
	const char *to, *centers, *channels;
	uint64_t bits, rope_dim, seed, merge_tokens;
	bool counts, norms;
} opt = { .kind = UCM_REPR_MINMAX, .merge_tokens = 4 };

static const uint32_t kinds[] = { UCM_REPR_MEAN, UCM_REPR_MAX, UCM_REPR_NORMED,
				  UCM_REPR_MINMAX, UCM_REPR_CODES,
				  UCM_REPR_CHANNELS };
static const uint32_t dtypes[] = { UCM_DTYPE_BFLOAT16, UCM_DTYPE_FLOAT16,
				   UCM_DTYPE_FLOAT32, UCM_DTYPE_INT8 };

static const struct ucm_arg args[] = {
	{ "mount", 'm', "MOUNT", ucm_arg_text, &ucm_store_opt.mount,
	  .help = "where the store is mounted, or its daemon's socket" },
	UCM_ARG_TIERS(ucm_store_opt),
	UCM_ARG_SPACE(ucm_store_opt),
	UCM_ARG_JSON(ucm_store_opt),
	{ "all", .to = &ucm_store_opt.all,
	  .help = "every block of the space" },
	{ "to", 0, "SPACE", ucm_arg_text, &opt.to,
	  .help = "the space of the representations (that of the blocks, with "
		  ".repr after its name; of the default one blocks.repr)" },
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
	struct ucm_client *client;
	struct ucm_ids ids;
	struct ucm_reprs *reprs; /* build: with the first block */
	struct {
		struct ucm_id ids[BATCH];
		uint8_t *layers; /* of each, one after the other */
		size_t num, room;
	} made; /* and not saved yet */
	const char *to; /* the space of the representations */
	struct ucm_repr_side centers, channels;
	struct ucm_repr_encoders *encoders;
	struct ucm_report report;
	uint64_t blocks, bytes, built, kept, equal;
	bool incomplete; /* not every block was looked for */
};

/* ---- the space of the representations ---- */

static int space_open(const struct ucm_repr_space *make,
		      struct ucm_reprs **out, struct ucm_error *error)
{
	const struct ucm_reprs_options options = {
		.size = sizeof(options),
		.mount = ucm_store_opt.mount,
		.blocks = ucm_store_opt.space,
		.space = opt.to,
		.like = make,
		.make = make != NULL,
	};

	return ucm_reprs_open(&options, out, error);
}

static void space_name(char name[UCM_REPR_NAME_MAX])
{
	struct ucm_error error;

	if (!opt.to && ucm_repr_space_name(ucm_store_opt.space, name, &error))
		ucm_tool_die(UCM_EXIT_FAILED, "%s", error.text);
	if (opt.to && !ucm_tree_space_valid(opt.to))
		ucm_tool_die(UCM_EXIT_FAILED, "space '%s': no name", opt.to);
	if (opt.to)
		snprintf(name, UCM_REPR_NAME_MAX, "%s", opt.to);
}

/* Slot i of slabs is representation i of those one after the other. */
static struct ucm_reprs_request
space_request(const struct job *job, const struct ucm_id *ids, size_t num,
	      uint8_t *layers, struct ucm_repr_slab slabs[UCM_REPR_LAYERS_MAX])
{
	const struct ucm_geometry *geometry =
		&ucm_reprs_space(job->reprs)->geometry;

	for (uint32_t i = 0; i < geometry->num_layers; i++)
		slabs[i] = (struct ucm_repr_slab){
			.base = layers + (size_t)i * geometry->k_bytes,
			.num_slots = num,
			.stride_bytes = ucm_block_payload_bytes(geometry),
		};
	return (struct ucm_reprs_request){
		.size = sizeof(struct ucm_reprs_request),
		.ids = ids,
		.num = num,
		.num_layers = geometry->num_layers,
		.slabs = slabs,
	};
}

/* ---- centers, and channels ---- */

static void side_load(const char *path, struct ucm_repr_side *out)
{
	char *bytes = NULL;
	int err = path ? ucm_tool_read(path, SIDE_MAX, &bytes, &out->len) : 0;

	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", path, strerror(-err));
	out->bytes = bytes;
}

static const struct ucm_repr_side *side_of(const struct job *job,
					   uint32_t kind)
{
	static const struct ucm_repr_side none;

	return kind == UCM_REPR_CODES	? &job->centers
	       : kind == UCM_REPR_CHANNELS ? &job->channels
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

/* Is it there already? */
static bool is_built(const struct job *job, const struct ucm_id *id)
{
	int32_t found;

	return !ucm_client_ids(job->client, UCM_SERVE_LOOKUP, job->to, 0, id, 1,
			       &found) &&
	       found > 0;
}

static void save_made(struct job *job)
{
	struct ucm_repr_slab slabs[UCM_REPR_LAYERS_MAX];
	struct ucm_reprs_request request;
	int32_t results[BATCH];
	size_t done;
	int err;

	if (!job->made.num)
		return;
	request = space_request(job, job->made.ids, job->made.num,
				job->made.layers, slabs);
	request.results = results;
	for (size_t i = 0; i < job->made.num; i++)
		results[i] = INT32_MIN;
	err = ucm_reprs_save(job->reprs, &request, &done, NULL);
	for (size_t i = 0; i < job->made.num; i++) {
		int result = results[i] == INT32_MIN ? err : results[i];

		if (result)
			ucm_report_text(&job->report, &job->made.ids[i], NULL,
					result, strerror(-result));
	}
	job->built += done;
	job->bytes += done * ucm_block_payload_bytes(
				     &ucm_reprs_space(job->reprs)->geometry);
	job->made.num = 0;
}

/* The space, and memory for some of its blocks. */
static int open_for_build(struct job *job, const struct ucm_repr_space *want,
			  struct ucm_error *error)
{
	uint64_t bytes = ucm_block_payload_bytes(&want->geometry);
	int err = job->reprs ? 0 : space_open(want, &job->reprs, error);

	if (err || job->made.layers)
		return err;
	job->made.room = (size_t)(BATCH_BYTES / bytes) + 1;
	if (job->made.room > BATCH)
		job->made.room = BATCH;
	job->made.layers = ucm_tool_alloc(job->made.room, bytes);
	return 0;
}

/* Directories may have blocks that no mount would take. */
static int check_fits(const struct job *job, const struct ucm_repr_space *want,
		      struct ucm_error *error)
{
	const struct ucm_repr_space *space = ucm_reprs_space(job->reprs);

	return memcmp(want, space, sizeof(*want))
		       ? ucm_error_set(error, -EINVAL, "the space of the "
				       "representations is not one for such a "
				       "block")
		       : 0;
}

static int build_block(struct job *job, int block, const struct stat *st,
		       const struct ucm_id *id, struct ucm_error *error)
{
	const struct ucm_repr_method method = method_wanted(job);
	uint64_t size = (uint64_t)st->st_size;
	struct ucm_repr_space want;
	struct ucm_block header;
	int err = ucm_repr_plan(block, size, id, &method, &header, &want, error)
		?: open_for_build(job, &want, error)
		?: check_fits(job, &want, error);

	if (err)
		return err;
	if (is_built(job, id)) {
		job->kept++;
		return 0;
	}
	err = ucm_repr_make(
		block, size, id, &method,
		job->made.layers + job->made.num * ucm_block_payload_bytes(
							   &want.geometry),
		error);
	if (err)
		return err;
	job->made.ids[job->made.num++] = *id;
	if (job->made.num == job->made.room)
		save_made(job);
	return 0;
}

/* ---- verify ---- */

/* The first layer in which two representations differ. */
static int compare_layers(const struct ucm_geometry *geometry,
			  const uint8_t *layers, const uint8_t *want,
			  struct ucm_error *error)
{
	for (uint32_t i = 0; i < geometry->num_layers; i++) {
		size_t at = (size_t)i * geometry->k_bytes;

		if (memcmp(layers + at, want + at, geometry->k_bytes) != 0)
			return ucm_error_set(error, -EBADMSG, "layer %" PRIu32
					     ": not what the block's keys "
					     "make", i);
	}
	return 0;
}

static int load_one(const struct job *job, const struct ucm_id *id,
		    uint8_t *layers, struct ucm_error *error)
{
	struct ucm_repr_slab slabs[UCM_REPR_LAYERS_MAX];
	const struct ucm_reprs_request request =
		space_request(job, id, 1, layers, slabs);
	struct ucm_error why;
	size_t done;
	int err = ucm_reprs_load(job->reprs, &request, &done, &why);
	/* the report names the block itself */
	bool named = err && !strncmp(why.text, ucm_hex(id).text, UCM_ID_HEX);

	return err ? ucm_error_set(error, err, "%s",
				   why.text + (named ? UCM_ID_HEX + 2 : 0))
		   : 0;
}

static int verify_block(struct job *job, int block, const struct stat *st,
			const struct ucm_id *id, struct ucm_error *error)
{
	const struct ucm_repr_space *space = ucm_reprs_space(job->reprs);
	uint64_t len = ucm_block_payload_bytes(&space->geometry);
	uint64_t size = (uint64_t)st->st_size;
	_cleanup_free_ uint8_t *layers = ucm_tool_alloc(2, len);
	struct ucm_repr_method method;
	struct ucm_repr_space planned;
	struct ucm_block header;
	int err = ucm_repr_method_of(space, side_of(job, space->spec.kind),
				     &method, error);

	method.encoders = &job->encoders;
	err = err ?: load_one(job, id, layers, error)
		?: ucm_repr_plan(block, size, id, &method, &header, &planned,
				 error)
		?: check_fits(job, &planned, error)
		?: ucm_repr_make(block, size, id, &method, layers + len, error)
		?: compare_layers(&space->geometry, layers, layers + len, error);
	job->bytes += err ? 0 : len;
	job->equal += !err;
	return err;
}

/* ---- blocks ---- */

static void do_block(struct job *job, const struct ucm_id *id)
{
	struct ucm_error error = { "" };
	struct stat st;
	_cleanup_fd_ int fd = ucm_store_block_open(
		job->client, ucm_store_opt.space, id, &st);
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

static void do_bucket(struct job *job, unsigned bucket)
{
	int err = ucm_ids_ask(job->client, ucm_store_opt.space, bucket,
			      &job->ids);

	if (err) {
		ucm_tool_complain("%s: %s", ucm_store_opt.mount,
				  strerror(-err));
		job->incomplete = true;
		return;
	}
	for (size_t i = 0; i < job->ids.num; i++)
		do_block(job, &job->ids.ids[i]);
}

static void do_all(struct job *job)
{
	for (unsigned bucket = 0; bucket < UCM_BUCKETS && !job->incomplete;
	     bucket++)
		do_bucket(job, bucket);
}

static void do_ids(struct job *job, const char *name)
{
	ucm_ids_read(name, &job->ids);
	for (size_t i = 0; i < job->ids.num; i++)
		do_block(job, &job->ids.ids[i]);
}

/* ---- stat ---- */

static int stat_space(const char *name)
{
	struct ucm_error error;
	struct ucm_reprs *reprs;
	int err = space_open(NULL, &reprs, &error);

	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s", error.text);
	if (ucm_store_opt.json)
		err = ucm_json_print(
			ucm_repr_json(name, ucm_reprs_space(reprs)), 0);
	else
		ucm_repr_print(name, ucm_reprs_space(reprs));
	ucm_reprs_close(reprs);
	return err | ucm_tool_flush();
}

/* ---- the command ---- */

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
	struct ucm_error error;
	int err;

	ucm_report_init(&job->report, ucm_store_opt.json, stdout);
	job->client = ucm_store_connect(&ucm_store_opt);
	/* build knows what the space must hold with the first block */
	if (job->run == verify_block &&
	    space_open(NULL, &job->reprs, &error))
		ucm_tool_die(UCM_EXIT_FAILED, "%s", error.text);
	side_load(opt.centers, &job->centers);
	side_load(opt.channels, &job->channels);
	if (ucm_store_opt.all)
		do_all(job);
	else
		do_ids(job, argc ? argv[0] : "-");
	save_made(job);
	err = finish(job);
	ucm_report_fini(&job->report);
	ucm_client_close(job->client);
	ucm_ids_fini(&job->ids);
	ucm_repr_encoders_free(job->encoders);
	free(job->made.layers);
	free(job->centers.bytes);
	free(job->channels.bytes);
	ucm_reprs_close(job->reprs);
	return err ? UCM_EXIT_FAILED : 0;
}

static int check_options(int argc, char **argv)
{
	ucm_store_options_take(argc, argv);
	if (!ucm_store_opt.mount)
		ucm_tool_usage("no --mount or --tiers");
	return ucm_args_limit(argc, argv, !ucm_store_opt.all);
}

static int run(int argc, char **argv)
{
	struct job job = { 0 };
	const char *action = argc ? argv[0] : "";
	char name[UCM_REPR_NAME_MAX];
	int status;

	if (!strcmp(action, "build"))
		job.run = build_block;
	else if (!strcmp(action, "verify"))
		job.run = verify_block;
	else if (strcmp(action, "stat") != 0)
		ucm_tool_usage("'%s': must be build, stat or verify", action);
	status = check_options(argc - 1, argv + 1);
	if (status >= 0)
		return status;
	space_name(name);
	job.to = name;
	return job.run ? run_job(&job, argc - 1, argv + 1) : stat_space(name);
}

const struct ucm_command ucm_repr_command = {
	.name = "repr",
	.does = "make and check representations of blocks",
	.operands = "build [IDS | --all]\n"
		    "verify [IDS | --all]\n"
		    "stat",
	.about = "Make what stands for the keys of blocks, for programs that "
		 "select blocks by them (ucm-repr(5)): of the blocks that IDS "
		 "or standard input lists, or of all of a space, into its "
		 "sibling; compare what is there with the blocks; or show "
		 "what the sibling holds.",
	.args = args,
	.end = "Exit status 1: a block is absent or damaged, or it has no "
	       "representation.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
