/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.c - what a request leaves behind when it ends: its time in the
 * statistics, a record in the trace, a line for debugging.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/log.h"
#include "hashing/tree.h"

void ucm_account_block(struct ucm_account *event, const struct ucm_key *key)
{
	event->has_block = true;
	event->key = *key;
}

void ucm_account_entry(struct ucm_account *event, const struct ucm_entry *entry)
{
	event->has_block = true;
	event->key = (struct ucm_key){ .id = entry->id, .space = entry->space };
	event->dir = entry->dir;
	event->bytes = entry->size;
}

void ucm_account_ref(struct ucm_account *event, ucm_ref ref)
{
	struct ucm_entry entry;

	if (event->daemon->trace &&
	    ucm_index_get(event->daemon->set->index, ref, &entry))
		ucm_account_entry(event, &entry);
}

static uint8_t tier_number(const struct ucm_store *set, uint8_t dir)
{
	return dir == UCM_TRACE_NONE
		       ? UCM_TRACE_NONE
		       : (uint8_t)(set->tier_of[dir] - set->tiers);
}

static void trace(const struct ucm_account *event, uint64_t ns, int err)
{
	const struct ucm_daemon *daemon = event->daemon;
	struct ucm_trace_record record = {
		.time_ns = ucm_trace_time(daemon->trace, event->began_ns),
		.id = event->key.id,
		.bytes = event->bytes,
		.duration_ns = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX,
		.pid = event->pid,
		.uid = event->uid,
		.space = event->key.space,
		.error = (uint16_t)-err,
		.op = (uint8_t)event->op,
		.tier = tier_number(daemon->set, event->dir),
		.dir = event->dir,
	};

	ucm_trace_add(daemon->trace, &record);
}

static void debug(const struct ucm_account *event, uint64_t ns, int err)
{
	/* a name that is absent is what lookups are for */
	bool failed = err && !(event->op == UCM_OP_LOOKUP && err == -ENOENT);

	ucm_debug(OP, failed ? 1 : 2, "%s%s%s by %u: %s, %" PRIu64 " ns",
		  ucm_op_names[event->op], event->has_block ? " of block " : "",
		  event->has_block ? ucm_hex(&event->key.id).text : "",
		  (unsigned)event->pid, err ? strerror(-err) : "done", ns);
}

void ucm_account_end(const struct ucm_account *event, int err)
{
	uint64_t ns = (uint64_t)(ucm_monotonic_ns() - event->began_ns);

	ucm_opstats_add(event->daemon->ops, event->op, ns, err);
	if (event->has_block && event->daemon->trace)
		trace(event, ns, err);
	if (ucm_log_debugs(UCM_AREA_OP, 1))
		debug(event, ns, err);
}

void ucm_account_reply(fuse_req_t req, const struct ucm_account *event, int err)
{
	ucm_account_end(event, err);
	fuse_reply_err(req, -err);
}
