/* SPDX-License-Identifier: Apache-2.0 */
/*
 * motion_fixture.h - blocks by number, where they are, and what their
 * directories count.
 */
#ifndef UCM_TESTS_MOTION_FIXTURE_H
#define UCM_TESTS_MOTION_FIXTURE_H

#include "fs/store/motion/motion.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192u /* of a block of FX_PAGED */

#define FILES 24u /* of fx_files that are used */

static inline ucm_ref ref_of(unsigned i)
{
	ucm_ref ref;

	must(ucm_index_find(fx_set->index, &fx_files[i].key, NULL, &ref));
	return ref;
}

static inline struct ucm_entry entry_of(unsigned i)
{
	struct ucm_entry entry;

	must(ucm_index_find(fx_set->index, &fx_files[i].key, &entry, NULL));
	return entry;
}

static inline bool is_there(unsigned i)
{
	return ucm_index_find(fx_set->index, &fx_files[i].key, NULL, NULL);
}

static inline void set_used(struct ucm_entry *entry, void *arg)
{
	entry->atime_s = *(const uint32_t *)arg;
}

/* i was last used so many seconds ago. */
static inline void age(unsigned i, uint32_t seconds)
{
	uint32_t then = ucm_value_now() - seconds;

	must(ucm_index_edit(fx_set->index, ref_of(i), set_used, &then));
}

static inline int copy_to(unsigned i, unsigned tier, bool first)
{
	const struct ucm_move_terms move = {
		.to = &fx_set->dirs.tiers[tier],
		.first = first,
	};

	return ucm_store_copy(fx_set, ref_of(i), &move, NULL);
}

static inline int drop(unsigned i, unsigned dir)
{
	return ucm_store_drop_place(fx_set, ref_of(i), dir, NULL);
}

static inline bool lies_in(const char *dir, unsigned i)
{
	return fx_exists(fx_path("%s/blocks/%s", dir, fx_name(&fx_files[i])));
}

/* What each directory counts is what the index has. */
static inline void sums_are_right(void)
{
	uint64_t blocks[3] = {0}, alone[3] = {0};

	for (unsigned i = 0; i < FILES; i++) {
		struct ucm_entry entry;

		if (!ucm_index_find(fx_set->index, &fx_files[i].key, &entry,
				    NULL))
			continue;
		blocks[entry.dir]++;
		if (entry.copy)
			blocks[entry.copy - 1]++;
		else
			alone[entry.dir]++;
	}
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++) {
		const struct ucm_medium *medium = fx_set->dirs.at[dir];

		ck_assert_uint_eq(medium->blocks, blocks[dir]);
		ck_assert_uint_eq(medium->alone, alone[dir]);
		ck_assert_uint_eq(medium->used, blocks[dir] * BYTES);
		ck_assert_uint_eq(medium->alone_bytes, alone[dir] * BYTES);
		ck_assert_uint_eq(medium->writing, 0);
	}
}

static inline void wait_until(bool (*done)(void *arg))
{
	fx_wait(done, NULL);
}

/* ---- room ---- */

static inline int evict_bytes(unsigned dir, uint64_t bytes,
			      enum ucm_eviction how)
{
	uint64_t freed;

	return ucm_evict_bytes(fx_set, dir, bytes, how, NULL, &freed);
}

#endif
