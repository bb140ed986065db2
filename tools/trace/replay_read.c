/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_read.c - reads a trace to be replayed; see replay_read.h.
 *
 * Lines of JSON: an object each, with "timestamp" in milliseconds and
 * "hash_ids", numbers or strings that name blocks, from the head of the chain.
 *
 * An access trace does not say what belongs to one request. What one process
 * did in one space, without a second's pause, is taken for one: the blocks in
 * the order in which they were first looked up, opened or committed, up to a
 * number. Requests of several processes are gathered side by side.
 */
#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/cleanup.h"
#include "fs/watch/trace.h"
#include "tools/lib/tool.h"
#include "tools/trace/replay_read.h"

struct tags {
	uint64_t *tags;
	size_t num, max;
};

static void add_tag(struct tags *tags, uint64_t tag)
{
	tags->tags = ucm_tool_grow(tags->tags, tags->num, &tags->max,
				   sizeof(*tags->tags));
	tags->tags[tags->num++] = tag;
}

static void require(const char *path, int err)
{
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", path, strerror(-err));
}

/* ---- lines of JSON ---- */

struct lines {
	const char *path;
	size_t line; /* from 1 */
	uint64_t began_ms;
	bool begun;
	struct tags tags; /* of the request in hand */
	struct ucm_replay_trace *trace;
};

static _Noreturn void bad_line(const struct lines *lines, const char *what)
{
	ucm_tool_die(UCM_EXIT_FAILED, "%s:%zu: %s", lines->path, lines->line,
		     what);
}

/* FNV-1a; names are few beside 2^64 */
static uint64_t hash_name(const char *name)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	while (*name)
		hash = (hash ^ (uint8_t)*name++) * UINT64_C(0x100000001b3);
	return hash;
}

static void read_blocks(struct lines *lines, const json_t *ids)
{
	const json_t *id;
	size_t i;

	lines->tags.num = 0;
	if (!json_is_array(ids))
		bad_line(lines, "no list \"hash_ids\"");
	json_array_foreach(ids, i, id) {
		if (json_is_integer(id))
			add_tag(&lines->tags, (uint64_t)json_integer_value(id));
		else if (json_is_string(id))
			add_tag(&lines->tags, hash_name(json_string_value(id)));
		else
			bad_line(lines, "\"hash_ids\" has what is neither a "
					"whole number nor a string");
	}
}

static uint64_t read_time(struct lines *lines, const json_t *time)
{
	double ms = json_number_value(time);

	if (!json_is_number(time))
		bad_line(lines, "no number \"timestamp\"");
	if (!(ms >= 0 && ms < 0x1p53))
		bad_line(lines, "\"timestamp\" is no time in milliseconds");
	return (uint64_t)ms;
}

/* Seconds since the first request: 32 bits hold no more than a life. */
static void add_request(struct lines *lines, uint64_t ms)
{
	if (!lines->begun)
		lines->began_ms = ms;
	lines->begun = true;
	ms = ms > lines->began_ms ? ms - lines->began_ms : 0;
	if (ms / 1000 > UINT32_MAX)
		bad_line(lines, "\"timestamp\" is 136 years after the first "
				"one");
	require(lines->path,
		ucm_replay_trace_add(lines->trace, (uint32_t)(ms / 1000),
				     lines->tags.tags, lines->tags.num));
}

static void read_line(struct lines *lines, const char *text, size_t len)
{
	json_error_t error;
	json_t *object = json_loadb(text, len, 0, &error);
	uint64_t ms;

	if (!object)
		bad_line(lines, error.text);
	if (!json_is_object(object))
		bad_line(lines, "not a JSON object");
	ms = read_time(lines, json_object_get(object, "timestamp"));
	read_blocks(lines, json_object_get(object, "hash_ids"));
	json_decref(object);
	add_request(lines, ms);
}

static void read_lines(const char *path, const char *text, size_t len,
		       struct ucm_replay_trace *trace)
{
	struct lines lines = { .path = path, .trace = trace };
	const char *end = text + len;

	while (text < end) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));

		if (!stop)
			stop = end;
		lines.line++;
		if (stop - text > (ptrdiff_t)strspn(text, " \t\r"))
			read_line(&lines, text, (size_t)(stop - text));
		text = stop + 1;
	}
	free(lines.tags.tags);
}

/* ---- an access trace ---- */

#define GATHERED 64 /* requests side by side */
#define PAUSE_NS UINT64_C(1000000000)
#define LONGEST 4096 /* blocks of a request; more are another one */

