/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - bytes of a trace and what they mean; layout in ucm-trace(5).
 *
 * The reader trusts nothing: a file may come from a version that is not ours,
 * may be cut, and is written to while it is read.
 */
#include <config.h>

#include "fs/watch/trace.h"
#include "fs/watch/trace_layout.h"

#include <errno.h>
#include <string.h>

static bool is_header(const struct trace_header *header)
{
	return !memcmp(header->magic, TRACE_MAGIC, sizeof(header->magic));
}

static bool has_bad_sizes(const struct trace_header *header, size_t len)
{
	return header->header_bytes < UCM_TRACE_HEADER_MIN ||
	       header->header_bytes % UCM_TRACE_HEADER_MIN ||
	       header->header_bytes > len ||
	       header->record_bytes != UCM_TRACE_RECORD_BYTES ||
	       header->num_slots == 0 ||
	       header->names_offset < sizeof(*header) ||
	       header->names_offset > header->header_bytes ||
	       header->names_bytes >
		       header->header_bytes - header->names_offset;
}

/* Exactly so many strings, and nothing after the last. */
static bool has_bad_names(const struct trace_header *header, const char *names)
{
	uint32_t num = 0;

	for (uint32_t i = 0; i < header->names_bytes; i++)
		num += !names[i];
	return header->num_ops > 256 || header->num_tiers > 256 ||
	       num != header->num_ops + header->num_tiers + 1 ||
	       names[header->names_bytes - 1];
}

static uint32_t header_crc(const struct trace_header *header, const char *names)
{
	uint32_t crc = ucm_crc32c(0, header, offsetof(struct trace_header, crc));

	return ucm_crc32c(crc, names, header->names_bytes);
}

static const char *check_header(const struct trace_header *header,
				const char *bytes, size_t len)
{
	const char *names = bytes + header->names_offset;

	if (!is_header(header))
		return "no trace: wrong magic";
	if (header->version != UCM_TRACE_VERSION)
		return "a trace of a version that this program does not know";
	if (has_bad_sizes(header, len) || !header->names_bytes)
		return "header field out of range";
	if (header_crc(header, names) != header->crc)
		return "header checksum differs";
	if (has_bad_names(header, names))
		return "names are not what the header announces";
	return NULL;
}

static const char *name_at(const struct ucm_trace_view *view, unsigned number)
{
	const char *name = view->names;

	while (number--)
		name += strlen(name) + 1;
	return name;
}

int ucm_trace_parse(const void *bytes, size_t len, struct ucm_trace_view *out,
		    const char **why)
{
	struct trace_header header;

	if (len < UCM_TRACE_HEADER_MIN) {
		*why = "no trace: too short";
		return -EINVAL;
	}
	memcpy(&header, bytes, sizeof(header));
	*why = check_header(&header, bytes, len);
	if (*why)
		return -EINVAL;
	*out = (struct ucm_trace_view){
		.records = (const uint8_t *)bytes + header.header_bytes,
		.num_slots = header.num_slots,
		.slots_there = (len - header.header_bytes) /
			       UCM_TRACE_RECORD_BYTES,
		.started_ns = header.started_ns,
		.written = header.written,
		.ended = header.ended,
		.num_ops = header.num_ops,
		.num_tiers = header.num_tiers,
		.names = (const char *)bytes + header.names_offset,
	};
	if (out->slots_there > out->num_slots)
		out->slots_there = out->num_slots;
	out->mount = name_at(out, out->num_ops + out->num_tiers);
	return 0;
}

const char *ucm_trace_op_name(const struct ucm_trace_view *view, unsigned op)
{
	return op < view->num_ops ? name_at(view, op) : "?";
}

const char *ucm_trace_tier_name(const struct ucm_trace_view *view,
				unsigned tier)
{
	return tier < view->num_tiers ? name_at(view, view->num_ops + tier)
				      : "?";
}

/* ---- records ---- */

