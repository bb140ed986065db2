/* SPDX-License-Identifier: Apache-2.0 */
/* test_spaces.c - spaces on disk: folders, owners, space.json. */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/block/manifest.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

#define MANIFEST(layers)                                                      \
	"{\"model\":\"m\",\"geometry\":{\"num_layers\":" layers               \
	",\"block_size\":4,\"dtype\":\"float16\",\"k_bytes\":128,"            \
	"\"v_bytes\":128,\"num_kv_heads\":2,\"head_dim\":8}}"

static struct fx_file file;
static struct ucm_space *space;

static int make(const char *name, mode_t mode)
{
	return ucm_store_mkdir(fx_set, name, mode, geteuid(), getegid(),
			       &space);
}

static void with_space(const char *source)
{
	fx_store(source);
	ck_assert_int_eq(make("llama", 0755), 0);
	fx_block(&file, 1, FX_PAGED);
	file.key.space = space->number;
}

static int write_manifest(const char *text)
{
	return ucm_store_write_manifest(fx_set, space, text, strlen(text));
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

/* Of one that was being written when its writer was killed. */
UNIT_TEST(a_space_with_the_rest_of_a_manifest_can_be_removed)
{
	with_space("$/a,$/b");
	fx_put(fx_path("$/a/spaces/llama/space.json.new"), "{", 1);
	fx_put(fx_path("$/a/spaces/llama/space.json.make"), "{", 1);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
	ck_assert(!fx_exists(fx_path("$/a/spaces/llama")));
}

UNIT_TEST(a_space_is_made_used_emptied_and_removed)
{
	with_space("$/a,$/b");
	ck_assert(fx_exists(fx_path("$/a/spaces/llama")));
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), -ENOTEMPTY);
	fx_serves(&file);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
	ck_assert(!fx_exists(fx_path("$/a/spaces/llama")));
	ck_assert(!fx_exists(fx_path("$/b/spaces/llama")));
	fx_misses(&file);
	ck_assert_int_eq(fx_commit(&file), -ENOENT);
	ck_assert_int_eq(make("llama", 0755), 0);
}

UNIT_TEST(a_space_comes_back_with_its_blocks)
{
	with_space("$/a,$/b");
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_close();
	fx_open();
	fx_start();
	space = ucm_namespace_find(&fx_set->names, "llama");
	ck_assert_ptr_nonnull(space);
	file.key.space = space->number;
	fx_serves(&file);
}

UNIT_TEST(one_name_in_two_spaces_is_two_blocks)
{
	struct fx_file same;

	with_space("$/a");
	fx_block(&same, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_misses(&same);
	ck_assert_int_eq(fx_commit(&same), 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	fx_serves(&same);
}

UNIT_TEST(wrong_spaces_are_refused)
{
	fx_store("$/a");
	ck_assert_int_eq(make("", 0755), -EINVAL);
	ck_assert_int_eq(make("..", 0755), -EINVAL);
	ck_assert_int_eq(make("a/b", 0755), -EINVAL);
	ck_assert_int_eq(make("a", 0755), 0);
	ck_assert_int_eq(make("a", 0755), -EEXIST);
	fx_fail("mkdir", 1, -EIO, true);
	ck_assert_int_eq(make("b", 0755), -EIO);
	ck_assert_ptr_null(ucm_namespace_find(&fx_set->names, "b"));
	ck_assert_int_eq(make("b", 0755), 0);
}

static mode_t mode_of(const char *path)
{
	struct stat st;

	ck_assert_int_eq(fx_stat(path, &st), 0);
	return st.st_mode & 0777;
}

UNIT_TEST(a_private_space_stays_private)
{
	fx_store("$/a");
	ck_assert_int_eq(make("secret", 0700), 0);
	ck_assert(space->is_private);
	ck_assert_uint_eq(mode_of(fx_path("$/a/spaces/secret")), 0700);
	fx_close();
	fx_open();
	fx_start();
	space = ucm_namespace_find(&fx_set->names, "secret");
	ck_assert(space->is_private);
	ck_assert_int_eq(ucm_store_chmod(fx_set, space, false), 0);
	ck_assert_uint_eq(mode_of(fx_path("$/a/spaces/secret")), 0755);
	ck_assert_int_eq(ucm_store_chown(fx_set, space, (uid_t)-1, (gid_t)-1),
			 0);
	ck_assert_uint_eq(space->uid, geteuid());
	fx_fail("fchmod", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_chmod(fx_set, space, true), -EIO);
}

/* Folders of a private space in other directories are made with its first
 * block there. */
UNIT_TEST(a_private_space_is_private_in_every_directory)
{
	fx_configure("$/a,$/b");
	fx_option("placement", "round_robin");
	fx_open();
	fx_start();
	ck_assert_int_eq(make("secret", 0700), 0);
	for (unsigned i = 0; i < 2; i++) {
		fx_block(&file, i, FX_PAGED);
		file.key.space = space->number;
		ck_assert_int_eq(fx_commit(&file), 0);
	}
	ck_assert_uint_eq(mode_of(fx_path("$/a/spaces/secret")), 0700);
	ck_assert_uint_eq(mode_of(fx_path("$/b/spaces/secret")), 0700);
}

UNIT_TEST(a_foreign_file_keeps_a_space_and_all_that_is_in_it, .rows = 3)
{
	static const char *const foreign[] = {
		"$/b/spaces/llama/00/notes", "$/b/spaces/llama/notes",
		"$/a/spaces/llama/notes",
	};
	char text[1024];

	with_space("$/a,$/b");
	ck_assert_int_eq(write_manifest(MANIFEST("2")), 0);
	fx_put(fx_path("%s", foreign[_i]), "keep me", 7);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), -ENOTEMPTY);
	ck_assert(fx_exists(fx_path("%s", foreign[_i])));
	ck_assert_int_eq(
		ucm_store_read_manifest(fx_set, space, text, sizeof(text)), 0);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
}

