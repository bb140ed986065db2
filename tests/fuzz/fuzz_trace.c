/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_trace.c - a trace of any bytes: refused with a reason, or decoded to
 * records in order, no more than there is room for, and printed.
 *
 * The first byte of the input says which checksums are made right first.
 */
#include <config.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fs/watch/trace.h"
#include "fs/watch/trace_layout.h"
#include "tests/fuzz/require.h"
#include "tools/trace/print.h"

#define SEAL_HEADER 1u
#define SEAL_RECORDS 2u

static void seal_header(uint8_t *bytes, size_t len)
{
	struct trace_header header;
	uint32_t crc;

	if (len < sizeof(header))
		return;
	memcpy(&header, bytes, sizeof(header));
	if (header.names_offset > len ||
	    header.names_bytes > len - header.names_offset)
		return;
	crc = ucm_crc32c(0, bytes, offsetof(struct trace_header, crc));
	crc = ucm_crc32c(crc, bytes + header.names_offset, header.names_bytes);
	memcpy(bytes + offsetof(struct trace_header, crc), &crc, sizeof(crc));
}

static void seal_records(uint8_t *bytes, size_t len)
{
	for (size_t at = UCM_TRACE_HEADER_MIN;
	     at + sizeof(struct trace_record) <= len;
	     at += sizeof(struct trace_record)) {
		size_t crc_at = offsetof(struct trace_record, crc);
		uint32_t crc = ucm_crc32c(0, bytes + at, crc_at);

		memcpy(bytes + at + crc_at, &crc, sizeof(crc));
	}
}

static void decode(const struct ucm_trace_view *view)
{
	struct ucm_trace_cursor cursor = { 0 };
	struct ucm_trace_record record;
	uint64_t num = 0, lost = 0, before = 0;
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	REQUIRE(out);
	while (ucm_trace_next(view, &cursor, &record, &lost)) {
		REQUIRE(record.seq > before);
		REQUIRE(++num <= view->slots_there);
		before = record.seq;
		ucm_trace_print_text(view, &record, out);
		REQUIRE(!ucm_trace_print_json(view, &record, out));
	}
	REQUIRE(!fclose(out));
	for (size_t i = 0; i < len; i++) /* whatever the names are */
		REQUIRE((text[i] >= ' ' && text[i] < 127) || text[i] == '\n');
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ucm_trace_view view;
	const char *why = NULL;
	uint8_t *bytes;

	if (size < 1)
		return 0;
	bytes = malloc(size); /* exactly: what is behind it is found */
	REQUIRE(bytes);
	memcpy(bytes, data + 1, size - 1);
	if (data[0] & SEAL_HEADER)
		seal_header(bytes, size - 1);
	if (data[0] & SEAL_RECORDS)
		seal_records(bytes, size - 1);
	bytes = realloc(bytes, size > 1 ? size - 1 : 1);
	REQUIRE(bytes);
	if (ucm_trace_parse(bytes, size - 1, &view, &why))
		REQUIRE(why && *why);
	else
		decode(&view);
	free(bytes);
	return 0;
}