void ucm_trace_encode(const struct ucm_trace_record *record,
		      uint64_t words[UCM_TRACE_RECORD_BYTES / 8])
{
	struct trace_record bytes = {
		.seq = record->seq,
		.time_ns = record->time_ns,
		.id = record->id,
		.bytes = record->bytes,
		.duration_ns = record->duration_ns,
		.pid = record->pid,
		.uid = record->uid,
		.space = record->space,
		.error = record->error,
		.op = record->op,
		.tier = record->tier,
		.dir = record->dir,
	};

	bytes.crc = ucm_crc32c(0, &bytes, offsetof(struct trace_record, crc));
	memcpy(words, &bytes, sizeof(bytes));
}

/* The record in a slot. False: it was never written, or is not whole. */
static bool trace_slot(const struct ucm_trace_view *view, uint64_t slot,
		       struct ucm_trace_record *out)
{
	struct trace_record bytes;

	if (slot >= view->slots_there)
		return false;
	memcpy(&bytes, view->records + slot * UCM_TRACE_RECORD_BYTES,
	       sizeof(bytes));
	if (bytes.seq == 0 || (bytes.seq - 1) % view->num_slots != slot ||
	    ucm_crc32c(0, &bytes, offsetof(struct trace_record, crc)) !=
		    bytes.crc)
		return false;
	*out = (struct ucm_trace_record){
		.seq = bytes.seq,
		.time_ns = bytes.time_ns,
		.id = bytes.id,
		.bytes = bytes.bytes,
		.duration_ns = bytes.duration_ns,
		.pid = bytes.pid,
		.uid = bytes.uid,
		.space = bytes.space,
		.error = bytes.error,
		.op = bytes.op,
		.tier = bytes.tier,
		.dir = bytes.dir,
	};
	return true;
}

static void begin(const struct ucm_trace_view *view,
		  struct ucm_trace_cursor *cursor)
{
	struct ucm_trace_record record;
	uint64_t last = 0;

	for (uint64_t slot = 0; slot < view->slots_there; slot++) {
		if (trace_slot(view, slot, &record) && record.seq > last)
			last = record.seq;
	}
	*cursor = (struct ucm_trace_cursor){
		.begun = true,
		.last = last,
		.slot = last % view->num_slots, /* the oldest, if it is full */
	};
}

/* The next slot in the order of writing: from after the newest to the end,
 * then from the start to the newest. */
static bool next_slot(const struct ucm_trace_view *view,
		      struct ucm_trace_cursor *cursor, uint64_t *slot)
{
	uint64_t newest = (cursor->last - 1) % view->num_slots;

	if (!cursor->turned && cursor->slot >= view->slots_there) {
		cursor->turned = true;
		cursor->slot = 0;
	}
	if (cursor->turned && (cursor->slot > newest ||
			       cursor->slot >= view->slots_there))
		return false;
	/* the ring's last slot is the newest: all lie in one row */
	if (!cursor->turned && newest == view->num_slots - 1)
		cursor->turned = true;
	*slot = cursor->slot++;
	return true;
}

/* Of this round or the one before, and after what came before? An older one
 * stands where a later one was lost. */
static bool is_in_order(const struct ucm_trace_view *view,
			const struct ucm_trace_cursor *cursor, uint64_t seq)
{
	return cursor->last - seq < view->num_slots && seq > cursor->before;
}

bool ucm_trace_next(const struct ucm_trace_view *view,
		    struct ucm_trace_cursor *cursor,
		    struct ucm_trace_record *out, uint64_t *lost)
{
	struct ucm_trace_record record;
	uint64_t slot;

	if (!cursor->begun)
		begin(view, cursor);
	if (!cursor->last)
		return false;
	while (next_slot(view, cursor, &slot)) {
		if (!trace_slot(view, slot, &record) ||
		    !is_in_order(view, cursor, record.seq))
			continue;
		if (cursor->before)
			*lost += record.seq - cursor->before - 1;
		cursor->before = record.seq;
		*out = record;
		return true;
	}
	return false;
}
