/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_quarantine.c - ucm quarantine: list, inspect, restore and purge what was
 * moved aside; see ucm(1).
 *
 * It reads the directories themselves: the daemon puts files there and never
 * looks at them again, so that nobody is in the way of anybody. Only a restored
 * file goes through the store, as a copy (ucm_quarantine_restore.c), and then
 * leaves the quarantine.
 */
#include <config.h>

#include "tools/ucm_quarantine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ucm/repr.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/osfile.h"
#include "common/parse.h"
#include "fs/block/verify.h"
#include "tools/ucm_args.h"
#include "tools/ucm_client.h"
#include "tools/ucm_ids.h"
#include "tools/ucm_text.h"
#include "tools/ucm_tool.h"

#define QUARANTINE UCM_TREE_OWN "/quarantine"

static struct options {
	struct ucm_common common;
	bool all, force;
	int64_t older_s; /* -1: not given */
	char **wanted; /* names and ids, of num_wanted files */
	unsigned num_wanted;
} opt = { .older_s = -1 };

/* ---- options ---- */

/* "90", "90s", "30m", "12h", "7d", "2w" */
static int parse_age(const struct ucm_arg *arg, char *value)
{
	static const struct {
		char unit;
		int64_t seconds;
	} units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 },
		      { 'd', 86400 }, { 'w', 604800 } };
	size_t len = strlen(value);
	int64_t factor = 1;
	uint64_t number;
	int err;

	for (size_t i = 0; len && i < sizeof(units) / sizeof(*units); i++) {
		if (value[len - 1] == units[i].unit) {
			factor = units[i].seconds;
			value[len - 1] = '\0';
			break;
		}
	}
	err = ucm_parse_range(value, 0, INT32_MAX, &number);
	if (!err)
		*(int64_t *)arg->to = (int64_t)number * factor;
	return err;
}

static const struct ucm_arg args[] = {
	UCM_ARG_JSON(opt.common),
	{ "all", 'a', .to = &opt.all, .help = "purge: all files" },
	{ "older", 0, "AGE", parse_age, &opt.older_s,
	  .help = "only those that have been there for so long: 90s, 30m, 12h, "
		  "7d, 2w" },
	{ "force", 0, .to = &opt.force,
	  .help = "restore: also a block without checksums, of whose bytes "
		  "nobody can say whether they are right" },
	{ 0 },
};

/* ---- which directories ---- */

static int add_dir(struct ucm_asides *asides, const char *path,
		   const char *mount)
{
	struct ucm_aside_dir *more =
		reallocarray(asides->dirs, asides->num_dirs + 1, sizeof(*more));
	_cleanup_free_ char *below = NULL;
	struct ucm_aside_dir *dir;

	if (more)
		asides->dirs = more;
	if (!more || asprintf(&below, "%s/" QUARANTINE, path) < 0)
		return ucm_tool_complain("no memory");
	dir = &more[asides->num_dirs];
	*dir = (struct ucm_aside_dir){ .path = strdup(path) };
	if (mount)
		dir->mount = strdup(mount);
	dir->fd = open(below, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir->fd < 0 && errno == ENOENT)
		ucm_tool_complain("%s: neither a mount nor a directory of "
				  "ucmfs", path);
	else if (dir->fd < 0)
		ucm_tool_complain("%s: %s", below, strerror(errno));
	if (dir->fd >= 0 && dir->path && !mount == !dir->mount) {
		asides->num_dirs++;
		return 0;
	}
	if (dir->fd >= 0)
		close(dir->fd);
	free(dir->path);
	free(dir->mount);
	return -EIO;
}

/* fn for each backing directory of a mount, until it returns what is not 0. */
static int each_directory(const char *mount,
			  int (*fn)(void *arg, const char *path,
				    const char *mount),
			  void *arg)
{
	json_t *stats = NULL, *tier, *directory;
	int err = ucm_client_stats(mount, &stats);
	size_t i, j;

	if (err == -EACCES)
		ucm_mount_complain(mount, "stats.json", err);
	json_array_foreach(json_object_get(stats, "tiers"), i, tier) {
		json_array_foreach(json_object_get(tier, "directories"), j,
				   directory) {
			if (!err)
				err = fn(arg,
					 json_string_value(json_object_get(
						 directory, "path")),
					 mount);
		}
	}
	json_decref(stats);
	return err;
}

