/* SPDX-License-Identifier: Apache-2.0 */
/* tier.c - the directories of one tier; see tier.h. */
#include <config.h>

#include "fs/tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/align.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "hashing/name.h"

/* A directory that failed is tried again after this. */
#define RETRY_S 10

static int64_t now_s(void)
{
	return ucm_monotonic_ms() / 1000;
}

int ucm_tier_open(struct ucm_tier *tier, const struct ucm_tier_config *config,
		  unsigned first, const struct ucm_config *store,
		  struct ucm_complaint *complaint)
{
	int err = 0;

	*tier = (struct ucm_tier){
		.first = first,
		.limit = config->limit,
		.limit_percent = config->limit_percent,
		.readonly = config->readonly,
	};
	memcpy(tier->name, config->name, sizeof(tier->name));
	tier->dirs = calloc(config->num_dirs, sizeof(*tier->dirs));
	tier->uuids = calloc(config->num_dirs, sizeof(*tier->uuids));
	if (!tier->dirs || !tier->uuids)
		err = -ENOMEM;
	for (unsigned i = 0; i < config->num_dirs && !err; i++) {
		err = ucm_backing_open(&tier->dirs[i], config->dirs[i],
				       config->readonly, store, complaint);
		if (err)
			break;
		memcpy(tier->uuids[i], tier->dirs[i].uuid, 16);
		tier->num_dirs++;
	}
	if (err)
		ucm_tier_close(tier, false);
	return err;
}

void ucm_tier_close(struct ucm_tier *tier, bool clean)
{
	for (unsigned i = 0; i < tier->num_dirs; i++)
		ucm_backing_close(&tier->dirs[i], clean);
	free(tier->dirs);
	free(tier->uuids);
	*tier = (struct ucm_tier){ 0 };
}

void ucm_backing_failed(struct ucm_backing *backing, const char *what, int err)
{
	switch (err) {
	case -EIO: case -EROFS: case -ENOSPC: case -EDQUOT: case -ESTALE:
	case -ENOENT: case -ENOTCONN: case -ETIMEDOUT: case -EACCES:
		atomic_store(&backing->retry_s, now_s() + RETRY_S);
		break;
	default:
		break;
	}
	ucm_error("%s: %s: %s", backing->path, what, strerror(-err));
}

static bool has_room(struct ucm_backing *backing, uint64_t bytes)
{
	struct statvfs st;

	/* a lookup server and a full disk are told apart by the next write */
	if (ucm_os_statvfs(backing->dirfd, &st))
		return false;
	if (st.f_files && !st.f_favail)
		return false;
	return (uint64_t)st.f_bavail * st.f_frsize >= bytes + st.f_frsize;
}

static uint64_t turn_of(struct ucm_tier *tier, enum ucm_policy policy)
{
	uint64_t turn = 0;

	if (policy == UCM_POLICY_ROUND_ROBIN)
		return atomic_fetch_add(&tier->turns, 1);
	if (policy == UCM_POLICY_RANDOM &&
	    getrandom(&turn, sizeof(turn), 0) < 0)
		turn = atomic_fetch_add(&tier->turns, 1);
	return turn;
}

int ucm_tier_choose(struct ucm_tier *tier, enum ucm_policy policy,
		    const struct ucm_id *id, uint64_t bytes,
		    struct ucm_backing **out)
{
	uint8_t order[UCM_MAX_DIRS];
	int64_t now;

	if (tier->readonly)
		return -EROFS;
	if (ucm_tier_used(tier) + atomic_load(&tier->writing) + bytes >
	    ucm_tier_limit_bytes(tier)) {
		ucm_debug(TIER, 2, "block %s: not in tier %s: its limit",
			  ucm_hex(id).text, tier->name);
		return -ENOSPC;
	}
	ucm_placement_order(policy, (const uint8_t(*)[16])tier->uuids,
			    tier->num_dirs, id, turn_of(tier, policy), order);
	now = now_s();
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		struct ucm_backing *backing = &tier->dirs[order[i]];

		if (atomic_load(&backing->retry_s) > now ||
		    !has_room(backing, bytes)) {
			ucm_debug(TIER, 2, "block %s: not in %s: %s",
				  ucm_hex(id).text, backing->path,
				  atomic_load(&backing->retry_s) > now
					  ? "it failed lately"
					  : "no room");
			continue;
		}
		*out = backing;
		return 0;
	}
	return -ENOSPC;
}

/* Two directories on one file system share its space. */
static bool counted_before(const struct ucm_tier *tier, unsigned number)
{
	for (unsigned i = 0; i < number; i++) {
		if (tier->dirs[i].dev == tier->dirs[number].dev)
			return true;
	}
	return false;
}

static void raw_space(const struct ucm_tier *tier, uint64_t *total_out,
		      uint64_t *free_out)
{
	*total_out = *free_out = 0;
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		struct statvfs st;

		if (counted_before(tier, i) ||
		    ucm_os_statvfs(tier->dirs[i].dirfd, &st))
			continue;
		*total_out += (uint64_t)st.f_blocks * st.f_frsize;
		*free_out += (uint64_t)st.f_bavail * st.f_frsize;
	}
}

uint64_t ucm_file_takes(const struct stat *st)
{
	uint64_t unit = st->st_blksize > 0 ? (uint64_t)st->st_blksize : 512;
	uint64_t most = ucm_round_up_to((uint64_t)st->st_size, unit);
	uint64_t now = (uint64_t)st->st_blocks * 512;

	return now < most ? now : most;
}

uint64_t ucm_tier_files(const struct ucm_tier *tier)
{
	int64_t files = atomic_load(&tier->files);

	return files > 0 ? (uint64_t)files : 0;
}

uint64_t ucm_tier_used(const struct ucm_tier *tier)
{
	return atomic_load(&tier->used) + ucm_tier_files(tier);
}

uint64_t ucm_tier_limit_bytes(const struct ucm_tier *tier)
{
	uint64_t total, unused;

	if (!tier->limit)
		return UINT64_MAX;
	if (!tier->limit_percent)
		return tier->limit;
	raw_space(tier, &total, &unused);
	return total / 100 * tier->limit;
}

void ucm_tier_space(const struct ucm_tier *tier, uint64_t *total_out,
		    uint64_t *free_out)
{
	uint64_t limit = ucm_tier_limit_bytes(tier);
	uint64_t used = ucm_tier_used(tier);

	raw_space(tier, total_out, free_out);
	if (limit < *total_out) {
		uint64_t left = limit > used ? limit - used : 0;

		*total_out = limit;
		if (left < *free_out)
			*free_out = left;
	}
}
