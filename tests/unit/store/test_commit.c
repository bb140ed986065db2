/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_commit.c - from a temporary file to a block: what is whole, whose word
 * it takes, and what is refused.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/unit/store/commit_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static struct fx_file second;

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(blocks_of_every_form_are_committed)
{
	for (int kind = FX_PAGED; kind <= FX_BARE; kind++) {
		fx_close();
		ucm_config_fini(&fx_config);
		ucm_config_init(&fx_config);
		fx_store(fx_path("$/d%d", kind));
		fx_block(&file, 1, (enum fx_kind)kind);
		fx_misses(&file);
		ck_assert_int_eq(fx_commit(&file), 0);
		fx_serves(&file);
		ck_assert(fx_exists(fx_path("$/d%d/blocks/%s", kind,
					    fx_name(&file))));
		ck_assert_uint_eq(fx_count_files(fx_path("$/d%d/.ucmfs/tmp", kind)),
				  0);
		ck_assert_uint_eq(fx_set->stats.commits, 1);
		ck_assert_uint_eq(fx_set->stats.dropped, 0);
	}
}

UNIT_TEST(a_name_is_not_there_before_the_commit)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	fx_misses(&file);
	ck_assert_uint_eq(fx_count(fx_path("$/a/blocks")), 0);
	end(fd);
	fx_misses(&file);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
	ck_assert_uint_eq(fx_set->stats.dropped, 1);
}

UNIT_TEST(a_commit_tells_the_index_the_parent, .rows = 2)
{
	struct ucm_entry entry;
	struct ucm_key key;
	ucm_ref ref;
	int fd;

	fx_store("$/a");
	fx_block(&second, 1, FX_PAGED);
	fx_block(&file, 2, FX_PAGED);
	file.block.flags |= UCM_BLOCK_HAS_PARENT;
	file.block.parent = second.key.id;
	fx_encode(&file, true);
	ck_assert_int_eq(fx_commit(&second), 0);
	fd = begin(&file, file.len);
	ck_assert_int_eq(commit(fd, &file, _i ? UCM_COMMIT_WRITTEN
					      : UCM_COMMIT_IF_WHOLE), 0);
	end(fd);
	key = second.key;
	ck_assert_int_eq(ucm_store_find(fx_set, &key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.children, 1);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert(ucm_index_get(fx_set->index, ref, &entry));
	ck_assert_uint_eq(entry.children, 0);
}

UNIT_TEST(an_incomplete_file_may_be_gone_on_with)
{
	static const size_t lengths[] = { 0, 1, 63, 64, 4095, 4096, 8191 };
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 0);
	for (size_t i = 0; i < NUM_ROWS(lengths); i++) {
		size_t len = lengths[i];

		ck_assert_int_eq(fx_pwrite(fd, file.bytes, len, 0), (ssize_t)len);
		ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE),
				 -EAGAIN);
		ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EAGAIN);
		fx_misses(&file);
	}
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), 0);
	end(fd);
	fx_serves(&file);
	ck_assert_uint_eq(fx_set->stats.commit_refused, 0);
}

/* The payload's checksums differ: whoever believes its writer does not know. */
static int begin_with_wrong_payload(void)
{
	int fd;

	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	ck_assert_int_eq(fx_pwrite(fd, "X", 1, 5000), 1);
	return fd;
}

UNIT_TEST(what_the_writer_knows_is_not_read_back)
{
	int fd;

	fx_store("$/a");
	fd = begin_with_wrong_payload();
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EINVAL);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_WRITTEN), 0);
	end(fd);
	ck_assert_int_eq(fx_find(&file), 0);
}

/* A size, and no header or not all of the payload. */
UNIT_TEST(a_writers_word_is_no_header, .rows = 2)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, _i ? file.len - 1 : 0);
	if (!_i)
		ck_assert_int_eq(fx_ftruncate(fd, (off_t)file.len), 0);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_WRITTEN),
			 _i ? -EAGAIN : -EINVAL);
	fx_misses(&file);
	end(fd);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), 0);
}

static const struct {
	const char *what;
	size_t at;
	uint8_t value;
	const char *says;
} wrongs[] = {
	{ "magic", 0, 'X', "magic" },
	{ "version", 4, 2, "version" },
	{ "header", 40, 0xee, "header checksum" },
	{ "extension", 200, 1, "extension" },
	{ "name", 0, 0, "not the file's name" },
	{ "longer", 8192, 0, "longer" },
};

