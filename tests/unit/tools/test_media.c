/* SPDX-License-Identifier: Apache-2.0 */
/* test_media.c - directories that ucm scrub reads, when one cannot be read. */
#include <config.h>

#include "tools/check/media.h"

#include <errno.h>

#include "fs/medium/dir/dir.h"
#include "tests/unit/block_fixture.h"

static struct ucm_media media;

static void setup(void)
{
	struct ucm_medium *medium;
	struct ucm_config config;
	struct ucm_error error;

	fx_setup();
	ucm_config_init(&config);
	for (const char *const *at = (const char *const[]){ "a", "b", NULL };
	     *at; at++) {
		fx_mkdirs(fx_path("$/%s", *at));
		ck_assert_int_eq(ucm_medium_open(ucm_directory_open,
						 fx_path("$/%s", *at), false,
						 &config, &medium, &error),
				 0);
		ucm_medium_close(medium, true);
		ucm_medium_free(medium);
	}
	ucm_config_fini(&config);
}

static int open_two(const char *second)
{
	char a[256];
	const char *paths[] = { a, NULL };

	snprintf(a, sizeof(a), "%s", fx_path("$/a"));
	paths[1] = fx_path("$/%s", second);
	return ucm_media_open(&media, paths, 2);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

static const struct {
	int err;
	bool asked;
} faults[] = {
	{ -EIO, true },       { -EACCES, true },  { -ETIMEDOUT, false },
	{ -ENOTCONN, false }, { -ESTALE, false },
};

UNIT_TEST(what_does_not_answer_is_not_asked_again, .rows = NUM_ROWS(faults))
{
	ck_assert_int_eq(open_two("b"), 0);
	ck_assert(!media.failed);
	ucm_media_note(&media, &media.dirs[1], "blocks/00", faults[_i].err);
	ck_assert(media.failed);
	ck_assert(ucm_media_asks(&media.dirs[0]));
	ck_assert(ucm_media_asks(&media.dirs[1]) == faults[_i].asked);
	ucm_media_close(&media);
}

UNIT_TEST(what_cannot_be_opened_is_left_out)
{
	ck_assert_int_eq(open_two("none"), 0);
	ck_assert(media.failed);
	ck_assert(ucm_media_asks(&media.dirs[0]));
	ck_assert(!ucm_media_asks(&media.dirs[1]));
	ucm_media_close(&media);
}