static int add_each(void *arg, const char *path, const char *mount)
{
	return add_dir(arg, path, mount);
}

/* 0, or why there is no mount that answers: -ENOTCONN if its daemon is gone. */
static int look_for_mount(const char *path)
{
	_cleanup_free_ char *stats = NULL;
	struct stat st;

	if (asprintf(&stats, "%s/" UCM_TREE_STATS, path) < 0) {
		stats = NULL;
		return -ENOMEM;
	}
	return stat(stats, &st) ? -errno : 0;
}

struct search {
	struct stat wanted;
	char *mount; /* found */
};

static int compare_directory(void *arg, const char *path, const char *mount)
{
	struct search *search = arg;
	struct stat st;

	if (!stat(path, &st) && st.st_dev == search->wanted.st_dev &&
	    st.st_ino == search->wanted.st_ino)
		search->mount = strdup(mount);
	return search->mount != NULL;
}

/* The mount that serves a directory; NULL: none, or we cannot learn it. */
static char *find_mount(const char *path)
{
	struct search search = { .mount = NULL };
	struct ucm_mounts mounts;

	if (stat(path, &search.wanted) || ucm_mounts_list(&mounts))
		return NULL;
	for (size_t i = 0; i < mounts.num && !search.mount; i++) {
		if (!look_for_mount(mounts.mounts[i].point))
			each_directory(mounts.mounts[i].point,
				       compare_directory, &search);
	}
	ucm_mounts_fini(&mounts);
	return search.mount;
}

static int add_place(struct ucm_asides *asides, const char *path, bool changes)
{
	_cleanup_free_ char *mount = NULL;
	int err = look_for_mount(path);

	if (!err || err == -ENOTCONN) /* which is reported */
		return each_directory(path, add_each, asides);
	if (changes) /* only then it matters */
		mount = find_mount(path);
	return add_dir(asides, path, mount);
}

/* ---- which files ---- */

/* After "SPACE@HASH": the dot before the time; or NULL. */
static const char *time_of(const char *end, bool *is_repr)
{
	size_t len = strlen(UCM_TREE_REPR_SUFFIX);

	*is_repr = !strncmp(end, UCM_TREE_REPR_SUFFIX, len);
	if (*is_repr)
		end += len;
	return *end == '.' ? end : NULL;
}

/* SPACE@HASH.TIME, or SPACE@HASH.repr.TIME; other names are somebody else's. */
static int parse_name(const char *name, struct ucm_aside *out)
{
	const char *at = strrchr(name, '@'), *dot = NULL;
	char hex[UCM_ID_HEX + 1];
	uint64_t ns;

	if (at && strlen(at) > UCM_ID_HEX + 1)
		dot = time_of(at + UCM_ID_HEX + 1, &out->is_repr);
	if (!dot || at - name > UCM_TREE_SPACE_MAX ||
	    ucm_parse_u64(dot + 1, &ns))
		return -EINVAL;
	snprintf(out->space, sizeof(out->space), "%.*s", (int)(at - name),
		 name);
	snprintf(hex, sizeof(hex), "%s", at + 1);
	if (*out->space && !ucm_tree_space_valid(out->space))
		return -EINVAL;
	out->since_s = (int64_t)(ns / 1000000000);
	return ucm_id_parse(hex, &out->id);
}

static bool is_wanted(const struct ucm_aside *aside, const char *name)
{
	char hex[UCM_ID_HEX + 1];

	if (opt.older_s >= 0 && time(NULL) - aside->since_s < opt.older_s)
		return false;
	ucm_id_format(&aside->id, hex);
	for (unsigned i = 0; i < opt.num_wanted; i++) {
		if (!strcmp(opt.wanted[i], name) || !strcmp(opt.wanted[i], hex))
			return true;
	}
	return !opt.num_wanted;
}

