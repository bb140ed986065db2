/* SPDX-License-Identifier: Apache-2.0 */
/* test_media.c - directories without a daemon, when something fails. */
#include <config.h>

#include "tools/ucm_media.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <ucm/space.h>

#include "tests/unit/block_fixture.h"

#define BLOCKS 6

static struct fx_file files[BLOCKS];

/* Two directories; a block in each, in turn, but the last one in both. */
static void setup(void)
{
	struct ucm_error error;

	fx_setup();
	fx_mkdirs(fx_path("$/a"));
	fx_mkdirs(fx_path("$/b"));
	ck_assert_int_eq(ucm_tiers_make(fx_path("one=$/a:two=$/b"), &error), 0);
	for (unsigned n = 0; n < BLOCKS; n++) {
		bool last = n == BLOCKS - 1;

		fx_block(&files[n], n, FX_PAGED);
		if (last || n % 2 == 0)
			fx_plant(fx_path("$/a"), "blocks", &files[n]);
		if (last || n % 2 == 1)
			fx_plant(fx_path("$/b"), "blocks", &files[n]);
	}
}

static struct ucm_media *opened(bool removes)
{
	struct ucm_media *media;
	const char *source = fx_path("one=$/a:two=$/b");
	int err = removes ? ucm_media_open_to_remove(source, &media)
			  : ucm_media_open(source, &media);

	ck_assert_int_eq(err, 0);
	return media;
}

struct seen {
	unsigned blocks, copies;
	uint64_t bytes;
};

static int count(void *arg, const struct ucm_media_block *block)
{
	struct seen *seen = arg;

	seen->blocks++;
	seen->copies += block->copies > 1;
	seen->bytes += block->bytes;
	return 0;
}

static struct seen list(struct ucm_media *media)
{
	struct seen seen = { 0 };

	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++)
		ck_assert_int_eq(ucm_media_each(media, NULL, bucket, count,
						&seen), 0);
	return seen;
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(a_block_of_two_directories_is_one)
{
	struct ucm_media *media = opened(false);
	struct seen seen = list(media);
	struct ucm_media_block block;

	ck_assert_uint_eq(seen.blocks, BLOCKS);
	ck_assert_uint_eq(seen.copies, 1);
	ck_assert_uint_eq(seen.bytes, (BLOCKS + 1) * files[0].len);
	ck_assert_int_eq(ucm_media_find(media, "", &files[5].key.id, &block),
			 0);
	ck_assert_uint_eq(block.place.directory, 0);
	ck_assert_uint_eq(block.second, 1);
	ck_assert(!media->failed);
	ucm_media_close(media);
}

/* What fails in both directories, how many blocks are seen, and how often such a
 * call is made. */
static const struct {
	const char *call;
	const char *where;
	int err;
	unsigned blocks, asked;
} faults[] = {
	{ NULL, NULL, 0, BLOCKS, 0 },
	/* each bucket for itself */
	{ "list", "blocks/", -EACCES, 0, 2 * UCM_BUCKETS },
	{ "list", "blocks/", -EIO, 0, 2 * UCM_BUCKETS },
	/* its server is gone: once for each directory */
	{ "list", "blocks/", -ETIMEDOUT, 0, 2 },
	{ "list", "blocks/", -ENOTCONN, 0, 2 },
	{ "list", "blocks/", -ESTALE, 0, 2 },
	/* buckets that are not there, are not needed */
	{ "list", "blocks/", -ENOENT, 0, 2 * UCM_BUCKETS },
	{ "read", NULL, -EIO, 0, BLOCKS + 1 },
	{ "read", NULL, -ETIMEDOUT, 0, 2 },
};

UNIT_TEST(what_does_not_answer_is_not_asked_again, .rows = NUM_ROWS(faults))
{
	struct ucm_media *media = opened(false);

	if (faults[_i].err) {
		if (faults[_i].where)
			fx_fail_on(faults[_i].call, faults[_i].where, 1,
				   faults[_i].err, false);
		else
			fx_fail(faults[_i].call, 1, faults[_i].err, false);
	}
	ck_assert_uint_eq(list(media).blocks, faults[_i].blocks);
	if (faults[_i].err)
		ck_assert_uint_eq(fx_calls(), faults[_i].asked);
	ck_assert(media->failed ==
		  (faults[_i].err && faults[_i].err != -ENOENT));
	fx_fail(NULL, 0, 0, false);
	ucm_media_close(media);
}

/* One directory has gone: nobody can say what is not in the other. */
UNIT_TEST(what_a_lost_directory_may_have_is_not_absent)
{
	struct ucm_media *media = opened(false);
	struct ucm_media_block block;

	media->dirs[1].err = -ETIMEDOUT;
	ck_assert_int_eq(ucm_media_find(media, "", &files[0].key.id, &block),
			 0);
	ck_assert_int_eq(ucm_media_find(media, "", &files[5].key.id, &block),
			 0);
	ck_assert_int_eq(ucm_media_find(media, "", &files[1].key.id, &block),
			 -ETIMEDOUT);
	ucm_media_close(media);
}

UNIT_TEST(what_one_directory_keeps_has_not_been_removed)
{
	struct ucm_media *media = opened(true);
	struct ucm_id *id = &files[5].key.id;
	char in_a[256], in_b[256];

	snprintf(in_a, sizeof(in_a), "%s",
		 fx_path("$/a/blocks/%s", fx_name(&files[5])));
	snprintf(in_b, sizeof(in_b), "%s",
		 fx_path("$/b/blocks/%s", fx_name(&files[5])));
	fx_fail_on("unlink", ".bin", 1, -EIO, true);
	ck_assert_int_eq(ucm_media_remove(media, "", id), -EIO);
	fx_fail(NULL, 0, 0, false);
	ck_assert(fx_exists(in_a));
	ck_assert(!fx_exists(in_b));
	ck_assert_int_eq(ucm_media_remove(media, "", id), 0);
	ck_assert(!fx_exists(in_a));
	ck_assert_int_eq(ucm_media_remove(media, "", id), -ENOENT);
	ucm_media_close(media);
}

UNIT_TEST(the_locks_are_held_and_given_back)
{
	struct ucm_media *media = opened(true), *other;

	media->dirs[0].medium->ops->tell(media->dirs[0].medium,
					 UCM_MEDIUM_USE_STARTING, 0);
	ck_assert_int_lt(ucm_media_open_to_remove(fx_path("$/a"), &other), 0);
	ucm_media_close(media);
	ck_assert_int_eq(ucm_media_open_to_remove(fx_path("$/a"), &other), 0);
	ucm_media_close(other);
}
