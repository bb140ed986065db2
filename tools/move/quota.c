/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.c - ucm quota: what spaces, and top folders of files/, may take;
 * see ucm(1).
 *
 * All is read and set by the folders' extended attributes, by which the kernel
 * decides who may; which folders there are, a mount's stats.json says. When a
 * quota was lowered, the daemon takes away what is too much, and the command
 * looks on.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/parse.h"
#include "hashing/tree.h"
#include "tools/lib/args.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

#define XATTR "user.ucmfs."
#define VALUE_MAX 32 /* of each of ours */
#define POLL_NS 100000000
/* What it takes, when it has not become less for so long, stays. */
#define VAIN_MS 30000
#define GRACE_MAX_S (7u * 24 * 3600)

static const char *const orders[] = { "lru", "fifo" };
#define NUM_ORDERS 2u

static struct options {
	struct ucm_common common;
	unsigned order; /* of orders */
	uint64_t grace_s;
	bool background;
} opt = { .order = NUM_ORDERS, .grace_s = UINT64_MAX };

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNT(opt.common),
	UCM_ARG_JSON(opt.common),
	{ "order", 0, "lru|fifo", ucm_arg_choice, &opt.order,
	  .help = "set, of a folder of files/: what is removed first, unused for "
		  "the longest time or written first" },
	{ "grace", 0, "SECONDS", ucm_arg_number, &opt.grace_s,
	  .help = "set, of a folder of files/: younger files stay",
	  .max = GRACE_MAX_S },
	{ "background", 'b', .to = &opt.background,
	  .help = "set, and do not wait until the excess is removed" },
	{ 0 },
};

/* ---- folders ---- */

struct folder {
	const char *name; /* below the mount, or a whole path */
	char path[PATH_MAX];
};

static bool is_below(const char *name, const char *folder)
{
	size_t len = strlen(folder);

	return !strncmp(name, folder, len) &&
	       (name[len] == '/' || name[len] == '\0');
}

/* "blocks", "spaces/NAME", "files/NAME", a whole path; and NAME alone is a
 * space. */
static int folder_find(const char *mount, const char *name, struct folder *out)
{
	bool is_tree = is_below(name, UCM_TREE_BLOCKS) ||
		       is_below(name, UCM_TREE_SPACES) ||
		       is_below(name, UCM_TREE_FILES);
	int len;

	out->name = name;
	if (*name == '/')
		len = snprintf(out->path, PATH_MAX, "%s", name);
	else if (!is_tree && !strchr(name, '/'))
		len = snprintf(out->path, PATH_MAX,
			       "%s/" UCM_TREE_SPACES "/%s", mount, name);
	else if (is_tree)
		len = snprintf(out->path, PATH_MAX, "%s/%s", mount, name);
	else
		return ucm_tool_complain("'%s': not blocks, spaces/NAME, "
					 "files/NAME or a whole path", name);
	return len < PATH_MAX ? 0 : ucm_tool_complain("%s: too long", name);
}

/* ---- attributes ---- */

/* -ENODATA: it has none. */
static int read_text(const struct folder *folder, const char *what,
		     char value[VALUE_MAX])
{
	char name[VALUE_MAX];
	ssize_t len;

	snprintf(name, sizeof(name), XATTR "%s", what);
	len = getxattr(folder->path, name, value, VALUE_MAX - 1);
	if (len < 0)
		return -errno;
	value[len] = '\0';
	return 0;
}

static int read_number(const struct folder *folder, const char *what,
		       uint64_t *out)
{
	char value[VALUE_MAX];
	int err = read_text(folder, what, value);

	return err ? err : ucm_parse_u64(value, out);
}

static int fail(const struct folder *folder, int err)
{
	const char *why = strerror(-err);

	if (err == -EPERM || err == -EACCES)
		why = "only who may write there may set it";
	else if (err == -EOPNOTSUPP)
		why = "no folder of ucmfs that can have that; of files/ only "
		      "those right in it can";
	else if (err == -EINVAL)
		why = "the daemon does not take that; its log says why";
	return ucm_tool_fail(err, "%s: %s", folder->name, why);
}

static int set_text(const struct folder *folder, const char *what,
		    const char *value)
{
	char name[VALUE_MAX];

	snprintf(name, sizeof(name), XATTR "%s", what);
	return setxattr(folder->path, name, value, strlen(value), 0)
		       ? fail(folder, -errno)
		       : 0;
}

/* ---- showing ---- */

struct quota {
	uint64_t bytes, used, grace_s; /* NONE: it has none */
	char order[VALUE_MAX]; /* "": of a space */
};

