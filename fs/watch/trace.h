/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - the access trace: a ring of records in a file.
 *
 * The daemon maps the file and adds records; the kernel writes it back, so
 * what was added is there also after the daemon was killed. Whoever reads it,
 * meanwhile or later, reads bytes: each record has a checksum, and one that is
 * half written, or that two threads wrote into at once because the ring had
 * gone round, is not taken for one. Layout: ucm-trace(5).
 */
#ifndef UCM_TRACE_H
#define UCM_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>

#define UCM_TRACE_VERSION 1u
#define UCM_TRACE_RECORD_BYTES 64u
#define UCM_TRACE_HEADER_MIN 4096u /* and a multiple of it */
#define UCM_TRACE_SIZE_MIN 65536u  /* of the ring */
#define UCM_TRACE_NONE 0xffu       /* no tier, no directory */

struct ucm_trace_record {
	uint64_t seq;     /* 1, 2, 3, ... in the order of their ends */
	uint64_t time_ns; /* when it began, since the epoch */
	struct ucm_id id;
	uint64_t bytes;   /* size of the block, or bytes moved; 0: not known */
	uint32_t duration_ns; /* UINT32_MAX: that or more */
	uint32_t pid;     /* who asked; 0: not known */
	uint32_t uid;
	uint16_t space;   /* its number in this mount; 0: blocks/ */
	uint16_t error;   /* errno; 0: it succeeded */
	uint8_t op;       /* number of its name in the file */
	uint8_t tier;     /* likewise, or UCM_TRACE_NONE */
	uint8_t dir;      /* directory's number in the mount, or UCM_TRACE_NONE */
};

/* ---- reading; pure, any bytes will do ---- */

/* A trace as it lies in memory; points into the caller's bytes. */
struct ucm_trace_view {
	const uint8_t *records;
	uint64_t num_slots;   /* of the ring */
	uint64_t slots_there; /* fewer, if the file was cut */
	uint64_t started_ns;  /* since the epoch */
	uint64_t written;     /* records so far: the last one's seq */
	bool ended;           /* the mount was ended well */
	unsigned num_ops, num_tiers;
	const char *mount;
	const char *names; /* those of operations, then tiers, then the mount */
};

/* 0 and a view, or -EINVAL and why. */
int ucm_trace_parse(const void *bytes, size_t len, struct ucm_trace_view *out,
		    const char **why);

/* Names by number; "?" for one that the file does not have. */
const char *ucm_trace_op_name(const struct ucm_trace_view *view, unsigned op);
const char *ucm_trace_tier_name(const struct ucm_trace_view *view,
				unsigned tier);

/*
 * All that are whole, in order. *cursor is 0 to begin with; false at the end.
 * *lost grows by those in between that are not there: half written,
 * overwritten by later ones while the file was read, or in a part that was cut
 * off. Those before the first do not count.
 */
struct ucm_trace_cursor {
	uint64_t slot;         /* to look at next */
	uint64_t last, before; /* seq of the newest, and of the one before */
	bool begun, turned;
};
bool ucm_trace_next(const struct ucm_trace_view *view,
		    struct ucm_trace_cursor *cursor,
		    struct ucm_trace_record *out, uint64_t *lost);

/* ---- writing ---- */

/* A record as bytes, with its checksum. */
void ucm_trace_encode(const struct ucm_trace_record *record,
		      uint64_t words[UCM_TRACE_RECORD_BYTES / 8]);

struct ucm_trace;

struct ucm_trace_names {
	const char *const *ops;
	unsigned num_ops;
	const char *const *tiers;
	unsigned num_tiers;
	const char *mount;
};

/*
 * Make the file, with a ring of about size bytes, all of it allocated. A trace
 * that has the name becomes FILE.old; -EEXIST if it is something else.
 */
int ucm_trace_open(const char *path, uint64_t size,
		   const struct ucm_trace_names *names,
		   struct ucm_trace **out);

/* Says in the file that this is the end. NULL is harmless. */
void ucm_trace_close(struct ucm_trace *trace);

/* The time for a record, from one of CLOCK_MONOTONIC. */
uint64_t ucm_trace_time(const struct ucm_trace *trace, int64_t monotonic_ns);

/* Add a record; seq is given here. Any thread, no lock, no system call. */
void ucm_trace_add(struct ucm_trace *trace, struct ucm_trace_record *record);

uint64_t ucm_trace_added(const struct ucm_trace *trace);

#endif
