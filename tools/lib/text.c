/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - numbers, times and JSON as the subcommands print them. */
#include <config.h>

#include "tools/lib/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include <ucm/block.h>

#include "common/cleanup.h"
#include "hashing/tree.h"
#include "tools/lib/tool.h"

static struct ucm_text make(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

static struct ucm_text make(const char *format, ...)
{
	struct ucm_text out;
	va_list args;

	va_start(args, format);
	vsnprintf(out.text, sizeof(out.text), format, args);
	va_end(args);
	return out;
}

struct ucm_text ucm_text_size(uint64_t bytes, bool exact)
{
	static const char units[] = "BKMGTPE";
	unsigned unit = 0;
	double value = (double)bytes;

	if (exact || bytes < 1024)
		return make("%" PRIu64, bytes);
	/* 1023.6K is 1.0M */
	while (value >= 1023.5) {
		value /= 1024;
		unit++;
	}
	return make(value < 9.95 ? "%.1f%c" : "%.0f%c", value, units[unit]);
}

struct ucm_text ucm_text_age(int64_t seconds)
{
	static const struct {
		int64_t seconds;
		char unit;
	} units[] = { { 86400, 'd' }, { 3600, 'h' }, { 60, 'm' } };

	for (unsigned i = 0; i < 3; i++) {
		if (seconds >= units[i].seconds)
			return make("%" PRId64 "%c",
				    seconds / units[i].seconds, units[i].unit);
	}
	return make("%" PRId64 "s", seconds > 0 ? seconds : 0);
}

struct ucm_text ucm_text_duration(double seconds)
{
	static const struct {
		double least;
		const char *unit;
	} units[] = { { 1, "s" }, { 1e-3, "ms" }, { 1e-6, "us" } };

	for (unsigned i = 0; i < 3; i++) {
		double value = seconds / units[i].least;

		if (seconds >= units[i].least)
			return make(value < 9.95 ? "%.1f%s" : "%.0f%s", value,
				    units[i].unit);
	}
	return make("%.0fns", seconds * 1e9);
}

struct ucm_text ucm_text_share(uint64_t part, uint64_t whole)
{
	if (!whole)
		return make("-");
	return make("%.1f %%", 100.0 * (double)part / (double)whole);
}

json_t *ucm_json_share(uint64_t part, uint64_t whole)
{
	return whole ? json_real((double)part / (double)whole) : json_null();
}

json_t *ucm_json_text(const char *text)
{
	_cleanup_free_ char *copy = NULL;
	json_t *json = json_string(text);

	if (json)
		return json;
	copy = ucm_tool_format("%s", text);
	for (char *c = copy; *c; c++) {
		if (*c & 0x80)
			*c = '?';
	}
	return json_string(copy);
}

uint64_t ucm_json_get(const json_t *object, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(object, name));
}

const char *ucm_json_get_text(const json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

json_t *ucm_json_number(uint64_t value)
{
	return json_integer((json_int_t)value);
}

json_t *ucm_json_id(const void *id)
{
	return json_string(ucm_hex(id).text);
}

static void require(int err)
{
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "cannot print the JSON");
}

void ucm_json_add(json_t *list, json_t *value)
{
	require(json_array_append_new(list, value));
}

void ucm_json_set(json_t *object, const char *name, json_t *value)
{
	require(json_object_set_new(object, name, value));
}

static void print(json_t *object, size_t flags)
{
	require(!object || json_dumpf(object, stdout, flags));
	json_decref(object);
	putchar('\n');
}

void ucm_json_line(json_t *object)
{
	print(object, JSON_COMPACT);
}

int ucm_json_print(json_t *object, int status)
{
	int err;

	print(object, JSON_INDENT(2));
	err = ucm_tool_flush();
	return err ? err : status;
}
