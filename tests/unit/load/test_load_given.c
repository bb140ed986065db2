/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_given.c - loads from a source that opens blocks itself and gives
 * descriptors: late, after a refusal, or not at all if a test wants.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/load/thread.h"
#include "tests/unit/load_fixture.h"

#define BLOCKS 8u
#define LAYER 4096
#define REFUSALS 3u

/* ---- the source ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned requests;	/* for descriptors */
	unsigned asked;		/* for so many blocks */
	int refusals[REFUSALS]; /* its next answers; 0: it opens the block */
	unsigned next;
	int always;	  /* or this one each time */
	unsigned room;	  /* descriptors that it has; 0: enough */
	unsigned holds;	  /* block + 1: who asks for it waits */
	unsigned waiting; /* those who do */
	unsigned losses;  /* times that it was asked whether it is back */
	bool comes_back;
	bool remote; /* its files are with a server */
} desk = { .lock = PTHREAD_MUTEX_INITIALIZER,
	   .changed = PTHREAD_COND_INITIALIZER };

static int desk_open(const char *text, struct ucm_source **out,
		     struct ucm_error *error)
{
	(void)text, (void)error;
	*out = (struct ucm_source *)&desk;
	return 0;
}

static void desk_close(struct ucm_source *source)
{
	(void)source;
}

static int desk_check_space(struct ucm_source *source, const char *space)
{
	(void)source;
	return *space ? -ENOENT : 0;
}

static unsigned number_of(const struct ucm_id *id)
{
	for (unsigned n = 0; n < BLOCKS; n++) {
		struct ucm_id one = lf_id(n);

		if (!memcmp(&one, id, sizeof(one)))
			return n;
	}
	ck_abort_msg("a block that no test asks for");
	return 0;
}

/* Under the lock. */
static int next_refusal(void)
{
	if (desk.always)
		return desk.always;
	return desk.next < REFUSALS ? desk.refusals[desk.next++] : 0;
}

static int give_one(const struct ucm_id *id)
{
	unsigned n = number_of(id);
	int err, fd;

	pthread_mutex_lock(&desk.lock);
	desk.asked++;
	err = next_refusal();
	if (desk.holds == n + 1) {
		desk.waiting++;
		pthread_cond_broadcast(&desk.changed);
		while (desk.holds == n + 1)
			pthread_cond_wait(&desk.changed, &desk.lock);
	}
	if (!err && desk.room && lf_open_files("/dir/blocks/") >= desk.room)
		err = -EMFILE;
	/* a path is formatted in memory that threads share */
	fd = err ? err : open(lf_path("$/dir", n), O_RDONLY | O_CLOEXEC);
	if (!err && fd < 0)
		fd = -errno;
	pthread_mutex_unlock(&desk.lock);
	return fd;
}

static void desk_descriptors(struct ucm_source *source, const char *space,
			     const struct ucm_id *ids, unsigned num,
			     struct ucm_given *given)
{
	(void)source, (void)space;
	pthread_mutex_lock(&desk.lock);
	desk.requests++;
	pthread_mutex_unlock(&desk.lock);
	for (unsigned i = 0; i < num; i++)
		given[i] = (struct ucm_given){
			.fd = give_one(&ids[i]),
			.directory = number_of(&ids[i]) % 2,
			.local = !desk.remote,
		};
}

static bool desk_lost(struct ucm_source *source)
{
	(void)source;
	pthread_mutex_lock(&desk.lock);
	desk.losses++;
	pthread_mutex_unlock(&desk.lock);
	return desk.comes_back;
}

/* Two directories. */
static bool desk_where(struct ucm_source *source, const char *space,
		       const struct ucm_id *id, struct ucm_where *out)
{
	(void)source, (void)space;
	*out = (struct ucm_where){ .directory = number_of(id) % 2 };
	return true;
}

static const struct ucm_source_ops desk_ops = {
	.name = "desk",
	.open = desk_open,
	.close = desk_close,
	.check_space = desk_check_space,
	.where = desk_where,
	.descriptors = desk_descriptors,
	.lost = desk_lost,
};

static void hold(unsigned n)
{
	pthread_mutex_lock(&desk.lock);
	desk.holds = n + 1;
	pthread_mutex_unlock(&desk.lock);
}

static bool one_waits(void *arg)
{
	bool yes;

	(void)arg;
	pthread_mutex_lock(&desk.lock);
	yes = desk.waiting;
	pthread_mutex_unlock(&desk.lock);
	return yes;
}

