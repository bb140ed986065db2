/* SPDX-License-Identifier: Apache-2.0 */
/* find.c - ucm stat --where and --present: where blocks are, and which there are; see
 * ucm(1). */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "hashing/tree.h"
#include "tools/lib/args.h"
#include "tools/lib/ids.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static struct ucm_common common;
static struct ucm_ids ids;

static bool with_list; /* --present */

static const struct ucm_arg args[] = {
	UCM_ARGS_BLOCKS(common),
	{ 0 },
};

static const struct ucm_arg present_args[] = {
	UCM_ARGS(args),
	{ "list", 'l', .to = &with_list,
	  .help = "print each id with its digit instead" },
	{ 0 },
};

/* ---- --where ---- */

struct found {
	struct ucm_target *target;
	const struct ucm_id *id;
	struct ucm_control_place place;
	char path[4096]; /* "": not known */
};

/* What became of it, if it is not there. */
static const char *why_not(int result)
{
	return result == -ENOENT ? "absent" : strerror(-result);
}

static void print_found(const struct found *found)
{
	fputs(ucm_hex(found->id).text, stdout);
	if (found->place.result)
		printf(" %s\n", why_not(found->place.result));
	else
		printf(" %s %s\n",
		       ucm_target_tier(found->target, found->place.tier),
		       *found->path ? found->path : "-");
}

static json_t *describe(const struct found *found)
{
	int result = found->place.result;

	return json_pack("{so ss* ss* so*}", "id", ucm_json_id(found->id),
			 "error", result ? why_not(result) : NULL, "tier",
			 result ? NULL : ucm_target_tier(found->target,
							 found->place.tier),
			 "path",
			 *found->path ? ucm_json_text(found->path) : NULL);
}

static int find(struct found *found)
{
	int err = 0;

	found->path[0] = '\0';
	if (!found->place.result)
		err = ucm_target_path(found->target, common.space, found->id,
				      found->path);
	if (err == -ENOENT) /* gone since */
		found->place.result = err;
	return err == -ENOENT || err == -EPERM ? 0 : err;
}

static int tell_all(struct ucm_target *target,
		    const struct ucm_control_place *places)
{
	json_t *list = common.json ? json_array() : NULL;
	struct found found = { .target = target };
	int status = 0;

	for (size_t i = 0; i < ids.num; i++) {
		found.id = &ids.ids[i];
		found.place = places[i];
		if (find(&found))
			ucm_tool_exit(UCM_EXIT_FAILED);
		if (found.place.result)
			status = UCM_EXIT_FAILED;
		if (common.json)
			ucm_json_add(list, describe(&found));
		else
			print_found(&found);
	}
	return common.json ? ucm_json_print(list, status)
			   : ucm_tool_flush() | status;
}

static int locate(struct ucm_target *target)
{
	_cleanup_free_ struct ucm_control_place *places =
		ucm_tool_alloc(ids.num, sizeof(*places));

	if (ucm_target_locate(target, common.space, ids.ids, ids.num, places))
		return UCM_EXIT_FAILED;
	return tell_all(target, places);
}

static int run(int argc, char **argv)
{
	int status = UCM_EXIT_USAGE;

	if (!argc)
		ucm_tool_usage("no ID");
	if (!ucm_ids_take(&ids, argc, argv))
		status = ucm_target_run(common.mount, locate);
	ucm_ids_fini(&ids);
	return status;
}

const struct ucm_command ucm_where_command = {
	.name = "stat",
	.word = "--where",
	.does = "show the tier and the file of blocks",
	.operands = "ID...",
	.about = "Print for each block its tier and, for root and the owner of "
		 "the mount, the path of its file; \"absent\" if there is "
		 "none.",
	.args = args,
	.end = "Exit status 1: a block is absent.",
	.most = UCM_ARGS_ANY,
	.run = run,
};

/* ---- --present ---- */

struct answer {
	char *digits; /* one for each, and a NUL */
	size_t prefix, present, unknown;
};

static void read_results(const int32_t *results, size_t num,
			 struct answer *answer)
{
	for (size_t i = 0; i < num; i++) {
		answer->digits[i] = results[i] < 0 ? '?' : results[i] ? '1' : '0';
		answer->present += results[i] > 0;
		answer->unknown += results[i] < 0;
	}
	answer->prefix = strspn(answer->digits, "1");
}

static void print_list(const struct answer *answer)
{
	for (size_t i = 0; i < ids.num; i++)
		printf("%s %c\n", ucm_hex(&ids.ids[i]).text,
		       answer->digits[i]);
}

static void print_answer(const struct answer *answer)
{
	printf("blocks  %zu\n", ids.num);
	printf("prefix  %zu\n", answer->prefix);
	printf("present %zu\n", answer->present);
	if (answer->unknown)
		printf("unknown %zu\n", answer->unknown);
	printf("bitmap  %s\n", answer->digits);
}

static int tell_answer(const struct answer *answer)
{
	int status = answer->present == ids.num ? 0 : UCM_EXIT_FAILED;

	if (common.json)
		return ucm_json_print(
			json_pack("{sI sI sI sI ss}", "blocks",
				  (json_int_t)ids.num, "prefix",
				  (json_int_t)answer->prefix, "present",
				  (json_int_t)answer->present, "unknown",
				  (json_int_t)answer->unknown, "bitmap",
				  answer->digits),
			status);
	if (with_list)
		print_list(answer);
	else
		print_answer(answer);
	return ucm_tool_flush() | status;
}

static int ask(struct ucm_target *target)
{
	_cleanup_free_ int32_t *results =
		ucm_tool_alloc(ids.num, sizeof(*results));
	_cleanup_free_ char *digits = ucm_tool_alloc(ids.num + 1, 1);
	struct answer answer = { .digits = digits };

	if (ucm_target_batch(target, ucm_blocks_lookup, common.space,
			     ids.ids, ids.num, results, NULL))
		return UCM_EXIT_FAILED;
	read_results(results, ids.num, &answer);
	return tell_answer(&answer);
}

static int run_present(int argc, char **argv)
{
	int status;

	ucm_ids_read(argc ? argv[0] : "-", &ids);
	status = ucm_target_run(common.mount, ask);
	ucm_ids_fini(&ids);
	return status;
}

const struct ucm_command ucm_lookup_command = {
	.name = "stat",
	.word = "--present",
	.does = "count which blocks are present",
	.operands = "[FILE]",
	.about = "Read ids from FILE or standard input, one a line, as ucm "
		 "hash prints them. Print how many of these blocks are there "
		 "from the first on (the prefix that a request can load), how "
		 "many in all, and a digit for each: 1 present, 0 absent, ? "
		 "not known.",
	.args = present_args,
	.end = "Exit status 1: not all of them are there.",
	.most = 1,
	.run = run_present,
};
