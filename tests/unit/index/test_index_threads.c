/* SPDX-License-Identifier: Apache-2.0 */
/* test_index_threads.c - many threads at one index. */
#include <config.h>

#include "fs/index/index.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "fs/index/shard.h"
#include "tests/unit/index/index_fixture.h"
#include "tests/unit/random.h"

static _Atomic unsigned walk; /* odd: one is under way */
static _Atomic unsigned served;

/* Counts the calls that came and went within one walk. */
static void *ask_meanwhile(void *arg)
{
	ucm_ref ref = *(ucm_ref *)arg;
	struct ucm_entry entry;

	while (atomic_load(&served) < 20) {
		unsigned began = atomic_load(&walk);

		if (!ucm_index_get(ix, ref, &entry))
			return "the entry is gone";
		if (began & 1 && atomic_load(&walk) == began)
			atomic_fetch_add(&served, 1);
	}
	return NULL;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(others_come_first_while_a_space_is_listed)
{
	struct ucm_entry entry;
	pthread_t thread;
	unsigned walks = 0;
	void *wrong;
	ucm_ref ref;

	for (unsigned i = 0; i < 200000; i++) {
		entry = crowd_of(i, 0);
		must(!ucm_index_add(ix, &entry, NULL, &ref));
	}
	atomic_store(&walk, 0);
	atomic_store(&served, 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, ask_meanwhile, &ref), 0);
	while (atomic_load(&served) < 20 && walks++ < 200) {
		uint32_t cursor = 0;

		atomic_fetch_add(&walk, 1);
		must(!ucm_index_next(ix, 1, 7, &cursor, &entry, NULL));
		atomic_fetch_add(&walk, 1);
	}
	ck_assert_uint_ge(atomic_load(&served), 20);
	pthread_join(thread, &wrong);
	ck_assert_msg(!wrong, "%s", (char *)wrong);
}

#define THREADS 4
#define ROUNDS 20000
#define NAMES 512 /* shared by all threads */

static _Atomic uint64_t adds, removes;

static void *hammer(void *arg)
{
	uint64_t seed = random_case((unsigned)(uintptr_t)arg);

	for (unsigned i = 0; i < ROUNDS; i++) {
		struct ucm_entry entry, above, out;
		struct ucm_key key;
		uint32_t uses = i, cursor = 0;
		ucm_ref ref;

		seed = mix(seed);
		entry = entry_of((unsigned)(seed % NAMES), 0);
		above = entry_of((unsigned)(seed >> 40) % NAMES, 0);
		key = key_of(&entry);
		switch (seed >> 32 & 3) {
		case 0:
			adds += ucm_index_add(ix, &entry, &above.id,
						    NULL) == 0;
			break;
		case 1:
			if (ucm_index_find(ix, &key, &out, &ref))
				removes += ucm_index_remove(ix, ref, NULL);
			break;
		case 2:
			if (ucm_index_find(ix, &key, &out, &ref)) {
				if (out.size != entry.size)
					return "wrong entry found";
				if (ucm_index_edit(ix, ref, set_uses, &uses) &&
				    ucm_index_get(ix, ref, &out) &&
				    memcmp(&out.id, &entry.id, sizeof(out.id)))
					return "reference led elsewhere";
			}
			break;
		default:
			while (ucm_index_next(ix, 0, entry.id.bytes[0],
					      &cursor, &out, NULL)) {
				if (out.id.bytes[0] != entry.id.bytes[0])
					return "entry of another bucket";
			}
			break;
		}
	}
	return NULL;
}

/* By name, of all entries that there are. */
static void count_all_children(uint32_t told[NAMES], uint32_t counted[NAMES])
{
	for (unsigned i = 0; i < NAMES; i++) {
		struct ucm_entry entry = entry_of(i, 0), out;
		struct ucm_key key = key_of(&entry);
		struct ucm_id parent;
		ucm_ref ref;

		if (!ucm_index_find(ix, &key, &out, &ref))
			continue;
		told[i] = out.children;
		if (!ucm_index_parent(ix, ref, &parent))
			continue;
		for (unsigned k = 0; k < NAMES; k++) {
			struct ucm_entry above = entry_of(k, 0);

			counted[k] += !memcmp(&above.id, &parent,
					      sizeof(parent));
		}
	}
}

UNIT_TEST(threads_agree_on_who_added_and_who_removed)
{
	static uint32_t told[NAMES], counted[NAMES];
	pthread_t threads[THREADS];
	uint64_t left = 0;

	for (uintptr_t i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer,
						(void *)(i + 1)), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		void *wrong;

		pthread_join(threads[i], &wrong);
		ck_assert_msg(!wrong, "%s", (char *)wrong);
	}
	for (unsigned bucket = 0; bucket < 256; bucket++)
		left += count_bucket(0, bucket);
	ck_assert_uint_eq(adds - removes, left);
	ck_assert_uint_gt(removes, 1000);
	count_all_children(told, counted);
	for (unsigned i = 0; i < NAMES; i++) {
		struct ucm_entry entry = entry_of(i, 0);
		struct ucm_key key = key_of(&entry);

		must(told[i] == counted[i] ||
		     !ucm_index_find(ix, &key, NULL, NULL));
	}
}