/* The size is there before the bytes: header first, the payload later. */
UNIT_TEST(a_file_of_full_size_is_not_whole_without_its_bytes, .rows = 2)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 0);
	if (_i == 0) { /* holes */
		ck_assert_int_eq(fx_ftruncate(fd, (off_t)file.len), 0);
	} else { /* room, but zeroes in it */
		ck_assert_int_eq(fx_posix_fallocate(fd, 0, (off_t)file.len), 0);
	}
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, 4096, 0), 4096);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EAGAIN);
	fx_misses(&file);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EINVAL);
	fx_misses(&file);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes + 4096, file.len - 4096, 4096),
			 (ssize_t)(file.len - 4096));
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), 0);
	end(fd);
	fx_serves(&file);
}

UNIT_TEST(without_checksums_a_file_is_whole_when_its_writer_says_so)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED_RAW);
	fd = begin(&file, 0);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EINVAL);
	ck_assert_uint_eq(fx_set->stats.refused_for[UCM_FAULT_UNVOUCHED], 1);
	fx_misses(&file);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
}

UNIT_TEST(a_wrong_file_is_refused_by_rule_and_kept, .rows = NUM_ROWS(wrongs))
{
	uint8_t byte;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	second = file;
	fd = begin(&file, file.len);
	if (!strcmp(wrongs[_i].what, "name"))
		second.key.id.bytes[15] ^= 1;
	else
		ck_assert_int_eq(fx_pwrite(fd, &wrongs[_i].value, 1,
					(off_t)wrongs[_i].at), 1);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(commit(fd, &second, (enum ucm_commit_when)i),
				 -EINVAL);
		ck_assert(fx_logged(wrongs[_i].says));
		fx_misses(&second);
	}
	ck_assert_uint_eq(fx_set->stats.commit_refused, 2);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 1);
	/* and it can be mended */
	byte = file.bytes[wrongs[_i].at];
	ck_assert_int_eq(fx_pwrite(fd, &byte, 1, (off_t)wrongs[_i].at), 1);
	ck_assert_int_eq(fx_ftruncate(fd, (off_t)file.len), 0);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
}

/* ---- whose word it takes ---- */

/* A page of the payload, at least, is missing in a file with a hole. */
/* A block with checksums of bytes that were never written. */
#define FX_PAGED_ZEROS ((enum fx_kind)(FX_BARE + 1))

static const struct ucm_geometry wide = { 1, 4, 0, 8192, 8192, 0, 0, 0 };

/* What a commit says that is tried for this reason or that. */
static const struct {
	const char *what;
	enum fx_kind kind;
	bool geometry; /* known before */
	bool hole;
	int results[3]; /* IF_WHOLE, LAST, NOW */
} words[] = {
	{ "checksums prove it", FX_PAGED, true, false, { 0, 0, 0 } },
	{ "and show what is missing", FX_PAGED, true, true,
	  { -EAGAIN, -EINVAL, -EINVAL } },
	{ "packed", FX_PACKED, false, false, { 0, 0, 0 } },
	{ "packed, half", FX_PACKED, false, true,
	  { -EAGAIN, -EINVAL, -EINVAL } },
	{ "also in a file of zeros", FX_PAGED_ZEROS, true, false,
	  { -EAGAIN, -EINVAL, -EINVAL } },
	{ "without them its writer does", FX_PAGED_RAW, true, false,
	  { -EINVAL, -EINVAL, 0 } },
	{ "packed, without", FX_PACKED_RAW, false, false,
	  { -EINVAL, -EINVAL, 0 } },
	{ "bare, as large as the others", FX_BARE, true, false,
	  { -EINVAL, -EINVAL, 0 } },
	{ "bare, the first", FX_BARE, false, false, { -EINVAL, -EINVAL, 0 } },
};

static int begin_row(unsigned row)
{
	int fd;

	fx_block_of(&file, 2,
		    words[row].kind == FX_PAGED_ZEROS ? FX_PAGED
						      : words[row].kind, &wide);
	if (words[row].kind == FX_PAGED_ZEROS)
		memset(file.bytes + 4096, 0, file.len - 4096);
	fd = begin(&file, words[row].hole ? 4096 : file.len);
	if (words[row].hole)
		ck_assert_int_eq(fx_pwrite(fd, file.bytes + file.len - 1, 1,
					(off_t)file.len - 1), 1);
	return fd;
}

