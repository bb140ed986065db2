/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nth.c - every call of the store fails, each in its turn, in ten ways.
 *
 * An operation is done while its nth call fails, once or from then on, for n
 * from 1 until it is not met by the fault any more. Whatever it says, it is
 * true then: done, and wholly, or not done; no wrong byte is served, before
 * the next start or after it; and nothing unfinished is left.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/store/find/find.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

/* What is known of a block after the operation. */
enum fate {
	NOT_ASKED,
	THERE,
	GONE,
	EITHER, /* there, or not; but if so, whole */
};

struct tracked {
	struct fx_file file;
	enum fate now, later; /* after the next start */
};

struct operation {
	const char *name;
	void (*arrange)(void);
	int (*act)(void);
	void (*compare)(int err); /* says the fates, and looks at the rest */
	void (*after)(int err);   /* likewise, when it has been started anew */
	unsigned calls;           /* that it makes at least */
};

static const int errnos[] = {
	-EIO,	 -ENOSPC, -EROFS, -ETIMEDOUT, -EDQUOT,
	-ENOMEM, -EMFILE, -EINTR, -ESTALE,    -EACCES,
};
#define NUM_LASTING 4 /* the first of them, which a dead disk goes on to say */

static struct tracked blocks[3];
static char where[256]; /* for whoever reads of a failure */
static char dir_a[32], dir_b[32], source[80];
static bool dying; /* all calls fail from the nth on: nothing can be undone */

#define holds(condition)                                                      \
	do {                                                                  \
		if (!(condition))                                             \
			ck_abort_msg("%s: %s", where, #condition);            \
	} while (0)

/* ---- blocks ---- */

static bool is_served(const struct fx_file *file)
{
	uint8_t bytes[sizeof(file->bytes)];
	struct ucm_entry entry;
	ucm_ref ref;
	int fd;

	if (ucm_store_find(fx_set, &file->key, &entry, &ref))
		return false;
	fd = fx_open_block(ref, &entry);
	if (fd < 0)
		return false;
	holds(fx_pread(fd, bytes, sizeof(bytes), 0) == (ssize_t)file->len);
	holds(!memcmp(bytes, file->bytes, file->len));
	fx_close_file(fd);
	return true;
}

static void compare_fates(bool now)
{
	for (unsigned i = 0; i < NUM_ROWS(blocks); i++) {
		enum fate fate = now ? blocks[i].now : blocks[i].later;
		bool served = fate != NOT_ASKED && is_served(&blocks[i].file);

		holds(fate != THERE || served);
		holds(fate != GONE || !served);
	}
}

static void set_fate(unsigned i, enum fate now, enum fate later)
{
	blocks[i].now = now;
	blocks[i].later = later;
}

/* Blocks 0 to num - 1 are there, the last of them being of a kind. */
static void commit_blocks(unsigned num, enum fx_kind last)
{
	for (unsigned i = 0; i < num; i++) {
		fx_block(&blocks[i].file, i, i + 1 < num ? FX_PAGED : last);
		ck_assert_int_eq(fx_commit(&blocks[i].file), 0);
		set_fate(i, THERE, THERE);
	}
}

static const char *path_of(unsigned i)
{
	return fx_path("%s/blocks/%s", dir_a, fx_name(&blocks[i].file));
}

static void spoil(const char *path)
{
	char zeros[256] = { 0 };
	int fd = fx_open_path(path, O_WRONLY);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fx_pwrite(fd, zeros, sizeof(zeros), 4096), 256);
	fx_close_file(fd);
}

static ucm_ref ref_of(unsigned i)
{
	ucm_ref ref = 0;

	ck_assert(ucm_index_find(fx_set->index, &blocks[i].file.key, NULL,
				 &ref));
	return ref;
}

/* ---- the store ---- */

static void start(void)
{
	fx_configure(source);
	fx_config.scan_threads = 1;
	fx_open();
	fx_start();
}

static bool has_tried_all(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->scan.audited);
}

/* A start that meets a fault: it may fail, or leave something unread. */
static int try_to_start(void)
{
	struct ucm_error error = { "" };
	int err;

	fx_configure(source);
	fx_config.scan_threads = 1;
	err = ucm_store_open(&fx_config, &fx_set, &error);
	if (err) {
		fx_set = NULL;
		return err;
	}
	err = ucm_store_start(fx_set);
	if (!err)
		fx_wait(has_tried_all, NULL);
	return err;
}