UNIT_TEST(a_manifest_is_kept_and_enforced)
{
	struct ucm_geometry g = fx_geometry;
	struct fx_file wrong;
	char text[1024];

	with_space("$/a,$/b");
	ck_assert_int_eq(
		ucm_store_read_manifest(fx_set, space, text, sizeof(text)),
		-ENOENT);
	ck_assert_int_eq(write_manifest(MANIFEST("2")), 0);
	ck_assert_int_eq(
		ucm_store_read_manifest(fx_set, space, text, sizeof(text)), 0);
	ck_assert_str_eq(text, MANIFEST("2"));
	ck_assert_int_eq(ucm_store_read_manifest(fx_set, space, text, 10),
			 -EFBIG);
	g.num_layers = 3;
	for (int round = 0; round < 2; round++) {
		fx_block_of(&wrong, 2, FX_PAGED, &g);
		wrong.key.space = space->number;
		ck_assert_int_eq(fx_commit(&wrong), -EINVAL);
		/* and after a restart, without any block */
		fx_close();
		fx_open();
		fx_start();
		space = ucm_namespace_find(&fx_set->names, "llama");
	}
	file.key.space = space->number;
	ck_assert_int_eq(fx_commit(&file), 0);
}

UNIT_TEST(a_block_names_its_space_rightly_or_not_at_all)
{
	struct ucm_manifest manifest;
	struct ucm_error error;

	with_space("$/a");
	ck_assert_int_eq(ucm_manifest_parse(MANIFEST("2"),
					    strlen(MANIFEST("2")), &manifest,
					    &error),
			 0);
	ck_assert_int_eq(write_manifest(MANIFEST("2")), 0);
	file.block.flags = UCM_BLOCK_HAS_SPACE;
	memset(file.block.space_id, 7, 32);
	fx_encode(&file, true);
	ck_assert_int_eq(fx_commit(&file), -EINVAL);
	ck_assert(fx_logged("space_id"));
	memcpy(file.block.space_id, manifest.space_id, 32);
	fx_encode(&file, true);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
	fx_close();
	fx_open();
	fx_start();
	file.key.space = ucm_namespace_find(&fx_set->names, "llama")->number;
	fx_serves(&file);
}

UNIT_TEST(a_wrong_manifest_changes_nothing)
{
	char text[1024];

	with_space("$/a");
	ck_assert_int_eq(write_manifest("{"), -EINVAL);
	ck_assert(fx_logged("not accepted"));
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(write_manifest(MANIFEST("3")), -EINVAL);
	ck_assert_int_eq(
		ucm_store_read_manifest(fx_set, space, text, sizeof(text)),
		-ENOENT);
	ck_assert_int_eq(write_manifest(MANIFEST("2")), 0);
}