static int add_file(struct ucm_asides *asides, unsigned dir, const char *name)
{
	struct ucm_aside aside = { .dir = dir }, *more;
	struct stat st;

	if (parse_name(name, &aside) || !is_wanted(&aside, name) ||
	    fstatat(asides->dirs[dir].fd, name, &st, AT_SYMLINK_NOFOLLOW) ||
	    !S_ISREG(st.st_mode))
		return 0;
	aside.size = (uint64_t)st.st_size;
	aside.bytes = (uint64_t)st.st_blocks * 512;
	more = reallocarray(asides->files, asides->num + 1, sizeof(*more));
	if (more)
		asides->files = more;
	aside.name = more ? strdup(name) : NULL;
	if (!aside.name)
		return ucm_tool_complain("no memory");
	more[asides->num++] = aside;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct ucm_aside *x = a, *y = b;

	return x->dir != y->dir ? (x->dir < y->dir ? -1 : 1)
				: strcmp(x->name, y->name);
}

static int read_files(struct ucm_asides *asides)
{
	int err = 0;

	for (unsigned dir = 0; dir < asides->num_dirs && !err; dir++) {
		_cleanup_free_ char *names = NULL;

		err = ucm_os_list(asides->dirs[dir].fd, ".", &names);
		if (err < 0)
			return ucm_tool_complain("%s/" QUARANTINE ": %s",
						 asides->dirs[dir].path,
						 strerror(-err));
		err = 0;
		for (const char *name = names; *name && !err;
		     name += strlen(name) + 1)
			err = add_file(asides, dir, name);
	}
	if (asides->num)
		qsort(asides->files, asides->num, sizeof(*asides->files),
		      by_name);
	return err;
}

static void asides_fini(struct ucm_asides *asides)
{
	for (size_t i = 0; i < asides->num; i++)
		free(asides->files[i].name);
	for (unsigned i = 0; i < asides->num_dirs; i++) {
		close(asides->dirs[i].fd);
		free(asides->dirs[i].path);
		free(asides->dirs[i].mount);
	}
	free(asides->files);
	free(asides->dirs);
}

/* A name that nothing has was misspelt. */
static int check_wanted(const struct ucm_asides *asides)
{
	int missing = 0;

	for (unsigned i = 0; i < opt.num_wanted; i++) {
		bool found = false;

		for (size_t j = 0; j < asides->num && !found; j++) {
			char hex[UCM_ID_HEX + 1];

			ucm_id_format(&asides->files[j].id, hex);
			found = !strcmp(opt.wanted[i], asides->files[j].name) ||
				!strcmp(opt.wanted[i], hex);
		}
		if (!found)
			missing = ucm_tool_complain("%s: not in the quarantine",
						    opt.wanted[i]);
	}
	return missing;
}

/* ---- inspect ---- */

int ucm_aside_open(const struct ucm_asides *asides,
		   const struct ucm_aside *aside, struct stat *st)
{
	return ucm_os_open_regular(asides->dirs[aside->dir].fd, aside->name,
				   O_RDONLY, st);
}

static bool is_there(const struct ucm_aside_dir *dir,
		     const struct ucm_aside *aside)
{
	const char *root = dir->mount ? dir->mount : dir->path;
	char folder[UCM_TREE_FOLDER_MAX], below[UCM_TREE_PATH_MAX];
	_cleanup_free_ char *path = NULL;
	struct stat st;

	ucm_tree_folder(aside->space, folder);
	(aside->is_repr ? ucm_tree_repr_path : ucm_tree_block_path)(
		folder, &aside->id, below);
	if (asprintf(&path, "%s/%s", root, below) < 0) {
		path = NULL;
		return false;
	}
	return !lstat(path, &st);
}

static void inspect_repr(struct ucm_aside *aside, int fd)
{
	_cleanup_free_ void *bytes = NULL;
	struct ucm_repr_file file;
	size_t len;
	int err = ucm_aside_read(fd, &bytes, &len);

	if (err)
		ucm_error_set(&aside->error, err, "%s", strerror(-err));
	if (!err)
		err = ucm_repr_file_verify(bytes, len, &file, &aside->error);
	if (!err && memcmp(&file.id, &aside->id, sizeof(file.id)) != 0)
		err = ucm_error_set(&aside->error, -EINVAL,
				    "block_hash is not its name's");
	aside->outcome.err = err;
}

