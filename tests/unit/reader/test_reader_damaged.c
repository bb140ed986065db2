/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reader_damaged.c - files that are no index, or a damaged one: they harm
 * nobody.
 */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "common/log.h"
#include "tests/unit/fake_server.h"
#include "tests/unit/random.h"
#include "tests/unit/reader/mapped_index.h"

/* ---- files that are no index, or a damaged one ---- */

static int copy_of_index(uint64_t size)
{
	int fd = memfd_create("test", 0);

	ck_assert_int_ge(fd, 0);
	must(pwrite(fd, ucm_index_live(ix)->base, size, 0) == (ssize_t)size);
	return fd;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(what_is_no_index_is_refused, .rows = 7)
{
	static const struct { unsigned at; uint32_t value; } wrong[] = {
		{ 0, 0 }, { 12, 0 }, { 12, 12289 },
		{ 16, 64 }, { 20, 24 }, { 24, 256 }, { 24, UINT32_MAX },
	};
	struct ucm_reader_map map;
	int fd = copy_of_index(ucm_index_memory_size(ucm_index_live(ix)));

	must(pwrite(fd, &wrong[_i].value, 4, wrong[_i].at) == 4);
	ck_assert_int_eq(ucm_reader_map_open(&map, fd), -EPROTO);
	close(fd);
}

static char said[512];

static void note_line(enum ucm_log_level level, const char *line)
{
	(void)level;
	snprintf(said, sizeof(said), "%s", line);
}

UNIT_TEST(another_version_is_refused_by_name, .rows = 3)
{
	static const struct { uint32_t version, shard_bytes; } other[] = {
		{ 2, 1088 }, { 4, 4096 }, { 0, 1088 },
	};
	struct ucm_reader_map map;
	int fd = copy_of_index(UCM_INDEX_MEMORY_HEADER_BYTES);
	char both[80];

	must(pwrite(fd, &other[_i].version, 4, 8) == 4);
	must(pwrite(fd, &other[_i].shard_bytes, 4, 16) == 4);
	ucm_log_set(note_line, UCM_LOG_INFO);
	ck_assert_int_eq(ucm_reader_map_open(&map, fd), -EPROTONOSUPPORT);
	snprintf(both, sizeof(both), "version %u, and this library reads "
		 "version 3", other[_i].version);
	ck_assert_ptr_nonnull(strstr(said, both));
	close(fd);
}

/* What readers of version 1 compare before all else. */
UNIT_TEST(version_1_reads_another_version_where_it_looks)
{
	uint32_t version;

	memcpy(&version, ucm_index_live(ix)->base + 8, sizeof(version));
	ck_assert_uint_ne(version, 1);
	/* they ask for a file of that size first */
	ck_assert_uint_ge(ucm_index_memory_size(ucm_index_live(ix)),
			  12288 + 256 * 1088);
}

UNIT_TEST(a_file_that_is_too_short_is_refused, .rows = 6)
{
	static const uint64_t sizes[] = {
		0,
		1,
		8,
		4096,
		UCM_INDEX_MEMORY_HEADER_BYTES,
		UCM_INDEX_MEMORY_FIXED_BYTES - 1,
	};
	struct ucm_reader_map map;
	int fd = copy_of_index(sizes[_i]);

	ck_assert_int_eq(ucm_reader_map_open(&map, fd), -EPROTO);
	close(fd);
	fd = open("/", O_RDONLY);
	ck_assert_int_eq(ucm_reader_map_open(&map, fd), -EPROTO);
	close(fd);
}

/* As if it had been cut: chunks that the header tells of are not there. */
UNIT_TEST(what_lies_behind_the_end_is_unknown)
{
	struct ucm_index_reader *cut;
	unsigned unknown = 0;

	for (unsigned i = 0; i < 30000; i++)
		rf_add(ix, i);
	cut = rf_reader_of(
		copy_of_index((UCM_INDEX_MEMORY_FIXED_BYTES + 4096) & ~4095u));
	ck_assert_ptr_nonnull(cut);
	for (unsigned i = 0; i < 30000; i += 7)
		unknown += rf_ask(cut, i) == '?';
	ck_assert_uint_gt(unknown, 4000);
	ucm_index_close(cut);
}

/* Numbers that hurt where a place, a count or a link is expected. */
static uint32_t bad_number(uint64_t *seed)
{
	static const uint32_t bad[] = { 0, 1, 31, 32, 33, 255, 0x7fffffff,
					0x80000000, UINT32_MAX, 1u << 24,
					(1u << 24) - 256, 4097 };

	*seed = rf_mix(*seed);
	switch (*seed >> 60 & 3) {
	case 0: return (uint32_t)(*seed >> 8);
	case 1: return (uint32_t)(*seed >> 8 & 0xffff);
	default: return bad[(*seed >> 8) % NUM_ROWS(bad)];
	}
}

/* Where it hurts most: shards of the ids that are asked for. */
static void spoil(char *base, uint64_t size, uint64_t *seed)
{
	unsigned num = 1 + (unsigned)(rf_mix(*seed) % 60);

	for (unsigned i = 0; i < num; i++) {
		uint32_t number = bad_number(seed);
		uint64_t at;

		*seed = rf_mix(*seed);
		if (*seed & 1)
			at = UCM_INDEX_MEMORY_HEADER_BYTES +
			     *seed / 2 %
				     (UCM_INDEX_MEMORY_FIXED_BYTES -
				      UCM_INDEX_MEMORY_HEADER_BYTES);
		else
			at = 64 + *seed / 2 % (size - 128);
		memcpy(base + (at & ~3ull), &number, sizeof(number));
	}
}

static void ask_everything(struct ucm_index_reader *of)
{
	static struct ucm_id ids[3000];
	uint64_t present[UCM_INDEX_WORDS(3000)], unknown[NUM_ROWS(present)];
	struct ucm_index_entry entry;
	struct ucm_index_info info;
	size_t count;
	int flag;

	for (unsigned i = 0; i < NUM_ROWS(ids); i++)
		ids[i] = rf_id(i);
	/* only that they end, and read nothing that is not there */
	ucm_index_lookup(of, ids, NUM_ROWS(ids), present, unknown);
	ucm_index_prefix(of, ids, NUM_ROWS(ids), &count, &flag);
	ucm_index_info(of, &info);
	for (unsigned i = 0; i < 20; i++) {
		if (ucm_index_entry(of, &ids[i * 100], &entry))
			continue;
		must(memchr(entry.tier_name, '\0', sizeof(entry.tier_name)));
	}
}

UNIT_TEST(a_damaged_index_harms_nobody, .rows = 4)
{
	uint64_t size, seed = random_case((unsigned)_i);
	char *whole;
	int fd;

	for (unsigned i = 0; i < 2000; i++)
		rf_add(ix, i);
	size = ucm_index_memory_size(ucm_index_live(ix));
	whole = ucm_index_live(ix)->base;
	fd = copy_of_index(size);
	for (unsigned round = 0; round < 150; round++) {
		struct ucm_index_reader *of;
		char *base = mmap(NULL, size, PROT_READ | PROT_WRITE,
				  MAP_SHARED, fd, 0);

		ck_assert_ptr_ne(base, MAP_FAILED);
		memcpy(base, whole, size);
		spoil(base, size, &seed);
		munmap(base, size);
		of = rf_reader_of(dup(fd));
		if (of) {
			ask_everything(of);
			ucm_index_close(of);
		}
	}
	close(fd);
}

/* A ring of records: each leads to another, none is the one. */
UNIT_TEST(a_chain_without_an_end_is_left)
{
	struct ucm_index_memory *live = ucm_index_live(ix);
	struct ucm_index_memory_shard *shard;
	struct ucm_index_memory_record *first;
	_Atomic uint32_t *heads;
	struct ucm_id id = rf_id(1);

	rf_add(ix, 1);
	shard = ucm_index_memory_shard(live, id.bytes[0]);
	first = ucm_index_memory_at(live, shard->records[0]);
	heads = ucm_index_memory_at(live, shard->heads[0]);
	first->next = 1; /* itself */
	first->id[1] ^= 1;
	for (unsigned i = 0; i < 32; i++)
		heads[i] = 1;
	ck_assert_int_eq(rf_ask(reader, 1), '?');
	first->id[1] ^= 1;
	ck_assert_int_eq(rf_ask(reader, 1), 'y');
	first->next = 0;
}