static void stop(void)
{
	fx_close();
	ucm_config_fini(&fx_config);
	ucm_config_init(&fx_config);
}

/* As a power cut leaves the directory: in use, by a machine that has started
 * anew since. */
static void cut_power(void)
{
	static const char state[] = "clean=0\ncheckpoint=1\nboot=another\n";

	stop();
	fx_put(fx_path("%s/.ucmfs/state", dir_a), state, strlen(state));
}

/* ---- commit ---- */

static void one_block(void)
{
	start();
	commit_blocks(1, FX_PAGED);
	fx_block(&blocks[1].file, 1, FX_PAGED);
}

static void one_durable_block(void)
{
	one_block();
	fx_option("durability", "full");
}

static int commit_another(void)
{
	return fx_commit(&blocks[1].file);
}

static void committed_or_not(int err)
{
	enum fate fate = err ? GONE : THERE;

	/* linked, and then it could be neither synced nor removed */
	set_fate(1, fate, err && dying ? EITHER : fate);
}

static void nothing(int err)
{
	(void)err;
}

/* ---- unlink ---- */

static void two_blocks(void)
{
	start();
	commit_blocks(2, FX_PAGED);
}

static int remove_second(void)
{
	return ucm_store_remove(fx_set, &blocks[1].file.key);
}

static void removed_or_not(int err)
{
	enum fate fate = err ? THERE : GONE;

	set_fate(1, fate, fate);
}

/* In both directories: one copy at least stays where not all went. */
static void two_copies(void)
{
	start();
	commit_blocks(2, FX_PAGED);
	stop();
	fx_plant(dir_a, "blocks", &blocks[1].file);
	fx_plant(dir_b, "blocks", &blocks[1].file);
	start();
	fx_wait_settled();
}

/* ---- pins ---- */

static bool is_pinned(void)
{
	struct ucm_entry entry;

	return ucm_index_find(fx_set->index, &blocks[0].file.key, &entry,
			      NULL) &&
	       entry.flags & UCM_ENTRY_PINNED;
}

static void a_block(void)
{
	start();
	commit_blocks(1, FX_PAGED);
}

static void a_pinned_block(void)
{
	a_block();
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(0), true), 0);
}

static int pin(void)
{
	return ucm_store_pin(fx_set, ref_of(0), true);
}

static int unpin(void)
{
	return ucm_store_pin(fx_set, ref_of(0), false);
}

static void pinned_or_not(int err)
{
	holds(is_pinned() == !err);
}

static void unpinned_or_not(int err)
{
	holds(is_pinned() == !!err);
}

/* ---- quarantine ---- */

static void a_damaged_block(void)
{
	start();
	commit_blocks(2, FX_PAGED);
	spoil(path_of(1));
	ucm_store_doubt(fx_set, ref_of(1));
	set_fate(1, GONE, GONE);
}

static int ask_for_second(void)
{
	struct ucm_entry entry;
	ucm_ref ref;

	return ucm_store_find(fx_set, &blocks[1].file.key, &entry, &ref);
}

static void not_found(int err)
{
	holds(err);
}

static void set_aside(int err)
{
	(void)err;
	fx_wait_settled();
	holds(!fx_exists(path_of(1)));
	holds(fx_count(fx_path("%s/.ucmfs/quarantine", dir_a)) == 1);
}

/* ---- checkpoint, and the end ---- */

static int64_t checkpoint_before;

static int64_t checkpoint_of(void)
{
	long long ns = 0;
	char state[256];
	int clean;

	fx_read(fx_path("%s/.ucmfs/state", dir_a), state, sizeof(state));
	holds(sscanf(state, "clean=%d checkpoint=%lld\nboot=", &clean, &ns) ==
	      2);
	return ns;
}

static void committed_blocks(void)
{
	start();
	commit_blocks(3, FX_PAGED);
	checkpoint_before = checkpoint_of();
}

static int checkpoint(void)
{
	return ucm_store_checkpoint(fx_set);
}

/* The file is replaced before its folder is synced, which may fail. */
static void a_checkpoint_or_none(int err)
{
	holds(err || checkpoint_of() > checkpoint_before);
	holds(checkpoint_of() >= checkpoint_before);
	for (unsigned i = 0; i < 3; i++)
		set_fate(i, THERE, THERE);
}

static int end(void)
{
	fx_close();
	return 0;
}

/* ---- a start ---- */

