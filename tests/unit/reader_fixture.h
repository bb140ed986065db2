/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_fixture.h - an index, and readers of it without a mount.
 *
 * Entry n has an id that follows from n; its size tells n again, and its
 * directory is the size's remainder, so that a mixture of two entries shows.
 */
#ifndef UCM_TESTS_READER_FIXTURE_H
#define UCM_TESTS_READER_FIXTURE_H

#include <string.h>
#include <unistd.h>

#include "fs/index/index.h"
#include "fs/index/memory.h"
#include "fs/reader/reader.h"
#include "tests/unit/unit.h"

#define RF_DIRS 3

static inline uint64_t rf_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static inline struct ucm_id rf_id(uint64_t n)
{
	uint64_t words[2] = { rf_mix(n), rf_mix(n + 1000003) };
	struct ucm_id id;

	memcpy(id.bytes, words, sizeof(words));
	return id;
}

/* What an entry's size may be: n, or as a rewrite left it. */
static inline uint64_t rf_size(uint64_t n, uint64_t version)
{
	return 4096 + (n << 8) + (version & 0xff);
}

static inline struct ucm_entry rf_entry(uint64_t n, uint64_t version)
{
	uint64_t size = rf_size(n, version);

	return (struct ucm_entry){
		.id = rf_id(n), .size = size, .dir = (uint8_t)(size % RF_DIRS),
	};
}

/* An index that somebody keeps: the calling thread. Complete. */
static inline struct ucm_index *rf_index(void)
{
	static const char *const names[RF_DIRS] = { "hbm", "nvme", "nfs" };
	struct ucm_index *index;

	ck_assert_int_eq(ucm_index_new(&index), 0);
	for (unsigned i = 0; i < RF_DIRS; i++)
		ucm_index_memory_name_tier(ucm_index_live(index), i, i,
					   names[i]);
	ucm_index_memory_set_complete(ucm_index_live(index));
	ck_assert_int_eq(ucm_index_memory_serve(ucm_index_live(index)), 0);
	return index;
}

static inline ucm_ref rf_add(struct ucm_index *index, uint64_t n)
{
	struct ucm_entry entry = rf_entry(n, 0);
	ucm_ref ref;

	must(!ucm_index_add(index, &entry, NULL, &ref));
	return ref;
}

static inline ucm_ref rf_ref(struct ucm_index *index, uint64_t n)
{
	struct ucm_key key = { .id = rf_id(n) };
	ucm_ref ref;

	must(ucm_index_find(index, &key, NULL, &ref));
	return ref;
}

/* A reader of space 0 that maps fd, which is its own then. */
static inline struct ucm_index_reader *rf_reader_of(int fd)
{
	struct ucm_index_reader *reader = calloc(1, sizeof(*reader));

	ck_assert_ptr_nonnull(reader);
	if (ucm_reader_map_open(&reader->map, fd)) {
		free(reader);
		return NULL;
	}
	reader->resolved = reader->published = true;
	reader->names = ucm_reader_map_names(&reader->map);
	return reader;
}

static inline struct ucm_index_reader *rf_reader(struct ucm_index *index)
{
	struct ucm_index_reader *reader =
		rf_reader_of(dup(ucm_index_live(index)->fd));

	ck_assert_ptr_nonnull(reader);
	return reader;
}

/* One that reads where the writer writes, for ThreadSanitizer, which does not
 * see that two mappings are one memory. */
static inline struct ucm_index_reader *rf_borrower(struct ucm_index *index)
{
	struct ucm_index_reader *reader = calloc(1, sizeof(*reader));
	struct ucm_index_memory *live = ucm_index_live(index);

	ck_assert_ptr_nonnull(reader);
	reader->map = (struct ucm_reader_map){
		.fd = -1, .base = live->base, .limit = live->reserve,
	};
	reader->resolved = reader->published = true;
	reader->names = ucm_reader_map_names(&reader->map);
	return reader;
}

/* 'y', 'n', '?', or '-' if the daemon is gone. */
static inline char rf_ask(struct ucm_index_reader *reader, uint64_t n)
{
	struct ucm_id id = rf_id(n);
	uint64_t present, unknown;
	int err = ucm_index_lookup(reader, &id, 1, &present, &unknown);

	must(!err || err == -ENOTCONN);
	must(!(present & unknown));
	return err ? '-' : present ? 'y' : unknown ? '?' : 'n';
}

/* Is it an entry as somebody wrote it, and not half of one? */
static inline bool rf_is_whole(const struct ucm_index_entry *entry, uint64_t n)
{
	return entry->size >> 8 == rf_size(n, 0) >> 8 &&
	       entry->tier == (int)(entry->size % RF_DIRS);
}

#endif
