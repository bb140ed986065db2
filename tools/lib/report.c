/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - what ucm put, get, repr and verify say. */
#include <config.h>

#include "tools/lib/report.h"

#include <errno.h>
#include <inttypes.h>

#include "common/clock.h"
#include "hashing/tree.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

#define SECOND ((int64_t)1000000000)

void ucm_report_init(struct ucm_report *report, bool json, FILE *to)
{
	*report = (struct ucm_report){
		.to = json ? NULL : to,
		.failures = json ? json_array() : NULL,
	};
	ucm_progress_begin(&report->progress);
}

void ucm_report_fini(struct ucm_report *report)
{
	json_decref(report->failures);
}

/* ---- blocks ---- */

static const char *count_block(struct ucm_report *report, int err)
{
	switch (err) {
	case -ENOENT:
		report->absent++;
		return "absent";
	case -EBADMSG:
		report->damaged++;
		return "damaged";
	default:
		report->failed++;
		return "failed";
	}
}

static json_t *describe_block(const struct ucm_id *id, const char *path,
			      const char *kind, const char *text,
			      const struct ucm_outcome *outcome)
{
	json_t *block = json_pack("{ss ss so*}", "outcome", kind, "text", text,
				  "id", id ? ucm_json_id(id) : NULL);

	/* it need not be UTF-8; then it is left out */
	if (path)
		json_object_set_new(block, "path", json_string(path));
	if (outcome && outcome->fault == UCM_FAULT_PLANE)
		json_object_update_new(
			block, json_pack("{sI sI ss}", "plane",
					 (json_int_t)outcome->plane, "layer",
					 (json_int_t)outcome->plane / 2, "part",
					 outcome->plane % 2 ? "V" : "K"));
	return block;
}

/* outcome: NULL if text says all. */
static void report_line(struct ucm_report *report, const struct ucm_id *id,
			const char *path, int err, const char *text,
			const struct ucm_outcome *outcome)
{
	const char *kind = count_block(report, err);

	if (!report->to) {
		ucm_json_add(report->failures,
			     describe_block(id, path, kind, text, outcome));
		return;
	}
	ucm_progress_clear(&report->progress);
	if (report->to == stderr)
		fprintf(stderr, "ucm %s: ", ucm_tool_command);
	fprintf(report->to, "%s: %s\n", path ? path : ucm_hex(id).text, text);
}

void ucm_report_block(struct ucm_report *report, const struct ucm_id *id,
		      const char *path, const struct ucm_outcome *outcome)
{
	char text[128];

	ucm_outcome_text(outcome, text, sizeof(text));
	report_line(report, id, path, outcome->err, text, outcome);
}

void ucm_report_text(struct ucm_report *report, const struct ucm_id *id,
		     const char *path, int err, const char *text)
{
	report_line(report, id, path, err, text, NULL);
}

/* ---- the summary ---- */

/* Returns what stands before the next one. */
static const char *print_counts(const struct ucm_count *counts,
				const char *between)
{
	for (; counts->name; counts++) {
		if (!counts->number)
			continue;
		printf("%s%" PRIu64 " %s", between, counts->number,
		       counts->name);
		between = ", ";
	}
	return between;
}

static void print_text(const struct ucm_report *report,
		       const struct ucm_count *counts, uint64_t blocks,
		       uint64_t bytes, double seconds)
{
	const struct ucm_count ours[] = { { "absent", report->absent },
					  { "damaged", report->damaged },
					  { "failed", report->failed },
					  { NULL, 0 } };
	const char *between;

	printf("%" PRIu64 " block%s", blocks, blocks == 1 ? "" : "s");
	between = print_counts(counts, ": ");
	print_counts(ours, between);
	printf("; %" PRIu64 " bytes in %.3f s\n", bytes, seconds);
}

static int print_json(const struct ucm_report *report,
		      const struct ucm_count *counts, uint64_t blocks,
		      uint64_t bytes, double seconds)
{
	json_t *root = json_pack(
		"{ss sI sI sI sI sI sf sO}", "command", ucm_tool_command,
		"blocks", (json_int_t)blocks, "bytes", (json_int_t)bytes,
		"absent", (json_int_t)report->absent, "damaged",
		(json_int_t)report->damaged, "failed",
		(json_int_t)report->failed, "seconds", seconds, "failures",
		report->failures);

	for (; counts->name; counts++)
		ucm_json_set(root, counts->name,
			     ucm_json_number(counts->number));
	return ucm_json_print(root, 0);
}

int ucm_report_end(struct ucm_report *report, const struct ucm_count *counts,
		   uint64_t blocks, uint64_t bytes)
{
	int64_t ns = ucm_monotonic_ns() - report->progress.started_ns;
	double seconds = (double)ns / (double)SECOND;

	ucm_progress_clear(&report->progress);
	if (!report->to)
		return print_json(report, counts, blocks, bytes, seconds);
	print_text(report, counts, blocks, bytes, seconds);
	return ucm_tool_flush();
}