static void let_go(void)
{
	pthread_mutex_lock(&desk.lock);
	desk.holds = 0;
	pthread_cond_broadcast(&desk.changed);
	pthread_mutex_unlock(&desk.lock);
}

static void refuse(const int *errs, unsigned num)
{
	memset(desk.refusals, 0, sizeof(desk.refusals));
	memcpy(desk.refusals, errs, num * sizeof(*errs));
	desk.next = 0;
}

/* ---- the tests' frame ---- */

static struct lf_cache cache;
static struct ucm_loader *loader;

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_cache_open(&cache, &lf_geometry, BLOCKS);
	for (unsigned n = 0; n < BLOCKS; n++)
		lf_plant("$/dir", &lf_geometry, n);
	ucm_loader_source = &desk_ops;
}

static void teardown(void)
{
	let_go();
	ucm_loader_source = NULL;
	lf_cache_close(&cache);
	fx_teardown();
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* One thread: what it has open it gives back itself. */
static void open_loader(enum ucm_io_kind io)
{
	struct ucm_loader_options options = { .io = lf_io(io), .threads = 1 };

	loader = lf_loader("$/none", &cache, &options);
}

/* It has let go of all that it was given. */
static void close_loader(void)
{
	ucm_loader_close(loader);
	ck_assert_uint_eq(lf_open_files("/dir/"), 0);
}

/* Block n into page 0; what its outcome says. */
static int load(unsigned n)
{
	struct ucm_outcome outcome;
	int result;

	lf_cache_clear(&cache);
	result = lf_load(loader, n, 1, NULL, &outcome);
	ck_assert_int_eq(result, outcome.err ? -EIO : 0);
	if (!outcome.err)
		ck_assert(lf_page_is(&cache, 0, 0, 4, n));
	else if (outcome.err != -EBADMSG) /* that may have been read into it */
		ck_assert(lf_page_untouched(&cache, 0, 0, 4));
	return outcome.err;
}

/* ---- descriptors ---- */

static const struct {
	enum ucm_io_kind io;
	enum fx_kind kind;
	enum ucm_load_order order;
} ways[] = {
	{ UCM_IO_AUTO, FX_PAGED, UCM_LOAD_BLOCKS },
	{ UCM_IO_AUTO, FX_PACKED, UCM_LOAD_LAYERS },
	{ UCM_IO_THREADS, FX_PAGED, UCM_LOAD_LAYERS },
	{ UCM_IO_THREADS, FX_PACKED, UCM_LOAD_BLOCKS },
};

/* Each block is asked for once, while its file stays open. */
UNIT_TEST(blocks_are_read_from_what_is_given, .rows = NUM_ROWS(ways))
{
	struct ucm_request request = { .order = ways[_i].order,
				       .group_layers = 1 };
	uint8_t *bytes;
	size_t len;

	bytes = lf_file(&lf_geometry, 1, ways[_i].kind, &len);
	fx_put(lf_path("$/dir", 1), bytes, len);
	free(bytes);
	open_loader(ways[_i].io);
	for (unsigned round = 0; round < 2; round++) {
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loader, 0, 3, &request, NULL), 0);
		for (unsigned i = 0; i < 3; i++)
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
		ck_assert(lf_page_untouched(&cache, 3, 0, 4));
	}
	ck_assert_uint_eq(desk.asked, 3);
	close_loader();
}

/* Of each directory. */
UNIT_TEST(what_is_wanted_together_is_one_request)
{
	open_loader(UCM_IO_AUTO);
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, BLOCKS, NULL, NULL), 0);
	for (unsigned i = 0; i < BLOCKS; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	ck_assert_uint_eq(desk.asked, BLOCKS);
	ck_assert_uint_eq(desk.requests, 2);
	close_loader();
}

UNIT_TEST(a_wrong_byte_is_found)
{
	uint8_t *bytes;
	size_t len;

	bytes = lf_file(&lf_geometry, 1, FX_PAGED, &len);
	bytes[4096 + 2 * LAYER] ^= 1;
	fx_put(lf_path("$/dir", 1), bytes, len);
	free(bytes);
	open_loader(UCM_IO_AUTO);
	ck_assert_int_eq(load(1), -EBADMSG);
	ck_assert_int_eq(load(2), 0);
	close_loader();
}

/* It is no block, whatever has the name. */
UNIT_TEST(a_folder_is_no_block)
{
	ck_assert_int_eq(unlink(lf_path("$/dir", 1)), 0);
	fx_mkdirs(lf_path("$/dir", 1));
	open_loader(UCM_IO_AUTO);
	ck_assert_int_eq(load(1), -ENOENT);
	close_loader();
}

/* ---- refusals ---- */