static void inspect_block(struct ucm_aside *aside, int fd,
			  const struct stat *st)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block = { .flags = 0 };
	struct ucm_bytes bytes = ucm_bytes_of_fd(fd);

	aside->outcome.err = ucm_verify_whole(&bytes, (uint64_t)st->st_size,
					      &aside->id, &block, &fault,
					      &aside->outcome.plane);
	if (!aside->outcome.err && fault) {
		aside->outcome.err = -EBADMSG;
		aside->outcome.fault = (uint16_t)fault;
	}
	aside->unchecked = !aside->outcome.err &&
			   !(block.flags & UCM_BLOCK_HAS_CRC);
}

void ucm_aside_inspect(const struct ucm_asides *asides,
		       struct ucm_aside *aside)
{
	struct stat st;
	_cleanup_fd_ int fd = ucm_aside_open(asides, aside, &st);

	aside->outcome = (struct ucm_outcome){ .err = fd < 0 ? fd : 0 };
	aside->there = is_there(&asides->dirs[aside->dir], aside);
	if (fd >= 0 && aside->is_repr)
		inspect_repr(aside, fd);
	else if (fd >= 0)
		inspect_block(aside, fd, &st);
}

static void verdict(const struct ucm_aside *aside, char *text, size_t size)
{
	if (aside->outcome.err && *aside->error.text)
		snprintf(text, size, "%.150s", aside->error.text);
	else if (aside->outcome.err)
		ucm_outcome_text(&aside->outcome, text, size);
	else
		snprintf(text, size, "%s",
			 aside->unchecked ? "no checksums: cannot be checked"
					  : "intact");
}

/* ---- restore and purge ---- */

static void leave(struct ucm_asides *asides, struct ucm_aside *aside,
		  const char *done)
{
	if (unlinkat(asides->dirs[aside->dir].fd, aside->name, 0))
		aside->failed = strerrordesc_np(errno);
	else
		aside->done = done;
}

static const char *why_not(const struct ucm_aside *aside, int err)
{
	switch (err) {
	case -EEXIST: return aside->is_repr ? "its block has such a file"
					    : "such a block is there";
	case -EINVAL: return aside->is_repr
				     ? "not taken: it is not that block's; the "
				       "log says why"
				     : "not taken: it does not fit its space; "
				       "the log says why";
	case -ENOENT: return aside->is_repr ? "its block is not there"
					    : "its space is gone";
	default: return strerrordesc_np(-err);
	}
}

static void restore(struct ucm_asides *asides, struct ucm_aside *aside,
		    struct ucm_restorer *restorer)
{
	struct stat st;
	_cleanup_fd_ int fd = -1;
	int err;

	ucm_aside_inspect(asides, aside);
	if (aside->outcome.err) {
		aside->failed = "refused";
		return;
	}
	if (aside->unchecked && !opt.force) {
		aside->failed = "refused; see --force";
		return;
	}
	fd = ucm_aside_open(asides, aside, &st);
	err = fd < 0 ? fd : ucm_restorer_commit(restorer, aside, fd);
	if (err)
		aside->failed = why_not(aside, err);
	else
		leave(asides, aside, "restored");
}

static int inspect_all(struct ucm_asides *asides, struct ucm_progress *progress)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < asides->num; i++) {
		ucm_aside_inspect(asides, &asides->files[i]);
		bytes += asides->files[i].size;
		ucm_progress_tell(progress, i + 1, asides->num, bytes);
	}
	return 0;
}

/* Files are sorted by directory: one store is open at a time. */
static int restore_all(struct ucm_asides *asides, struct ucm_progress *progress)
{
	struct ucm_restorer *restorer = NULL;
	unsigned of = UINT32_MAX;
	int err = 0;

	for (size_t i = 0; i < asides->num && !err; i++) {
		struct ucm_aside *aside = &asides->files[i];

		if (aside->dir != of) {
			ucm_restorer_close(restorer);
			restorer = NULL;
			of = aside->dir;
			err = ucm_restorer_open(&asides->dirs[of], &restorer);
		}
		if (!err)
			restore(asides, aside, restorer);
		ucm_progress_tell(progress, i + 1, asides->num, 0);
	}
	ucm_restorer_close(restorer);
	return err;
}

static int purge_all(struct ucm_asides *asides, struct ucm_progress *progress)
{
	for (size_t i = 0; i < asides->num; i++) {
		leave(asides, &asides->files[i], "purged");
		ucm_progress_tell(progress, i + 1, asides->num, 0);
	}
	return 0;
}

