/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_layout.h - the bytes of a trace, for those who read and write them;
 * ucm-trace(5) says the same. All numbers are little-endian.
 */
#ifndef UCM_TRACE_LAYOUT_H
#define UCM_TRACE_LAYOUT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>

#define TRACE_MAGIC "UCMTRACE" /* without its NUL */

struct trace_header {
	char magic[8];
	uint32_t version;
	uint32_t header_bytes; /* where the ring begins */
	uint32_t record_bytes;
	uint32_t num_ops;
	uint64_t num_slots;
	uint64_t started_ns;
	uint32_t num_tiers;
	uint32_t names_offset;
	uint32_t names_bytes;
	uint32_t crc; /* of all before it, and of the names */
	uint8_t zero[72];
	/* These change, and have a cache line of their own: */
	uint64_t written;
	uint32_t ended;
	uint32_t zero2;
};
static_assert(offsetof(struct trace_header, num_slots) == 24, "layout");
static_assert(offsetof(struct trace_header, crc) == 52, "layout");
static_assert(offsetof(struct trace_header, written) == 128, "layout");
static_assert(sizeof(struct trace_header) == 144, "layout");

struct trace_record {
	uint64_t seq;
	uint64_t time_ns;
	struct ucm_id id;
	uint64_t bytes;
	uint32_t duration_ns;
	uint32_t pid;
	uint16_t space;
	uint16_t error;
	uint8_t op;
	uint8_t tier;
	uint8_t dir;
	uint8_t zero;
	uint32_t uid;
	uint32_t crc; /* CRC32C of all before it */
};
static_assert(offsetof(struct trace_record, id) == 16, "layout");
static_assert(offsetof(struct trace_record, bytes) == 32, "layout");
static_assert(offsetof(struct trace_record, space) == 48, "layout");
static_assert(offsetof(struct trace_record, uid) == 56, "layout");
static_assert(sizeof(struct trace_record) == 64, "layout");

#endif