static void closed_blocks(void)
{
	start();
	commit_blocks(3, FX_PAGED);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(0), true), 0);
	stop();
}

static void closed_blocks_without_snapshot(void)
{
	closed_blocks();
	fx_unlink(fx_path("%s/.ucmfs/snapshot", dir_a));
}

/* What could not be read is looked for again, in a while. */
static void perhaps_found(int err)
{
	(void)err;
	for (unsigned i = 0; i < 3; i++)
		set_fate(i, fx_set ? EITHER : NOT_ASKED, THERE);
}

static void still_pinned(int err)
{
	(void)err;
	holds(is_pinned());
}

static void cut_blocks(void)
{
	start();
	commit_blocks(3, FX_PAGED_RAW);
	spoil(path_of(1));
	cut_power();
}

static void torn_not_found(int err)
{
	(void)err;
	set_fate(0, fx_set ? EITHER : NOT_ASKED, THERE);
	set_fate(1, fx_set ? GONE : NOT_ASKED, GONE);
	set_fate(2, fx_set ? GONE : NOT_ASKED, GONE);
}

static void both_set_aside(int err)
{
	(void)err;
	fx_wait_settled();
	holds(fx_count(fx_path("%s/.ucmfs/quarantine", dir_a)) == 2);
}

/* ---- spaces ---- */

static const char manifest[] =
	"{\"geometry\": {\"num_layers\": 2, \"block_size\": 4, "
	"\"dtype\": \"float16\", \"k_bytes\": 128, \"v_bytes\": 128}}";

static struct ucm_space *space_of_test(void)
{
	return ucm_namespace_find(&fx_set->names, "s");
}

static int make_space(void)
{
	struct ucm_space *space;

	return ucm_store_mkdir(fx_set, "s", 0755, geteuid(), getegid(), &space);
}

static void space_or_none(int err)
{
	struct ucm_space *space = space_of_test();

	holds(!space == !!err || (err && dying));
	holds(!space || err || !space->is_private);
}

static void a_space(void)
{
	a_block();
	ck_assert_int_eq(make_space(), 0);
	fx_block(&blocks[1].file, 1, FX_PAGED);
	blocks[1].file.key.space = space_of_test()->number;
}

static int remove_space(void)
{
	return ucm_store_rmdir(fx_set, space_of_test());
}

static void no_space_or_one(int err)
{
	holds(!space_of_test() == !err);
}

/* It may have been the last call that failed, or the only one that mattered. */
static void no_space_or_perhaps_one(int err)
{
	holds(err || !space_of_test());
}

static int write_manifest(void)
{
	return ucm_store_write_manifest(fx_set, space_of_test(), manifest,
					strlen(manifest));
}

static void manifest_or_none(int err)
{
	char text[sizeof(manifest) + 1];
	int got = ucm_store_read_manifest(fx_set, space_of_test(), text,
					  sizeof(text));

	holds(got == (err ? -ENOENT : 0));
	holds(got || !strcmp(text, manifest));
	if (dying) /* it could not be removed, and the next one is made there */
		fx_unlink(fx_path("%s/spaces/s/space.json.new", dir_a));
}

static void a_limited_space(void)
{
	a_space();
	ck_assert_int_eq(ucm_store_set_quota(fx_set, space_of_test(), 1 << 20),
			 0);
}

static int set_quota(void)
{
	return ucm_store_set_quota(fx_set, space_of_test(), 1 << 21);
}

static void old_quota_or_new(int err)
{
	holds(space_of_test()->own_quota == (err ? 1u << 20 : 1u << 21));
	if (dying)
		fx_unlink(fx_path("%s/spaces/s/space.json.new", dir_a));
}

/* ---- all of them ---- */

