/* SPDX-License-Identifier: Apache-2.0 */
/* index_fixture.h - an index, and entries whose names follow from numbers. */
#ifndef UCM_TESTS_INDEX_FIXTURE_H
#define UCM_TESTS_INDEX_FIXTURE_H

#include "fs/index/index.h"

#include <string.h>

#include "fs/index/memory.h"
#include "fs/index/shard.h"
#include "tests/unit/unit.h"

static struct ucm_index *ix;

static inline void setup(void)
{
	ck_assert_int_eq(ucm_index_new(&ix), 0);
}

static inline void teardown(void)
{
	ucm_index_free(ix);
}

static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static inline struct ucm_entry entry_of(unsigned number, uint16_t space)
{
	uint64_t words[2] = { mix(number), mix(number + 1000003) };
	struct ucm_entry entry = { .size = 4096 + number, .space = space,
				   .dir = 3, .blocks = 8 };

	memcpy(entry.id.bytes, words, sizeof(words));
	return entry;
}

static inline struct ucm_key key_of(const struct ucm_entry *entry)
{
	return (struct ucm_key){ .id = entry->id, .space = entry->space };
}

static inline void set_uses(struct ucm_entry *entry, void *arg)
{
	entry->uses = *(uint32_t *)arg;
}

static inline unsigned count_bucket(uint16_t space, unsigned bucket)
{
	struct ucm_entry entry;
	uint32_t cursor = 0;
	unsigned num = 0;
	ucm_ref ref;

	while (ucm_index_next(ix, space, bucket, &cursor, &entry, &ref)) {
		struct ucm_entry out;

		ck_assert_uint_eq(entry.space, space);
		ck_assert_uint_eq(entry.id.bytes[0], bucket);
		ck_assert(ucm_index_get(ix, ref, &out));
		ck_assert_mem_eq(&out.id, &entry.id, sizeof(out.id));
		num++;
	}
	return num;
}

static inline struct ucm_entry crowd_of(unsigned number, uint16_t space)
{
	struct ucm_entry entry = entry_of(number, space);

	entry.id.bytes[0] = 0x07;
	return entry;
}

/* ---- hidden spaces ---- */

/* Does the memory that others map have these 16 bytes anywhere? */
static inline bool is_seen(const struct ucm_entry *entry)
{
	struct ucm_index_memory *live = ucm_index_live(ix);

	return memmem(live->base, ucm_index_memory_size(live), entry->id.bytes,
		      sizeof(entry->id)) != NULL;
}

#endif