UNIT_TEST(what_proves_nothing_takes_its_writers_word, .rows = NUM_ROWS(words))
{
	for (int when = UCM_COMMIT_IF_WHOLE; when <= UCM_COMMIT_NOW; when++) {
		int fd, result;

		fx_store(fx_path("$/d%d", when));
		fx_block_of(&second, 1, FX_PAGED, &wide);
		if (words[_i].geometry)
			ck_assert_int_eq(fx_commit(&second), 0);
		fd = begin_row((unsigned)_i);
		result = commit(fd, &file, (enum ucm_commit_when)when);
		ck_assert_msg(result == words[_i].results[when],
			      "%s, %d: %d", words[_i].what, when, result);
		/* and no geometry is learnt from what is not committed */
		ck_assert_int_eq(
			ucm_space_has_geometry(fx_set->names.spaces[0]),
			words[_i].geometry || !result);
		end(fd);
		if (result)
			fx_misses(&file);
		else
			fx_serves(&file);
		fx_close();
		ucm_config_fini(&fx_config);
		ucm_config_init(&fx_config);
	}
}

/* A gap within a page is no hole. */
UNIT_TEST(a_gap_that_no_hole_shows_is_found_where_nobody_vouches)
{
	const size_t gap = 4096, end = gap + 384;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, gap);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes + end, file.len - end,
				(off_t)end), (ssize_t)(file.len - end));
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EAGAIN);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_LAST), -EINVAL);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	fx_misses(&file);
}

/* ---- bare blocks: only geometry or the end of writing tell the size ---- */

UNIT_TEST(a_bare_block_of_unknown_size_is_whole_when_its_writer_says_so)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_BARE);
	fd = begin(&file, 64 + 256); /* divides, and is not all of it */
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EINVAL);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EINVAL);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
}

UNIT_TEST(a_bare_block_of_known_size_is_not_whole_before_it_has_it)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_block(&file, 2, FX_BARE);
	fd = begin(&file, 64 + 256);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EAGAIN);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EAGAIN);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
	/* too large for the geometry */
	fx_block(&file, 3, FX_BARE);
	fd = begin(&file, file.len);
	ck_assert_int_eq(fx_ftruncate(fd, 64 + 1024), 0);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EINVAL);
	end(fd);
}

/* ---- geometry and identity ---- */

UNIT_TEST(a_block_of_another_geometry_is_refused_naming_both)
{
	struct ucm_geometry g = fx_geometry;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	g.num_layers = 3;
	fx_block_of(&second, 2, FX_PAGED, &g);
	fd = begin(&second, second.len);
	ck_assert_int_eq(commit(fd, &second, UCM_COMMIT_NOW), -EINVAL);
	ck_assert(fx_logged("the space has 2 layers"));
	ck_assert(fx_logged("the block has 3 layers"));
	end(fd);
	fx_misses(&second);
}

UNIT_TEST(a_space_that_is_empty_again_takes_another_geometry)
{
	struct ucm_geometry g = fx_geometry;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	g.num_layers = 3;
	fx_block_of(&second, 2, FX_PAGED, &g);
	ck_assert_int_eq(fx_commit(&second), -EINVAL);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(fx_commit(&second), 0);
	fx_serves(&second);
	ck_assert_int_eq(fx_commit(&file), -EINVAL);
}

UNIT_TEST(a_geometry_outlives_the_store)
{
	struct ucm_geometry g = fx_geometry;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_close();
	fx_open(); /* before any scan thread */
	g.num_layers = 3;
	fx_block_of(&second, 2, FX_PAGED, &g);
	ck_assert_int_eq(fx_commit(&second), -EINVAL);
}

UNIT_TEST(rechecking_what_was_not_committed_does_nothing)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 100);
	temp.shared = true;
	fx_recheck(&temp, fd);
	end(fd);
}

UNIT_TEST(a_temporary_file_can_be_opened_again)
{
	int fd, again;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 4096);
	fx_close_file(fd);
	again = fx_reopen(&temp);
	ck_assert_int_ge(again, 0);
	ck_assert_int_eq(fx_pwrite(again, file.bytes + 4096, 4096, 4096), 4096);
	ck_assert_int_eq(commit(again, &file, UCM_COMMIT_NOW), 0);
	end(again);
	fx_serves(&file);
}