struct gathering {
	struct request {
		uint32_t pid;
		uint16_t space;
		bool open;
		uint64_t last_ns;
		struct tags tags;
	} requests[GATHERED];
	uint64_t began_ns;
	const char *path;
	struct ucm_replay_trace *trace;
};

static bool is_use(const struct ucm_trace_view *view,
		   const struct ucm_trace_record *record)
{
	const char *op = ucm_trace_op_name(view, record->op);

	if (!strcmp(op, "lookup"))
		return !record->error || record->error == ENOENT;
	return !record->error && (!strcmp(op, "open") ||
				  !strcmp(op, "commit"));
}

static uint64_t tag_of(const struct ucm_trace_record *record)
{
	uint64_t words[2];

	memcpy(words, record->id.bytes, sizeof(words));
	return words[0] ^ (words[1] << 17 | words[1] >> 47) ^
	       (uint64_t)record->space << 48;
}

static void end_request(struct gathering *gathering, struct request *request)
{
	uint64_t ns = request->last_ns - gathering->began_ns;

	request->open = false;
	require(gathering->path,
		ucm_replay_trace_add(gathering->trace,
				     (uint32_t)(ns / 1000000000),
				     request->tags.tags, request->tags.num));
	request->tags.num = 0;
}

/* Those that have paused, the longest ago first. All: at the end. */
static void end_paused(struct gathering *gathering, uint64_t now_ns, bool all)
{
	for (;;) {
		struct request *oldest = NULL;

		for (unsigned i = 0; i < GATHERED; i++) {
			struct request *request = &gathering->requests[i];

			if (request->open &&
			    (all || request->last_ns + PAUSE_NS < now_ns) &&
			    (!oldest || request->last_ns < oldest->last_ns))
				oldest = request;
		}
		if (!oldest)
			return;
		end_request(gathering, oldest);
	}
}

/* The request that a record belongs to, or a free one; if there is none, the
 * one that has paused longest is ended. */
static struct request *find_request(struct gathering *gathering,
				    const struct ucm_trace_record *record)
{
	struct request *best = &gathering->requests[0];

	for (unsigned i = 0; i < GATHERED; i++) {
		struct request *request = &gathering->requests[i];

		if (request->open && request->pid == record->pid &&
		    request->space == record->space)
			return request;
		if (best->open &&
		    (!request->open || request->last_ns < best->last_ns))
			best = request;
	}
	if (best->open)
		end_request(gathering, best);
	best->pid = record->pid;
	best->space = record->space;
	best->open = true;
	return best;
}

/* A block is looked up, opened and committed; in a request it is one. */
static void add_block(struct request *request, uint64_t tag)
{
	for (size_t i = request->tags.num; i-- > 0;) {
		if (request->tags.tags[i] == tag)
			return;
	}
	add_tag(&request->tags, tag);
}

static void gather(struct gathering *gathering,
		   const struct ucm_trace_record *record)
{
	struct request *request;
	uint64_t now_ns = record->time_ns;

	if (!gathering->began_ns)
		gathering->began_ns = now_ns;
	if (now_ns < gathering->began_ns)
		now_ns = gathering->began_ns;
	end_paused(gathering, now_ns, false);
	request = find_request(gathering, record);
	if (request->tags.num == LONGEST) {
		end_request(gathering, request);
		request->open = true;
	}
	request->last_ns = now_ns;
	add_block(request, tag_of(record));
}

static void read_records(const char *path, const char *bytes, size_t len,
			 struct ucm_replay_trace *trace)
{
	struct gathering gathering = { .path = path, .trace = trace };
	struct ucm_trace_cursor cursor = { 0 };
	struct ucm_trace_record record;
	struct ucm_trace_view view;
	uint64_t lost = 0;
	const char *why;

	if (ucm_trace_parse(bytes, len, &view, &why))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", path, why);
	while (ucm_trace_next(&view, &cursor, &record, &lost)) {
		if (is_use(&view, &record))
			gather(&gathering, &record);
	}
	end_paused(&gathering, 0, true);
	for (unsigned i = 0; i < GATHERED; i++)
		free(gathering.requests[i].tags.tags);
}

void ucm_replay_read(const char *path, struct ucm_replay_trace *trace)
{
	static const char magic[] = "UCMTRACE";
	_cleanup_free_ char *bytes = NULL;
	size_t len;

	require(path, ucm_tool_read(path, SIZE_MAX / 4, &bytes, &len));
	if (len >= strlen(magic) && !memcmp(bytes, magic, strlen(magic)))
		read_records(path, bytes, len, trace);
	else
		read_lines(path, bytes, len, trace);
	if (!trace->num_asked)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: no blocks in %s", path,
			     trace->offered ? "the sample" : "it");
}