static const int errors[] = { -ENOENT, -EIO, -EACCES, -ENOMEM, -EAGAIN,
			      -EINTR, -ECANCELED };

/* It is the block's; others are none the worse, and it may be asked for again. */
UNIT_TEST(an_error_is_its_blocks, .rows = NUM_ROWS(errors))
{
	struct ucm_outcome outcomes[3];
	unsigned failed = 0;

	open_loader(UCM_IO_AUTO);
	refuse(&errors[_i], 1);
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 3; i++) {
		if (!outcomes[i].err) {
			ck_assert(lf_page_is(&cache, i, 0, 4, i));
			continue;
		}
		ck_assert_int_eq(outcomes[i].err, errors[_i]);
		ck_assert(lf_page_untouched(&cache, i, 0, 4));
		failed++;
	}
	ck_assert_uint_eq(failed, 1);
	ck_assert_uint_eq(desk.asked, 3);
	ck_assert_uint_eq(desk.losses, 0);
	ck_assert_int_eq(lf_load(loader, 0, 3, NULL, NULL), 0);
	ck_assert_uint_eq(desk.asked, 4);
	close_loader();
}

/* One that is absent, and has come when it is asked for again. */
UNIT_TEST(what_was_absent_is_asked_for_again)
{
	ck_assert_int_eq(unlink(lf_path("$/dir", 1)), 0);
	open_loader(UCM_IO_AUTO);
	ck_assert_int_eq(load(1), -ENOENT);
	ck_assert_int_eq(load(1), -ENOENT);
	ck_assert_uint_eq(desk.asked, 2);
	lf_plant("$/dir", &lf_geometry, 1);
	ck_assert_int_eq(load(1), 0);
	ck_assert_uint_eq(desk.asked, 3);
	close_loader();
}

static const int full[] = { -EMFILE, -ENFILE };

UNIT_TEST(without_descriptors_it_is_asked_once_more, .rows = NUM_ROWS(full))
{
	open_loader(UCM_IO_AUTO);
	refuse(&full[_i], 1);
	ck_assert_int_eq(load(0), 0);
	ck_assert_uint_eq(desk.asked, 2);
	desk.always = full[_i];
	ck_assert_int_eq(load(1), full[_i]);
	ck_assert_uint_eq(desk.asked, 4);
	ck_assert_uint_eq(desk.losses, 0);
	close_loader();
}

/* Those that nobody uses are closed before it is asked again: there is room for
 * no more than them. */
UNIT_TEST(unused_descriptors_make_room, .rows = 4)
{
	desk.remote = _i / 2;
	open_loader(_i % 2 ? UCM_IO_THREADS : UCM_IO_AUTO);
	ck_assert_int_eq(lf_load(loader, 0, BLOCKS - 1, NULL, NULL), 0);
	ck_assert_uint_eq(lf_open_files("/dir/blocks/"), BLOCKS - 1);
	desk.room = 1;
	lf_hold(UCM_IO_CLOSE, 0); /* none that has to wait for the ring helps */
	ck_assert_int_eq(load(BLOCKS - 1), 0);
	lf_release();
	ck_assert_uint_eq(desk.asked, BLOCKS + 1);
	ck_assert_uint_eq(lf_open_files("/dir/blocks/"), 1);
	close_loader();
}

/* ---- a daemon that ends ---- */

static const int gone[] = { -ENOTCONN, -ECONNABORTED, -ENODEV, -ESTALE };

UNIT_TEST(what_is_back_is_asked_once_more, .rows = NUM_ROWS(gone))
{
	open_loader(UCM_IO_AUTO);
	desk.comes_back = true;
	refuse(&gone[_i], 1);
	ck_assert_int_eq(load(0), 0);
	ck_assert_uint_eq(desk.asked, 2);
	ck_assert_uint_eq(desk.losses, 1);
	close_loader();
}

UNIT_TEST(what_goes_again_fails, .rows = NUM_ROWS(gone))
{
	open_loader(UCM_IO_AUTO);
	desk.comes_back = true;
	desk.always = gone[_i];
	ck_assert_int_eq(load(0), gone[_i]);
	ck_assert_uint_eq(desk.asked, 2);
	ck_assert_uint_eq(desk.losses, 1);
	desk.always = 0;
	ck_assert_int_eq(load(0), 0);
	close_loader();
}

UNIT_TEST(what_is_not_back_fails_at_once, .rows = NUM_ROWS(gone))
{
	open_loader(UCM_IO_AUTO);
	refuse(&gone[_i], 1);
	ck_assert_int_eq(load(0), gone[_i]);
	ck_assert_uint_eq(desk.asked, 1);
	ck_assert_uint_eq(desk.losses, 1);
	ck_assert_int_eq(load(0), 0);
	close_loader();
}

