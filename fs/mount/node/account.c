/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.c - what a request leaves when it ends: its time in the
 * statistics, a record in the trace, a line for debugging.
 */
#include <config.h>

#include "fs/mount/node/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/log.h"
#include "hashing/tree.h"

void ucm_account_block(struct ucm_account *account, const struct ucm_key *key)
{
	account->has_block = true;
	account->key = *key;
}

void ucm_account_entry(struct ucm_account *account,
		       const struct ucm_entry *entry)
{
	account->has_block = true;
	account->key.id = entry->id;
	account->key.space = entry->space;
	account->dir = entry->dir;
	account->bytes = entry->size;
}

void ucm_account_ref(struct ucm_account *account, ucm_ref ref)
{
	struct ucm_entry entry;

	if (account->daemon->trace &&
	    ucm_index_get(account->daemon->store->index, ref, &entry))
		ucm_account_entry(account, &entry);
}

void ucm_account_file(struct ucm_account *account,
		      const struct ucm_handle *file)
{
	if (!file->ops->is_block)
		return;
	ucm_account_block(account, &file->key);
	account->dir = file->dir;
	account->bytes = file->size;
}

static uint8_t tier_number(const struct ucm_store *store, uint8_t dir)
{
	return dir == UCM_TRACE_NONE ? UCM_TRACE_NONE
				     : (uint8_t)(store->dirs.tier_of[dir] -
						 store->dirs.tiers);
}

static void trace(const struct ucm_account *account, uint64_t ns, int err)
{
	const struct ucm_daemon *daemon = account->daemon;
	struct ucm_trace_record record = {
		.time_ns = ucm_trace_time(daemon->trace, account->began_ns),
		.id = account->key.id,
		.bytes = account->bytes,
		.duration_ns = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX,
		.pid = account->pid,
		.uid = account->uid,
		.space = account->key.space,
		.error = (uint16_t)-err,
		.op = (uint8_t)account->op,
		.tier = tier_number(daemon->store, account->dir),
		.dir = account->dir,
	};

	ucm_trace_add(daemon->trace, &record);
}

static void debug(const struct ucm_account *account, uint64_t ns, int err)
{
	/* a name that is absent is what lookups are for */
	bool failed = err && !(account->op == UCM_OP_LOOKUP && err == -ENOENT);

	ucm_debug(OP, failed ? 1 : 2, "%s%s%s by %u: %s, %" PRIu64 " ns",
		  ucm_op_names[account->op],
		  account->has_block ? " of block " : "",
		  account->has_block ? ucm_hex(&account->key.id).text : "",
		  (unsigned)account->pid, err ? strerror(-err) : "done", ns);
}

void ucm_account_end(const struct ucm_account *account, int err)
{
	uint64_t ns = (uint64_t)(ucm_monotonic_ns() - account->began_ns);

	ucm_opstats_add(account->daemon->ops, account->op, ns, err);
	if (account->has_block && account->daemon->trace)
		trace(account, ns, err);
	if (ucm_log_debugs(UCM_AREA_OP, 1))
		debug(account, ns, err);
	ucm_handover_give(account->daemon);
}
