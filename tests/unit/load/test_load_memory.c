/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_memory.c - blocks of a tier in memory, from which they are copied:
 * damaged ones, and files that are cut off.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/load/failures_fixture.h"

/* ---- memory ---- */

static unsigned mappings_of(const char *part)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned num = 0;
	char line[512];

	ck_assert_ptr_nonnull(maps);
	while (fgets(line, sizeof(line), maps))
		num += strstr(line, part) != NULL;
	fclose(maps);
	return num;
}

UNIT_FIXTURE(.setup = setup_memory,
	     .teardown = teardown_memory,
	     .only_if = lf_open_memory);

/* Read the first time, mapped from the second one on. */
UNIT_TEST(damage_in_memory_is_noticed, .rows = NUM_ROWS(damages))
{

	lf_tier(tier);
	load_damaged(tier, (unsigned)_i);
}

UNIT_TEST(blocks_in_memory_are_copied_from_there)
{
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;

	lf_tier(tier);
	for (unsigned i = 0; i < NUM; i++)
		lf_plant(tier, &lf_geometry, i);
	loader = lf_loader(tier, &cache, NULL);
	lf_fail(UCM_IO_READ, 1, -EIO, false); /* none goes through the ring */
	for (unsigned turn = 1; turn <= 3; turn++) {
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, NUM, NULL, NULL), 0);
		for (unsigned i = 0; i < NUM; i++)
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
		ucm_loader_get_stats(loader, &stats, sizeof(stats));
		ck_assert_uint_eq(stats.mapped_bytes, turn * NUM * 4 * LAYER);
		ck_assert_uint_eq(stats.reads, 0);
		ck_assert_uint_eq(mappings_of(tier), turn == 1 ? 0 : NUM);
	}
	ucm_loader_close(loader);
}

/* While it is read as well as when it is mapped. */
UNIT_TEST(damage_in_memory_is_noticed_each_time, .rows = 3)
{
	struct ucm_outcome outcomes[2];
	struct ucm_loader *loader;
	int fd;

	lf_tier(tier);
	lf_plant(tier, &lf_geometry, 0);
	lf_plant(tier, &lf_geometry, 1);
	loader = lf_loader(tier, &cache, NULL);
	for (int turn = 0; turn < _i; turn++)
		ck_assert_int_eq(lf_load(loader, 0, 2, NULL, NULL), 0);
	fd = open(lf_path(tier, 1), O_WRONLY | O_CLOEXEC);
	ck_assert_int_eq(pwrite(fd, "\x5a\xa5", 2, HEAD + 2 * LAYER + 7), 2);
	close(fd);
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, 2, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[0].err, 0);
	ck_assert_int_eq(outcomes[1].err, -EBADMSG);
	ck_assert_int_eq(outcomes[1].fault, UCM_FAULT_PLANE);
	ck_assert_int_eq(outcomes[1].plane, 4);
	ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
	ck_assert(lf_page_untouched(&cache, 1, 2, 4));
	ucm_loader_close(loader);
}

UNIT_TEST(an_early_end_in_memory_is_torn, .rows = NUM_ROWS(ways))
{
	lf_tier(tier);
	for (unsigned i = 0; i < 3; i++)
		lf_plant(tier, &lf_geometry, i);
	cut_off_all(tier, (unsigned)_i);
}

/* Some layers have been read: it is not mapped yet. */
UNIT_TEST(a_file_in_memory_is_cut_off_while_it_is_read)
{
	struct ucm_request request = { .num_layers = 1 };
	struct ucm_outcome outcome;
	struct ucm_loader *loader;

	lf_tier(tier);
	lf_plant(tier, &lf_geometry, 0);
	loader = lf_loader(tier, &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 1, &request, NULL), 0);
	ck_assert_int_eq(truncate(lf_path(tier, 0), HEAD + LAYER + 1), 0);
	request.first_layer = 1;
	ck_assert_int_eq(lf_load(loader, 0, 1, &request, &outcome), -EIO);
	ck_assert_int_eq(outcome.err, -EBADMSG);
	ck_assert_int_eq(outcome.fault, UCM_FAULT_SHORT);
	ck_assert(lf_page_untouched(&cache, 0, 1, 4));
	ucm_loader_close(loader);
}

/* Touching what is not there any more would kill the process. */
UNIT_TEST(a_file_in_memory_that_is_cut_off_is_noticed)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader *loader;

	lf_tier(tier);
	for (unsigned i = 0; i < 3; i++)
		lf_plant(tier, &lf_geometry, i);
	loader = lf_loader(tier, &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, NULL), 0);
	for (unsigned i = 0; i < 3; i++) {
		static const off_t lens[] = { 20479, 4096, 0 };

		ck_assert_int_eq(truncate(lf_path(tier, 1), lens[i]), 0);
		ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
		ck_assert_int_eq(outcomes[1].err, -EBADMSG);
		ck_assert_int_eq(outcomes[1].fault, UCM_FAULT_SHORT);
		ck_assert_int_eq(outcomes[2].err, 0);
	}
	lf_plant(tier, &lf_geometry, 1);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, NULL), 0);
	ucm_loader_close(loader);
}

UNIT_TEST(memory_holds_foreign_forms, .rows = NUM_ROWS(foreign))
{
	const struct ucm_outcome well = { .err = 0 };
	uint8_t *bytes;
	size_t len;

	lf_tier(tier);
	for (unsigned i = 0; i < 3; i++)
		lf_plant(tier, &lf_geometry, i);
	bytes = lf_file(&lf_geometry, 1, foreign[_i], &len);
	fx_put(lf_path(tier, 1), bytes, len);
	free(bytes);
	load_as_all(tier, UCM_VERIFY_FULL, &well);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
	load_as_all(tier, UCM_VERIFY_NONE, &well);
	ck_assert(lf_page_is(&cache, 1, 0, 4, 1));
}

/* What is checked in a second turn is copied once, what fails is not at all. */
UNIT_TEST(what_comes_from_memory_is_counted_once)
{
	struct ucm_request request = { .first_layer = 1, .num_layers = 1 };
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;
	uint8_t *bytes;
	size_t len;

	lf_tier(tier);
	lf_plant(tier, &lf_geometry, 0);
	lf_plant(tier, &lf_geometry, 1);
	bytes = lf_file(&lf_geometry, 0, FX_PACKED, &len);
	fx_put(lf_path(tier, 0), bytes, len);
	free(bytes);
	bytes = lf_file(&lf_geometry, 1, FX_PAGED, &len);
	bytes[HEAD + LAYER] ^= 1;
	fx_put(lf_path(tier, 1), bytes, len);
	free(bytes);
	loader = lf_loader(tier, &cache, NULL);
	ck_assert_int_eq(lf_load(loader, 0, 2, &request, NULL), -EIO);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.load_bytes, LAYER);
	ck_assert_uint_eq(stats.mapped_bytes, LAYER);
	ucm_loader_close(loader);
}