/* Either is tried once, for the same block; then what it says counts. */
UNIT_TEST(each_remedy_is_tried_once)
{
	static const int chain[] = { -EMFILE, -ENOTCONN, -EMFILE };

	open_loader(UCM_IO_AUTO);
	desk.comes_back = true;
	refuse(chain, 2);
	ck_assert_int_eq(load(0), 0);
	ck_assert_uint_eq(desk.asked, 3);
	refuse(chain, 3);
	ck_assert_int_eq(load(1), -EMFILE);
	ck_assert_uint_eq(desk.asked, 6);
	ck_assert_uint_eq(desk.losses, 2);
	close_loader();
}

/* ---- time ---- */

/* Who waits for one keeps no other from its block. */
UNIT_TEST(a_slow_one_holds_up_no_other, .rows = 2)
{
	struct ucm_task *tasks[2];

	open_loader(_i ? UCM_IO_THREADS : UCM_IO_AUTO);
	hold(0);
	lf_cache_clear(&cache);
	tasks[0] = lf_submit(loader, false, 0, 2, NULL);
	fx_wait(one_waits, NULL);
	ck_assert_int_eq(lf_load(loader, 2, 4, NULL, NULL), 0);
	/* and a second one that wants it waits with it */
	tasks[1] = lf_submit(loader, false, 0, 1, NULL);
	ck_assert_int_eq(lf_load(loader, 6, 1, NULL, NULL), 0);
	ck_assert(!ucm_task_done(tasks[0]));
	ck_assert(!ucm_task_done(tasks[1]));
	lf_cache_clear(&cache);
	let_go();
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
	ck_assert_uint_eq(desk.asked, 7);
	close_loader();
}

static bool others_are_there(void *arg)
{
	(void)arg;
	return lf_page_is(&cache, 1, 0, 4, 1) && lf_page_is(&cache, 3, 0, 4, 3);
}

/* Though they are wanted together. */
UNIT_TEST(a_slow_directory_holds_up_no_other, .rows = 2)
{
	struct ucm_task *task;

	open_loader(_i ? UCM_IO_THREADS : UCM_IO_AUTO);
	hold(0);
	lf_cache_clear(&cache);
	task = lf_submit(loader, false, 0, 4, NULL);
	fx_wait(one_waits, NULL);
	fx_wait(others_are_there, NULL);
	ck_assert(!ucm_task_done(task));
	let_go();
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	close_loader();
}

/* Both ways in which a load is given up, while it waits for its descriptor. */
static void give_up(bool late)
{
	struct ucm_request request = { .deadline_ms = late ? 200 : 0 };
	struct ucm_task *task;

	hold(0);
	lf_cache_clear(&cache);
	task = lf_submit(loader, false, 0, 1, &request);
	fx_wait(one_waits, NULL);
	if (!late)
		ucm_task_cancel(task);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ck_assert_int_eq(ucm_task_outcomes(task)->err,
			 late ? -ETIMEDOUT : -ECANCELED);
	ucm_task_free(task);
}

/* It ends at once; the descriptor that comes then serves the next one. */
UNIT_TEST(a_load_is_given_up_while_it_waits, .rows = 2)
{
	open_loader(UCM_IO_AUTO);
	give_up(_i);
	let_go();
	ck_assert(lf_page_untouched(&cache, 0, 0, 4));
	ck_assert_int_eq(load(0), 0);
	ck_assert_uint_eq(desk.asked, 1);
	close_loader();
}

static const int remedied[] = { -EMFILE, -ENOTCONN, -ENOENT };

/* For nobody it is not tried again. */
UNIT_TEST(an_error_that_nobody_waits_for_ends_it, .rows = NUM_ROWS(remedied))
{
	open_loader(UCM_IO_AUTO);
	desk.comes_back = true;
	refuse(&remedied[_i], 1);
	give_up(false);
	let_go();
	close_loader();
	ck_assert(lf_page_untouched(&cache, 0, 0, 4));
	ck_assert_uint_eq(desk.asked, 1);
	ck_assert_uint_eq(desk.losses, 0);
}

/* Nor is a descriptor left that comes when the loader is about to close. */
UNIT_TEST(a_loader_that_closes_lets_go_of_what_comes)
{
	open_loader(UCM_IO_AUTO);
	give_up(true);
	let_go();
	close_loader();
	ck_assert_uint_eq(desk.asked, 1);
}
