/* SPDX-License-Identifier: Apache-2.0 */
/* lookup.c - ucm stat --present: which blocks are there; see ucm(1). */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "tools/lib/args.h"
#include "tools/lib/ids.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static struct options {
	struct ucm_common common;
	bool list;
	struct ucm_ids ids;
} opt;

static const struct ucm_arg args[] = {
	UCM_ARGS_BLOCKS(opt.common),
	{ "list", 'l', .to = &opt.list,
	  .help = "print each id with its digit instead" },
	{ 0 },
};

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
	for (size_t i = 0; i < opt.ids.num; i++) {
		char hex[UCM_ID_HEX + 1];

		ucm_id_format(&opt.ids.ids[i], hex);
		printf("%s %c\n", hex, answer->digits[i]);
	}
}

static void print_answer(const struct answer *answer)
{
	printf("blocks  %zu\n", opt.ids.num);
	printf("prefix  %zu\n", answer->prefix);
	printf("present %zu\n", answer->present);
	if (answer->unknown)
		printf("unknown %zu\n", answer->unknown);
	printf("bitmap  %s\n", answer->digits);
}

static int tell(const struct answer *answer)
{
	int status = answer->present == opt.ids.num ? 0 : UCM_EXIT_FAILED;

	if (opt.common.json)
		return ucm_json_print(
			json_pack("{sI sI sI sI ss}", "blocks",
				  (json_int_t)opt.ids.num, "prefix",
				  (json_int_t)answer->prefix, "present",
				  (json_int_t)answer->present, "unknown",
				  (json_int_t)answer->unknown, "bitmap",
				  answer->digits),
			status);
	if (opt.list)
		print_list(answer);
	else
		print_answer(answer);
	return ucm_tool_flush() | status;
}

static int ask(struct ucm_target *target)
{
	_cleanup_free_ int32_t *results =
		ucm_tool_alloc(opt.ids.num, sizeof(*results));
	_cleanup_free_ char *digits = ucm_tool_alloc(opt.ids.num + 1, 1);
	struct answer answer = { .digits = digits };

	if (ucm_target_batch(target, ucm_blocks_lookup, opt.common.space,
			     opt.ids.ids, opt.ids.num, results, NULL))
		return UCM_EXIT_FAILED;
	read_results(results, opt.ids.num, &answer);
	return tell(&answer);
}

static int run(int argc, char **argv)
{
	int status = UCM_EXIT_FAILED;

	if (!ucm_ids_read(argc ? argv[0] : "-", &opt.ids))
		status = ucm_target_run(opt.common.mount, ask);
	ucm_ids_fini(&opt.ids);
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
	.args = args,
	.end = "Exit status 1: not all of them are there.",
	.most = 1,
	.run = run,
};