#define NONE UINT64_MAX

static int quota_read(const struct folder *folder, struct quota *out)
{
	int err = read_number(folder, "quota", &out->bytes);

	if (err && err != -ENODATA)
		return fail(folder, err);
	if (err)
		out->bytes = NONE;
	if (read_number(folder, "used", &out->used))
		out->used = NONE;
	if (read_number(folder, "grace", &out->grace_s))
		out->grace_s = NONE;
	if (read_text(folder, "order", out->order))
		out->order[0] = '\0';
	return 0;
}

static void print_quota(const struct folder *folder, const struct quota *quota)
{
	bool has = quota->bytes != NONE;
	char grace[VALUE_MAX] = "-";

	if (quota->grace_s != NONE)
		snprintf(grace, sizeof(grace), "%" PRIu64 "s", quota->grace_s);
	printf("%-32s %10s %10s %8s %-6s %s\n", folder->name,
	       has ? ucm_text_size(quota->bytes, false).text : "none",
	       quota->used != NONE ? ucm_text_size(quota->used, false).text : "-",
	       has && quota->used != NONE
		       ? ucm_text_share(quota->used, quota->bytes).text
		       : "-",
	       *quota->order ? quota->order : "policy", grace);
}

static json_t *number_or_null(uint64_t number)
{
	return number != NONE ? ucm_json_number(number) : json_null();
}

static json_t *quota_json(const struct folder *folder,
			  const struct quota *quota)
{
	return json_pack(
		"{so so so ss* so*}", "folder", ucm_json_text(folder->name),
		"quota_bytes", number_or_null(quota->bytes), "used_bytes",
		number_or_null(quota->used), "order",
		*quota->order ? quota->order : NULL, "grace_s",
		quota->grace_s != NONE ? ucm_json_number(quota->grace_s) : NULL);
}

struct report {
	const char *mount;
	json_t *rows; /* with --json */
	bool has_head;
	int status;
};

static void tell(struct report *report, const struct folder *folder,
		 const struct quota *quota)
{
	if (opt.common.json) {
		ucm_json_add(report->rows, quota_json(folder, quota));
		return;
	}
	if (!report->has_head)
		printf("%-32s %10s %10s %8s %-6s %s\n", "FOLDER", "QUOTA",
		       "USED", "SHARE", "ORDER", "GRACE");
	report->has_head = true;
	print_quota(folder, quota);
}

static void tell_folder(struct report *report, const char *name)
{
	struct folder folder;
	struct quota quota = { 0 };

	if (folder_find(report->mount, name, &folder) ||
	    quota_read(&folder, &quota))
		report->status = UCM_EXIT_FAILED;
	else
		tell(report, &folder, &quota);
}

static int finish(struct report *report)
{
	if (opt.common.json)
		return ucm_json_print(json_pack("{so so}", "mount",
						ucm_json_text(report->mount),
						"quotas", report->rows),
				      report->status);
	return ucm_tool_flush() | report->status;
}

/* ---- all that a mount has ---- */

static void tell_space_of(struct report *report, const json_t *space)
{
	const char *name = ucm_json_get_text(space, "name");
	char folder[UCM_TREE_FOLDER_MAX];

	if (!name || !json_object_get(space, "quota_bytes"))
		return;
	ucm_tree_folder(strcmp(name, UCM_TREE_BLOCKS) ? name : "", folder);
	tell_folder(report, folder);
}

static int tell_all(struct report *report)
{
	json_t *stats, *one;
	int err = ucm_target_stats(report->mount, &stats);
	size_t i;

	if (err == -EACCES)
		ucm_tool_complain("%s: all quotas are for root and the owner "
				  "of the mount; name a FOLDER",
				  report->mount);
	if (err)
		return err;
	json_array_foreach(json_object_get(stats, "spaces"), i, one)
		tell_space_of(report, one);
	json_array_foreach(json_object_get(stats, "quotas"), i, one)
		tell_folder(report, ucm_json_get_text(one, "folder"));
	json_decref(stats);
	if (!opt.common.json && !report->has_head && !report->status)
		puts("no quotas");
	return 0;
}

static int show(struct report *report, int argc, char **argv)
{
	if (!argc && tell_all(report))
		report->status = UCM_EXIT_FAILED;
	for (int i = 0; i < argc; i++)
		tell_folder(report, argv[i]);
	return finish(report);
}

/* ---- setting ---- */

static bool is_too_much(const struct quota *quota)
{
	return quota->used != NONE && quota->used > quota->bytes;
}

