/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_trace_print.c - records of a trace; see ucm_trace_print.h.
 *
 * Names come from the file, which may hold anything: what is not printable
 * ASCII is shown as '?'.
 */
#include <config.h>

#include "tools/ucm_trace_print.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

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
	char time[64], hex[UCM_ID_HEX + 1], op[NAME_MAX_SHOWN + 1];
	char name[NAME_MAX_SHOWN + 1], dir[8] = "-";
	const char *tier = tier_name(view, record, name);

	format_time(record->time_ns, time);
	ucm_id_format(&record->id, hex);
	if (record->dir != UCM_TRACE_NONE)
		snprintf(dir, sizeof(dir), "%u", record->dir);
	fprintf(out, "%s %s %s %u %s %s %" PRIu64 " %u %s %u %u\n", time,
		op_name(view, record, op), hex, record->space,
		tier ? tier : "-", dir, record->bytes, record->duration_ns,
		result_name(record), record->pid, record->uid);
}

static json_t *number(uint64_t value)
{
	return json_integer((json_int_t)value);
}

int ucm_trace_print_json(const struct ucm_trace_view *view,
			 const struct ucm_trace_record *record, FILE *out)
{
	char hex[UCM_ID_HEX + 1], op[NAME_MAX_SHOWN + 1];
	char name[NAME_MAX_SHOWN + 1];
	const char *tier = tier_name(view, record, name);
	json_t *json = json_object();
	int err = 0;

	ucm_id_format(&record->id, hex);
	json_object_set_new(json, "seq", number(record->seq));
	json_object_set_new(json, "time_ns", number(record->time_ns));
	json_object_set_new(json, "op", json_string(op_name(view, record, op)));
	json_object_set_new(json, "block", json_string(hex));
	json_object_set_new(json, "space", number(record->space));
	json_object_set_new(json, "tier",
			    tier ? json_string(tier) : json_null());
	json_object_set_new(json, "dir", record->dir == UCM_TRACE_NONE
						 ? json_null()
						 : number(record->dir));
	json_object_set_new(json, "bytes", number(record->bytes));
	json_object_set_new(json, "duration_ns", number(record->duration_ns));
	json_object_set_new(json, "result", json_string(result_name(record)));
	json_object_set_new(json, "pid", number(record->pid));
	json_object_set_new(json, "uid", number(record->uid));
	if (json_object_size(json) != 12 ||
	    json_dumpf(json, out, JSON_COMPACT))
		err = -ENOMEM;
	fputc('\n', out);
	json_decref(json);
	return err;
}
