/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index_memory.c - memory that grows in place, and that only we can write
 * to.
 */
#include <config.h>

#include "fs/index/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osfile.h"
#include "tests/unit/unit.h"

static struct ucm_index_memory live;

static void setup(void)
{
	ck_assert_int_eq(ucm_index_memory_init(&live), 0);
}

static void teardown(void)
{
	ucm_index_memory_fini(&live);
}

static uint64_t file_size(void)
{
	struct stat st;

	ck_assert_int_eq(fstat(live.fd, &st), 0);
	return (uint64_t)st.st_size;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(a_new_one_says_what_it_is)
{
	const struct ucm_index_memory_header *header =
		ucm_index_memory_header(&live);
	struct ucm_index_memory other;

	ck_assert_mem_eq(header->magic, "UCMINDEX", 8);
	ck_assert_uint_eq(header->version, 3);
	ck_assert_uint_eq(header->header_bytes, 12288);
	ck_assert_uint_eq(header->shard_bytes, 1600);
	ck_assert_uint_eq(header->record_bytes, 32);
	ck_assert_uint_eq(header->size, file_size());
	ck_assert_uint_eq(header->alive, 0);
	ck_assert_uint_eq(header->state, 0);
	ck_assert_int_eq(ucm_index_memory_init(&other), 0);
	ck_assert_mem_ne(header->instance,
			 ucm_index_memory_header(&other)->instance, 16);
	ucm_index_memory_fini(&other);
}

UNIT_TEST(what_is_taken_is_zero_and_does_not_move_or_overlap)
{
	uint32_t units[300];
	uint8_t *at[300];

	for (unsigned i = 0; i < NUM_ROWS(units); i++) {
		ck_assert_int_eq(ucm_index_memory_take(&live, 5000, &units[i]),
				 0);
		at[i] = ucm_index_memory_at(&live, units[i]);
		for (unsigned j = 0; j < 5000; j++)
			must(at[i][j] == 0);
		memset(at[i], (int)i, 5000);
	}
	for (unsigned i = 0; i < NUM_ROWS(units); i++) {
		ck_assert_ptr_eq(at[i], ucm_index_memory_at(&live, units[i]));
		for (unsigned j = 0; j < 5000; j++)
			must(at[i][j] == (uint8_t)i);
	}
	ck_assert_uint_ge(file_size(), 300 * 5000);
	ck_assert_uint_eq(ucm_index_memory_size(&live), file_size());
	ck_assert_uint_eq(ucm_index_memory_header(&live)->size, file_size());
}

/* All of it is allocated: a reader cannot make it take more memory. */
UNIT_TEST(it_has_no_holes)
{
	uint32_t unit;
	struct stat st;

	ck_assert_int_eq(ucm_index_memory_take(&live, 3 << 20, &unit), 0);
	ck_assert_int_eq(fstat(live.fd, &st), 0);
	ck_assert_uint_ge((uint64_t)st.st_blocks * 512, (uint64_t)st.st_size);
}

UNIT_TEST(nobody_else_writes_to_it_or_cuts_it)
{
	char byte = 1;

	errno = 0;
	ck_assert_int_lt(pwrite(live.fd, &byte, 1, 0), 0);
	ck_assert_int_eq(errno, EPERM);
	ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
			      live.fd, 0),
			 MAP_FAILED);
	ck_assert_int_lt(ftruncate(live.fd, 4096), 0);
	ck_assert_int_eq(errno, EPERM);
}

UNIT_TEST(it_can_be_mapped_for_reading_and_not_be_made_writable)
{
	void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, live.fd, 0);

	ck_assert_ptr_ne(map, MAP_FAILED);
	ck_assert_mem_eq(map, "UCMINDEX", 8);
	ck_assert_int_lt(mprotect(map, 4096, PROT_READ | PROT_WRITE), 0);
	munmap(map, 4096);
}

static int no_memory(const char *call, const char *path)
{
	(void)path;
	return strcmp(call, "fallocate") ? 0 : -ENOSPC;
}

UNIT_TEST(want_of_memory_is_an_error_and_passes)
{
	uint64_t before = file_size();
	uint32_t unit = 77;

	ucm_os_fault = no_memory;
	ck_assert_int_eq(ucm_index_memory_take(&live, 1 << 20, &unit), -ENOMEM);
	ck_assert_uint_eq(unit, 77);
	ck_assert_uint_eq(file_size(), before);
	ucm_os_fault = NULL;
	ck_assert_int_eq(ucm_index_memory_take(&live, 1 << 20, &unit), 0);
}

UNIT_TEST(more_than_its_addresses_is_refused)
{
	uint32_t unit;

	ck_assert_int_eq(ucm_index_memory_take(&live, live.reserve, &unit),
			 -ENOMEM);
}

/* As by "ulimit -f", which holds for memory files as well. */
UNIT_TEST(under_a_limit_on_files_it_is_ordinary_memory)
{
	struct rlimit limit = { .rlim_cur = 4096, .rlim_max = RLIM_INFINITY };
	struct ucm_index_memory other;
	uint32_t unit;

	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	ck_assert_int_eq(ucm_index_memory_init(&other), 0);
	limit.rlim_cur = RLIM_INFINITY; /* check writes its results to a file */
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	ck_assert_int_eq(other.fd, -1);
	for (unsigned i = 0; i < 1000; i++) {
		ck_assert_int_eq(ucm_index_memory_take(&other, 4096, &unit), 0);
		memset(ucm_index_memory_at(&other, unit), 7, 4096);
	}
	ck_assert_mem_eq(ucm_index_memory_header(&other)->magic, "UCMINDEX", 8);
	ck_assert_uint_ge(ucm_index_memory_size(&other), 1000 * 4096);
	ucm_index_memory_fini(&other);
}

/* Chunks, as readers compute them: 8 of each size, no gap, no overlap. */
UNIT_TEST(numbers_go_through_the_chunks_in_order)
{
	uint32_t number = 0, at;

	for (unsigned chunk = 0; chunk < UCM_INDEX_MEMORY_CHUNKS; chunk++) {
		uint32_t items = ucm_index_memory_chunk_items(chunk);

		ck_assert_uint_eq(items, 32u << chunk / 8);
		ck_assert_uint_eq(ucm_index_memory_chunk(number, &at), chunk);
		ck_assert_uint_eq(at, 0);
		number += items;
		ck_assert_uint_eq(ucm_index_memory_chunk(number - 1, &at),
				  chunk);
		ck_assert_uint_eq(at, items - 1);
	}
	ck_assert_uint_eq(number, UCM_INDEX_MEMORY_MAX_ITEMS);
}

/* From one number of heads to the next only one chain is split. */
UNIT_TEST(a_new_head_takes_from_one_chain_only)
{
	for (uint32_t heads = 32; heads < 300; heads++) {
		uint32_t parent = UINT32_MAX;

		for (uint32_t hash = 0; hash < 4096; hash++) {
			uint32_t was = ucm_index_memory_head(hash, heads);
			uint32_t is = ucm_index_memory_head(hash, heads + 1);

			must(was < heads && is < heads + 1);
			if (was == is)
				continue;
			must(is == heads);
			must(parent == UINT32_MAX || parent == was);
			parent = was;
		}
		must(parent != UINT32_MAX);
	}
}