/* Until it is within the quota, or nothing goes any more. */
static int look_on(const struct folder *folder, struct quota *quota)
{
	const struct timespec poll = { .tv_nsec = POLL_NS };
	int64_t moved_ms = ucm_monotonic_ms();
	uint64_t least = quota->used;
	struct ucm_progress progress;
	int err = 0;

	ucm_progress_begin(&progress);
	while (!err && is_too_much(quota) &&
	       ucm_monotonic_ms() - moved_ms < VAIN_MS) {
		nanosleep(&poll, NULL);
		err = quota_read(folder, quota);
		ucm_progress_say(&progress, "%s of %s are used",
				 ucm_text_size(quota->used, false).text,
				 ucm_text_size(quota->bytes, false).text);
		if (quota->used >= least)
			continue;
		least = quota->used;
		moved_ms = ucm_monotonic_ms();
	}
	ucm_progress_clear(&progress);
	return err;
}

static int apply(const struct folder *folder, const char *size)
{
	char grace[VALUE_MAX];
	int err;

	if (!strcmp(size, "none"))
		return removexattr(folder->path, XATTR "quota")
			       ? fail(folder, -errno)
			       : 0;
	err = set_text(folder, "quota", size);
	if (!err && opt.order < NUM_ORDERS)
		err = set_text(folder, "order", orders[opt.order]);
	snprintf(grace, sizeof(grace), "%" PRIu64, opt.grace_s);
	if (!err && opt.grace_s != UINT64_MAX)
		err = set_text(folder, "grace", grace);
	return err;
}

static int set(struct report *report, const char *name, const char *size)
{
	struct quota quota = { 0 };
	struct folder folder;
	int err = folder_find(report->mount, name, &folder)
		?: apply(&folder, size)
		?: quota_read(&folder, &quota);

	if (!err && !opt.background)
		err = look_on(&folder, &quota);
	if (err)
		return UCM_EXIT_FAILED;
	if (!opt.background && is_too_much(&quota)) {
		ucm_tool_complain("%s: what is left is open, pinned or "
				  "young; it leaves as soon as it may", name);
		report->status = UCM_EXIT_FAILED;
	}
	tell(report, &folder, &quota);
	return finish(report);
}

/* ---- the command ---- */

static bool sets(int argc, char **argv)
{
	return argc && !strcmp(argv[0], "set");
}

static void check(int argc, char **argv)
{
	uint64_t bytes;

	if (!sets(argc, argv) && (opt.order < NUM_ORDERS || opt.background ||
				  opt.grace_s != UINT64_MAX))
		ucm_tool_usage("--order, --grace and --background are for set");
	if (sets(argc, argv) && argc != 3)
		ucm_tool_usage("set: must be followed by FOLDER and SIZE");
	if (sets(argc, argv) && strcmp(argv[2], "none") &&
	    (ucm_parse_bytes(argv[2], &bytes) || !bytes))
		ucm_tool_usage("SIZE '%s': must be bytes, such as 500G, or none",
			       argv[2]);
}

/* Whole paths need no mount. */
static bool needs_mount(int argc, char **argv)
{
	if (sets(argc, argv))
		return *argv[1] != '/';
	for (int i = 0; i < argc; i++) {
		if (*argv[i] != '/')
			return true;
	}
	return !argc;
}

static int run(int argc, char **argv)
{
	_cleanup_free_ char *mount = NULL;
	struct report report = { .mount = "" };

	check(argc, argv);
	if (opt.common.mount || needs_mount(argc, argv))
		report.mount = mount = ucm_mount_find(opt.common.mount);
	report.rows = opt.common.json ? json_array() : NULL;
	return sets(argc, argv) ? set(&report, argv[1], argv[2])
				: show(&report, argc, argv);
}

const struct ucm_command ucm_quota_command = {
	.name = "quota",
	.does = "show and set what spaces and folders may take",
	.operands = "[FOLDER]...\n"
		    "set FOLDER SIZE|none",
	.about = "Show the quotas of spaces and of top folders of files/, and "
		 "what they take on disk: of all that have one, or of those "
		 "that are named. Or set one: SIZE is bytes, such as 500G; none "
		 "removes it. FOLDER is blocks, spaces/NAME, files/NAME or a "
		 "whole path; NAME alone is a space. Where more is used than "
		 "the new quota, the command looks on until the daemon has "
		 "taken it away; a signal ends the looking on alone. For those "
		 "who may read and write the folder; the list of all is for "
		 "root and the owner of the mount.",
	.args = args,
	.end = "Exit status 1: it could not be read or set, or more is used "
	       "than the quota and may not go.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