/* ---- what is said ---- */

static const struct action {
	const char *name;
	bool inspects, changes;
	int (*run)(struct ucm_asides *asides, struct ucm_progress *progress);
} actions[] = {
	{ "list", false, false, NULL },
	{ "inspect", true, false, inspect_all },
	{ "restore", true, true, restore_all },
	{ "purge", false, true, purge_all },
};
static const struct action *action;

struct sums {
	size_t done, failed;
	uint64_t bytes; /* of those that are gone, or of all that are there */
};

static struct sums sums_of(const struct ucm_asides *asides)
{
	struct sums sums = { 0 };

	for (size_t i = 0; i < asides->num; i++) {
		const struct ucm_aside *aside = &asides->files[i];

		sums.done += aside->done != NULL;
		sums.failed += aside->failed != NULL;
		if (!action->changes || aside->done)
			sums.bytes += aside->bytes;
	}
	return sums;
}

static void print_file(const struct ucm_asides *asides,
		       const struct ucm_aside *aside)
{
	char why[160] = "";

	verdict(aside, why, sizeof(why));
	if (aside->failed && action->inspects && aside->outcome.err)
		ucm_tool_complain("%s: %s: %s", aside->name, aside->failed,
				  why);
	else if (aside->failed)
		ucm_tool_complain("%s: %s", aside->name, aside->failed);
	else if (aside->done)
		printf("%s %s\n", aside->done, aside->name);
	else
		printf("%-6s %-5s %s/" QUARANTINE "/%s%s%s%s\n",
		       ucm_text_size(aside->size, false).text,
		       ucm_text_age(time(NULL) - aside->since_s).text,
		       asides->dirs[aside->dir].path, aside->name,
		       action->inspects ? ": " : "",
		       action->inspects ? why : "",
		       action->inspects && aside->there
			       ? "; a file of its name is there"
			       : "");
}

static int print_all(const struct ucm_asides *asides)
{
	struct sums sums = sums_of(asides);

	if (!action->changes && asides->num)
		puts("SIZE   AGE   FILE");
	for (size_t i = 0; i < asides->num; i++)
		print_file(asides, &asides->files[i]);
	if (action->changes) {
		printf("%zu file%s %sd, %s freed", sums.done,
		       sums.done == 1 ? "" : "s", action->name,
		       ucm_text_size(sums.bytes, false).text);
		if (sums.failed)
			printf(", %zu not", sums.failed);
		putchar('\n');
	} else {
		printf("%zu file%s, %s on disk\n", asides->num,
		       asides->num == 1 ? "" : "s",
		       ucm_text_size(sums.bytes, false).text);
	}
	return ucm_tool_flush() | (sums.failed ? UCM_EXIT_FAILED : 0);
}

static json_t *describe_file(const struct ucm_asides *asides,
			     const struct ucm_aside *aside)
{
	json_t *json = json_pack(
		"{so so so so sI sI sI ss? ss?}", "directory",
		ucm_json_text(asides->dirs[aside->dir].path), "name",
		ucm_json_text(aside->name), "space",
		ucm_json_text(aside->space), "id", ucm_json_id(&aside->id),
		"size", (json_int_t)aside->size, "bytes",
		(json_int_t)aside->bytes, "since", (json_int_t)aside->since_s,
		"done", aside->done, "error", aside->failed);
	char why[160];

	if (!json || !action->inspects)
		return json;
	verdict(aside, why, sizeof(why));
	json_object_set_new(json, "intact",
			    aside->unchecked ? json_null()
					     : json_boolean(!aside->outcome.err));
	json_object_set_new(json, "verdict", json_string(why));
	json_object_set_new(json, "there", json_boolean(aside->there));
	return json;
}

static int print_json(const struct ucm_asides *asides)
{
	struct sums sums = sums_of(asides);
	json_t *list = json_array();

	for (size_t i = 0; i < asides->num; i++)
		json_array_append_new(list,
				      describe_file(asides, &asides->files[i]));
	return ucm_json_print(
		json_pack("{ss sI sI sI so}", "action", action->name, "done",
			  (json_int_t)sums.done, "failed",
			  (json_int_t)sums.failed, "bytes",
			  (json_int_t)sums.bytes, "files", list),
		sums.failed ? UCM_EXIT_FAILED : 0);
}

