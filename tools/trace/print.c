/* SPDX-License-Identifier: Apache-2.0 */
/*
 * print.c - records of a trace; see print.h.
 *
 * Names come from the file, which may hold anything: what is not printable
 * ASCII is shown as '?'.
 */
#include <config.h>

#include "tools/trace/print.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "hashing/tree.h"

#define NAME_MAX_SHOWN 64

static const char *clean(const char *name, char out[NAME_MAX_SHOWN + 1])
{
	size_t len = strnlen(name, NAME_MAX_SHOWN);

	for (size_t i = 0; i < len; i++)
		out[i] = name[i] > ' ' && name[i] < 127 ? name[i] : '?';
	out[len] = '\0';
	return out;
}

static const char *op_name(const struct ucm_trace_view *view,
			   const struct ucm_trace_record *record,
			   char out[NAME_MAX_SHOWN + 1])
{
	return clean(ucm_trace_op_name(view, record->op), out);
}

/* NULL: the record is of no tier. */
static const char *tier_name(const struct ucm_trace_view *view,
			     const struct ucm_trace_record *record,
			     char out[NAME_MAX_SHOWN + 1])
{
	if (record->tier == UCM_TRACE_NONE)
		return NULL;
	return clean(ucm_trace_tier_name(view, record->tier), out);
}

static const char *result_name(const struct ucm_trace_record *record)
{
	const char *name;

	if (!record->error)
		return "ok";
	name = strerrorname_np(record->error);
	return name ? name : "error";
}

/* "2026-11-21T10:53:02.123456789Z" */
static void format_time(uint64_t ns, char out[64])
{
	time_t seconds = (time_t)(ns / 1000000000);
	struct tm tm;
	size_t len = 0;

	if (gmtime_r(&seconds, &tm))
		len = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out + len, 64 - len, ".%09uZ", (unsigned)(ns % 1000000000));
}

void ucm_trace_print_head(FILE *out)
{
	fputs("# time operation block space tier directory bytes ns result "
	      "pid uid\n", out);
}

void ucm_trace_print_text(const struct ucm_trace_view *view,
			  const struct ucm_trace_record *record, FILE *out)
{
	char time[64], op[NAME_MAX_SHOWN + 1];
	char name[NAME_MAX_SHOWN + 1], dir[8] = "-";
	const char *tier = tier_name(view, record, name);

	format_time(record->time_ns, time);
	if (record->dir != UCM_TRACE_NONE)
		snprintf(dir, sizeof(dir), "%u", record->dir);
	fprintf(out, "%s %s %s %u %s %s %" PRIu64 " %u %s %u %u\n", time,
		op_name(view, record, op), ucm_hex(&record->id).text, record->space,
		tier ? tier : "-", dir, record->bytes, record->duration_ns,
		result_name(record), record->pid, record->uid);
}

int ucm_trace_print_json(const struct ucm_trace_view *view,
			 const struct ucm_trace_record *record, FILE *out)
{
	char op[NAME_MAX_SHOWN + 1], name[NAME_MAX_SHOWN + 1];
	const char *tier = tier_name(view, record, name);
	json_t *json;
	int err = 0;

	json = json_pack(
		"{sI sI ss ss sI ss? so sI sI ss sI sI}",
		"seq", (json_int_t)record->seq,
		"time_ns", (json_int_t)record->time_ns,
		"op", op_name(view, record, op),
		"block", ucm_hex(&record->id).text,
		"space", (json_int_t)record->space,
		"tier", tier,
		"dir", record->dir == UCM_TRACE_NONE
			       ? json_null()
			       : json_integer(record->dir),
		"bytes", (json_int_t)record->bytes,
		"duration_ns", (json_int_t)record->duration_ns,
		"result", result_name(record),
		"pid", (json_int_t)record->pid,
		"uid", (json_int_t)record->uid);
	if (!json || json_dumpf(json, out, JSON_COMPACT))
		err = -ENOMEM;
	fputc('\n', out);
	json_decref(json);
	return err;
}
