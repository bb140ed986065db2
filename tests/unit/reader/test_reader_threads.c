/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reader_threads.c - readers beside writers.
 *
 * Readers look where the writers write, in one mapping, so that a build with
 * --enable-tsan sees every pair of accesses; and through mappings of their own,
 * as another process does. Some entries stay, some come in order, some come, go
 * and are rewritten all the time, some never are.
 */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "tests/unit/random.h"
#include "tests/unit/reader_fixture.h"

#define WRITERS 2
#define READERS 3 /* the last one maps for itself */
#define STAY 512u
#define COME 40000u  /* of each writer, in order */
#define CHANGE 64u   /* of each writer, by chance */
#define ROUNDS 300000u

/* Numbers: 0 .. STAY, then each writer's; from NEVER on nobody's. */
#define FIRST_OF(writer) (1000000u * ((writer) + 1))
#define CHANGING_OF(writer) (FIRST_OF(writer) + 500000u)
#define NEVER 100000000u

static struct ucm_index *ix;
static _Atomic uint32_t there[WRITERS]; /* that have come so far */
static _Atomic unsigned writing;
static _Atomic uint64_t answers;

static void rewrite(struct ucm_entry *entry, void *arg)
{
	entry->size += 1 - 2 * (entry->size & 1);
	entry->dir = (uint8_t)(entry->size % RF_DIRS);
	(void)arg;
}

static void change_one(uint64_t n, uint64_t how)
{
	struct ucm_key key = { .id = rf_id(n) };
	ucm_ref ref;

	if (!ucm_index_find(ix, &key, NULL, &ref))
		rf_add(ix, n);
	else if (how & 1)
		must(ucm_index_remove(ix, ref, NULL));
	else if (how & 2)
		must(ucm_index_edit(ix, ref, rewrite, NULL));
	else
		ucm_index_flag(ix, ref, UCM_ENTRY_PINNED, how & 4);
}

static void *write_main(void *arg)
{
	unsigned writer = (unsigned)(uintptr_t)arg;
	uint64_t seed = random_case(writer);

	for (unsigned i = 0; i < ROUNDS; i++) {
		seed = rf_mix(seed);
		change_one(CHANGING_OF(writer) + seed % CHANGE, seed >> 32);
		if (i < COME) {
			rf_add(ix, FIRST_OF(writer) + i);
			atomic_store(&there[writer], i + 1);
		}
	}
	atomic_fetch_sub(&writing, 1);
	return NULL;
}

/* ---- what a reader must see ---- */

static const char *check_staying(struct ucm_index_reader *reader)
{
	struct ucm_id ids[STAY];
	size_t count;
	int unknown;

	for (unsigned i = 0; i < STAY; i++)
		ids[i] = rf_id(i);
	if (ucm_index_prefix(reader, ids, STAY, &count, &unknown))
		return "an error";
	/* a shard that is being written to all the time may be unknown */
	return count == STAY || unknown ? NULL : "one that stays is absent";
}

static const char *check_coming(struct ucm_index_reader *reader,
				unsigned writer, uint64_t seed)
{
	uint32_t num = atomic_load(&there[writer]);

	for (unsigned i = 0; num && i < 32; i++) {
		uint64_t n = FIRST_OF(writer) + (i < 16 ? num - 1 - i % num
							: (seed >> i) % num);

		if (rf_ask(reader, n) == 'n')
			return "one that has come is absent";
	}
	return NULL;
}

static const char *check_changing(struct ucm_index_reader *reader,
				  unsigned writer)
{
	for (unsigned i = 0; i < CHANGE; i++) {
		uint64_t n = CHANGING_OF(writer) + i;
		struct ucm_index_entry entry;
		struct ucm_id id = rf_id(n);
		int err = ucm_index_entry(reader, &id, &entry);

		if (err && err != -ENOENT && err != -EAGAIN)
			return "an error";
		if (!err && !rf_is_whole(&entry, n))
			return "half an entry";
		if (rf_ask(reader, NEVER + i) == 'y')
			return "one that nobody made";
	}
	return NULL;
}

static const char *read_all(struct ucm_index_reader *reader)
{
	const char *wrong = NULL;
	uint64_t seed = random_case(WRITERS);

	do {
		wrong = check_staying(reader);
		for (unsigned i = 0; i < WRITERS && !wrong; i++) {
			seed = rf_mix(seed);
			wrong = check_coming(reader, i, seed);
			if (!wrong)
				wrong = check_changing(reader, i);
		}
		atomic_fetch_add(&answers, 1);
	} while (!wrong && atomic_load(&writing));
	return wrong;
}

static void *read_main(void *arg)
{
	unsigned number = (unsigned)(uintptr_t)arg;
	struct ucm_index_reader *reader =
		number == READERS - 1 ? rf_reader(ix) : rf_borrower(ix);
	const char *wrong = read_all(reader);

	ucm_index_close(reader);
	return (void *)wrong;
}

UNIT_FIXTURE(.timeout = 240);

UNIT_TEST(readers_see_what_is_there_and_nothing_else)
{
	pthread_t writers[WRITERS], readers[READERS];

	ix = rf_index();
	for (unsigned i = 0; i < STAY; i++)
		rf_add(ix, i);
	atomic_store(&writing, WRITERS);
	for (uintptr_t i = 0; i < WRITERS; i++)
		ck_assert_int_eq(pthread_create(&writers[i], NULL, write_main,
						(void *)i), 0);
	for (uintptr_t i = 0; i < READERS; i++)
		ck_assert_int_eq(pthread_create(&readers[i], NULL, read_main,
						(void *)i), 0);
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(writers[i], NULL);
	for (unsigned i = 0; i < READERS; i++) {
		void *wrong;

		pthread_join(readers[i], &wrong);
		ck_assert_msg(!wrong, "%s", (char *)wrong);
	}
	printf("# %llu rounds of reading\n",
	       (unsigned long long)atomic_load(&answers));
	ck_assert_uint_ge(answers, READERS);
	ucm_index_free(ix);
}