/* ---- the command ---- */

static int work(struct ucm_asides *asides)
{
	struct ucm_progress progress;
	int err = read_files(asides);
	int status = 0;

	if (!err && check_wanted(asides))
		status = UCM_EXIT_FAILED;
	ucm_progress_begin(&progress);
	if (!err && action->run)
		err = action->run(asides, &progress);
	ucm_progress_clear(&progress);
	if (err)
		return UCM_EXIT_FAILED;
	return status |
	       (opt.common.json ? print_json(asides) : print_all(asides));
}

/* An operand is a place or the name of a file; names have no '/'. */
static int add_operands(struct ucm_asides *asides, int argc, char **argv)
{
	int err = 0;

	opt.wanted = argv;
	for (int i = 0; i < argc && !err; i++) {
		if (ucm_mount_is_named(argv[i]))
			err = add_place(asides, argv[i], action->changes);
		else
			argv[opt.num_wanted++] = argv[i];
	}
	if (!err && !asides->num_dirs) {
		_cleanup_free_ char *mount = ucm_mount_find(NULL);

		err = mount ? add_place(asides, mount, action->changes)
			    : -ENOENT;
	}
	return err;
}

static int check_names(int argc, char **argv)
{
	struct ucm_aside aside;
	struct ucm_id id;

	for (int i = 0; i < argc; i++) {
		if (ucm_mount_is_named(argv[i]) || !parse_name(argv[i], &aside))
			continue;
		if (strlen(argv[i]) != UCM_ID_HEX || ucm_id_parse(argv[i], &id))
			return ucm_tool_fail(UCM_EXIT_USAGE,
					     "'%s': neither a place nor the "
					     "name of a file nor an id; try "
					     "--help", argv[i]);
	}
	return 0;
}

static int check_action(int argc, char **argv)
{
	unsigned names = 0;

	for (size_t i = 0; argc && i < sizeof(actions) / sizeof(*actions); i++) {
		if (!strcmp(argv[0], actions[i].name))
			action = &actions[i];
	}
	if (!action)
		return ucm_tool_fail(UCM_EXIT_USAGE,
				     "%s: must be list, inspect, restore or "
				     "purge; try --help",
				     argc ? argv[0] : "no action");
	for (int i = 1; i < argc; i++)
		names += !ucm_mount_is_named(argv[i]);
	if (action->run == purge_all && !names && !opt.all && opt.older_s < 0)
		return ucm_tool_fail(UCM_EXIT_USAGE, "purge: no NAME, no "
				     "--older and no --all; try --help");
	if (names && opt.all)
		return ucm_tool_fail(UCM_EXIT_USAGE, "both NAME and --all; try "
				     "--help");
	return check_names(argc - 1, argv + 1);
}

static int run(int argc, char **argv)
{
	struct ucm_asides asides = { 0 };
	int status = check_action(argc, argv);

	if (status)
		return status;
	status = add_operands(&asides, argc - 1, argv + 1)
			 ? UCM_EXIT_FAILED
			 : work(&asides);
	asides_fini(&asides);
	return status;
}

const struct ucm_command ucm_quarantine_command = {
	.name = "quarantine",
	.does = "look at what was moved aside, and clear it",
	.operands = "list [MOUNT|DIRECTORY|NAME]...\n"
		    "inspect [MOUNT|DIRECTORY|NAME]...\n"
		    "restore [MOUNT|DIRECTORY|NAME]...\n"
		    "purge [MOUNT|DIRECTORY|NAME]...",
	.about = "List the torn and damaged files that lie in the quarantine of "
		 "a mount's directories, or of one directory; inspect them: read "
		 "them and say what is wrong; restore those that are right, as "
		 "blocks of their name; or purge them. NAME is a file's name "
		 "there, SPACE@HASH.TIME, or its HASH; without any, all files "
		 "are meant. A MOUNT or DIRECTORY has a '/' in its name; "
		 "without any, the only mount is meant. It may be in use "
		 "meanwhile. For those who may read and write the directories.",
	.args = args,
	.end = "Exit status 1: a file could not be restored or purged, or a "
	       "NAME is not there.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