static const struct operation operations[] = {
	{ "commit", one_block, commit_another, committed_or_not, nothing, 8 },
	{ "durable commit", one_durable_block, commit_another, committed_or_not,
	  nothing, 12 },
	{ "unlink", two_blocks, remove_second, removed_or_not, nothing, 1 },
	{ "unlink of two", two_copies, remove_second, removed_or_not, nothing,
	  2 },
	{ "pin", a_block, pin, pinned_or_not, pinned_or_not, 1 },
	{ "unpin", a_pinned_block, unpin, unpinned_or_not, unpinned_or_not, 1 },
	{ "quarantine", a_damaged_block, ask_for_second, not_found, set_aside,
	  4 },
	{ "checkpoint", committed_blocks, checkpoint, a_checkpoint_or_none,
	  nothing, 6 },
	{ "end", committed_blocks, end, perhaps_found, nothing, 10 },
	{ "start", closed_blocks, try_to_start, perhaps_found, still_pinned,
	  20 },
	{ "scan", closed_blocks_without_snapshot, try_to_start, perhaps_found,
	  still_pinned, 20 },
	{ "recovery", cut_blocks, try_to_start, torn_not_found, both_set_aside,
	  20 },
	{ "mkdir", a_block, make_space, space_or_none, space_or_none, 3 },
	{ "rmdir", a_space, remove_space, no_space_or_one,
	  no_space_or_perhaps_one, 6 },
	{ "space.json", a_space, write_manifest, manifest_or_none,
	  manifest_or_none, 5 },
	{ "quota", a_limited_space, set_quota, old_quota_or_new,
	  old_quota_or_new, 6 },
	{ "first block of a space", a_space, commit_another, committed_or_not,
	  nothing, 8 },
};

static void no_temporaries(void)
{
	holds(!fx_count_files(fx_path("%s/.ucmfs/tmp", dir_a)));
	holds(!fx_count_files(fx_path("%s/.ucmfs/tmp", dir_b)));
}

static void end_of_test(void)
{
	fx_close();
}

/* True if the fault was met. */
static bool try_nth(const struct operation *op, unsigned nth, int err,
		    bool once)
{
	const char *failed;
	int result;

	snprintf(dir_a, sizeof(dir_a), "$/a%u", nth);
	snprintf(dir_b, sizeof(dir_b), "$/b%u", nth);
	snprintf(source, sizeof(source), "%s:%s", dir_a, dir_b);
	memset(blocks, 0, sizeof(blocks));
	fx_at_end(end_of_test);
	op->arrange();
	fx_fail(NULL, nth, err, once);
	result = op->act();
	failed = fx_failed_call();
	fx_fail(NULL, 0, 0, false);
	snprintf(where, sizeof(where), "%s: call %u%s, %s: %s: %s", op->name,
		 nth, once ? "" : " and on", failed ? failed : "none",
		 strerror(-err), result ? strerror(-result) : "succeeds");
	op->compare(result);
	if (fx_set)
		compare_fates(true);
	stop();
	start();
	op->after(result);
	compare_fates(false);
	fx_wait_settled();
	no_temporaries();
	fx_all_whole(dir_a);
	stop();
	return failed;
}

/* UCMFS_TEST_LONG=1: each call with each of the errors; else with one of them, which
 * one is drawn; with UCMFS_TEST_CAMPAIGNS=no, one call of three. Of an operation that
 * makes hundreds of calls, the same again and again, some, others for each error. */
static unsigned stride(const struct operation *op, int err, unsigned num_errors)
{
	const char *text = getenv("UCMFS_TEST_LONG");
	const char *campaigns = getenv("UCMFS_TEST_CAMPAIGNS");

	if (op->calls > 100)
		return (unsigned)-err;
	if (text && strcmp(text, "0") != 0)
		return 1;
	return campaigns && !strcmp(campaigns, "no") ? 3 * num_errors
						     : num_errors;
}

/* With the error of this number, of so many. */
static void sweep(const struct operation *op, unsigned number,
		  unsigned num_errors, bool once)
{
	int err = errnos[number];
	unsigned step = stride(op, err, num_errors);
	unsigned nth = 1 + (unsigned)((unit_seed() + number) % step);

	dying = !once;
	while (try_nth(op, nth, err, once))
		nth += step;
	ck_assert_msg(nth > op->calls, "%s: %u calls only", op->name, nth - 1);
}

/* There are thousands of starts and ends, and each syncs. */
static void __attribute__((constructor)) use_memory(void)
{
	fx_use_memory();
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(a_call_that_fails_leaves_nothing_half_done,
	  .rows = NUM_ROWS(operations) * NUM_ROWS(errnos))
{
	sweep(&operations[_i / NUM_ROWS(errnos)], _i % NUM_ROWS(errnos),
	      NUM_ROWS(errnos), true);
}

UNIT_TEST(a_disk_that_dies_leaves_nothing_half_done,
	  .rows = NUM_ROWS(operations) * NUM_LASTING)
{
	sweep(&operations[_i / NUM_LASTING], _i % NUM_LASTING, NUM_LASTING,
	      false);
}