UNIT_TEST(a_manifest_that_cannot_be_written_is_not_in_force)
{
	struct ucm_geometry g = fx_geometry;

	with_space("$/a");
	fx_fail("rename", 1, -ENOSPC, true);
	ck_assert_int_eq(write_manifest(MANIFEST("2")), -ENOSPC);
	g.num_layers = 3;
	fx_block_of(&file, 2, FX_PAGED, &g);
	file.key.space = space->number;
	ck_assert_int_eq(fx_commit(&file), 0);
}

UNIT_TEST(a_manifest_that_is_spoilt_is_told_and_ignored)
{
	fx_configure("$/a");
	fx_put(fx_path("$/a/spaces/llama/space.json"), "{]", 2);
	fx_open();
	fx_start();
	ck_assert(fx_logged("spaces/llama: space.json:1"));
	space = ucm_namespace_find(&fx_set->names, "llama");
	fx_block(&file, 1, FX_PAGED);
	file.key.space = space->number;
	ck_assert_int_eq(fx_commit(&file), 0);
}

UNIT_TEST(the_default_space_may_have_a_manifest)
{
	fx_store("$/a");
	space = fx_set->names.spaces[0];
	ck_assert_int_eq(write_manifest(MANIFEST("2")), 0);
	ck_assert(fx_exists(fx_path("$/a/blocks/space.json")));
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_close();
	fx_open();
	fx_start();
	fx_serves(&file);
	ck_assert_uint_eq(fx_set->stats.strays, 0);
}

UNIT_TEST(a_space_with_a_commit_under_way_is_busy)
{
	struct ucm_error why;

	with_space("$/a");
	ck_assert_int_eq(ucm_space_admit(space, &file.block, &why), 0);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), -EBUSY);
	ucm_space_settled(space);
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
}

/* A block that comes in the middle of a removal must not lie in a folder that
 * nobody knows any more. */
static int rival_err = 1;

static int commit_at_rmdir(const char *call, const char *path)
{
	(void)path;
	if (!strcmp(call, "rmdir") && rival_err == 1) {
		rival_err = 0;
		rival_err = fx_commit(&file);
	}
	return 0;
}

UNIT_TEST(a_space_that_is_being_removed_takes_no_block)
{
	with_space("$/a");
	ucm_os_fault = commit_at_rmdir;
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
	ck_assert_int_eq(rival_err, -EINVAL);
	ck_assert(fx_logged("being removed"));
	ck_assert(!fx_exists(fx_path("$/a/spaces/llama")));
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 0);
}

UNIT_TEST(a_removal_that_failed_leaves_the_space_in_use)
{
	/* by what they are about: the keepers make calls meanwhile */
	static const struct { const char *call, *part; unsigned nth; }
	calls[] = {
		{ "list", "llama", 1 }, /* for its buckets */
		{ "rmdir", "llama/", 1 },
		{ "list", "llama", 2 }, /* for what else there is */
		{ "unlink", "space.json", 1 },
		{ "rmdir", "llama", 2 }, /* after that of a bucket */
	};

	with_space("$/a");
	for (size_t i = 0; i < NUM_ROWS(calls); i++) {
		fx_fail_on(calls[i].call, calls[i].part, calls[i].nth, -EIO,
			   true);
		ck_assert_int_eq(ucm_store_rmdir(fx_set, space), -EIO);
		fx_fail(NULL, 0, 0, false);
		ck_assert_int_eq(fx_commit(&file), 0);
		fx_serves(&file);
		ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	}
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
}

/* Numbers are not used again, so nobody may use them up. */
UNIT_TEST(a_user_makes_so_many_spaces)
{
	const uid_t uid = geteuid() + 1;
	char name[16];

	fx_option("spaces", "3");
	fx_store("$/a");
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		ck_assert_int_eq(
			ucm_store_mkdir(fx_set, name, 0755, uid, 0, &space), 0);
		ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
	}
	ck_assert_int_eq(ucm_store_mkdir(fx_set, "s0", 0755, uid, 0, &space),
			 -EDQUOT);
	ck_assert(!fx_exists(fx_path("$/a/spaces/s0")));
	ck_assert_int_eq(
		ucm_store_mkdir(fx_set, "s0", 0755, uid + 1, 0, &space), 0);
	ck_assert_int_eq(
		ucm_store_mkdir(fx_set, "s1", 0755, geteuid(), 0, &space), 0);
}
