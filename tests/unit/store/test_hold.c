/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hold.c - what holds a block, and who takes it away.
 */
#include <config.h>

#include "fs/store/find/hold.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "fs/store/store.h"
#include "tests/unit/random.h"
#include "tests/unit/store_fixture.h"

static struct fx_file file;
static ucm_ref ref;

static ucm_ref ref_of(const struct fx_file *of)
{
	ucm_ref found;

	must(ucm_index_find(fx_set->index, &of->key, NULL, &found));
	return found;
}

static void setup(void)
{
	fx_setup();
	fx_store("fast=$/a:slow=$/b");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ref = ref_of(&file);
}

static struct ucm_hold holds(void)
{
	struct ucm_hold hold;

	ck_assert_int_eq(ucm_store_holds(fx_set, ref, &hold), 0);
	return hold;
}

static int open_file(struct ucm_open *open)
{
	struct ucm_entry entry;

	return fx_open_block_held(ref, &entry, open);
}

static int evict(void)
{
	return ucm_store_evict(fx_set, &file.key, false);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(nothing_holds_a_block_at_first)
{
	struct ucm_hold hold = holds(), none = {0};

	ck_assert_mem_eq(&hold, &none, sizeof(hold));
	ck_assert_int_eq(evict(), 0);
	fx_misses(&file);
	ck_assert_int_eq(ucm_store_holds(fx_set, ref, &hold), -ENOENT);
}

UNIT_TEST(an_open_block_is_not_evicted)
{
	struct ucm_open open = {0};
	int fd = open_file(&open);

	ck_assert_int_ge(fd, 0);
	ck_assert_uint_eq(holds().opens, 1);
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), 0);
	ck_assert_uint_eq(holds().opens, 2);
	ck_assert_int_eq(evict(), -EBUSY);
	ucm_hold_close(&open);
	ck_assert_int_eq(evict(), -EBUSY);
	ucm_hold_close(&open);
	/* kept, and not open */
	ck_assert_uint_eq(holds().opens, 0);
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), 0);
	ck_assert_int_eq(evict(), -EBUSY);
	ucm_hold_end(fx_set, &open);
	fx_close_file(fd);
	ck_assert_int_eq(evict(), 0);
}

UNIT_TEST(a_kept_file_is_not_opened_once_its_block_is_evicted)
{
	struct ucm_open open = {0};
	int fd = open_file(&open);

	ucm_hold_close(&open);
	ck_assert_int_eq(evict(), 0);
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), -ENOENT);
	ucm_hold_end(fx_set, &open);
	fx_close_file(fd);
}

UNIT_TEST(files_of_one_block_add_up)
{
	struct ucm_open opens[3] = {0};
	int fds[3];

	for (unsigned i = 0; i < 3; i++)
		fds[i] = open_file(&opens[i]);
	ck_assert_uint_eq(holds().opens, 3);
	/* from the middle of the chain */
	ucm_hold_end(fx_set, &opens[1]);
	ck_assert_uint_eq(holds().opens, 2);
	ucm_hold_end(fx_set, &opens[1]); /* harmless */
	ucm_hold_end(fx_set, &opens[2]);
	ucm_hold_end(fx_set, &opens[0]);
	ck_assert_uint_eq(holds().opens, 0);
	for (unsigned i = 0; i < 3; i++)
		fx_close_file(fds[i]);
}

UNIT_TEST(unlink_asks_nobody)
{
	struct ucm_open open = {0};
	int fd = open_file(&open);

	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	fx_misses(&file);
	ucm_hold_close(&open);
	ucm_hold_end(fx_set, &open);
	fx_close_file(fd);
}

UNIT_TEST(a_pinned_block_is_not_evicted)
{
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), 0);
	ck_assert(holds().pinned);
	ck_assert_int_eq(evict(), -EPERM);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref, false), 0);
	ck_assert_int_eq(evict(), 0);
}

UNIT_TEST(a_block_whose_writer_has_it_open_is_not_evicted)
{
	struct ucm_temp temp;
	struct fx_file late;
	int fd;

	fx_block(&late, 2, FX_PAGED);
	fd = fx_create(&late.key, 0, &temp);
	ck_assert_int_eq(fx_pwrite(fd, late.bytes, late.len, 0),
			 (ssize_t)late.len);
	ck_assert_int_eq(fx_commit_temp(&temp, fd, &late.key, UCM_COMMIT_NOW),
			 0);
	ref = temp.ref;
	ck_assert(holds().being_written);
	ck_assert_int_eq(ucm_store_evict(fx_set, &late.key, false), -EBUSY);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	ck_assert(!holds().being_written);
	ck_assert_int_eq(ucm_store_evict(fx_set, &late.key, false), 0);
}

UNIT_TEST(a_claimed_block_is_absent)
{
	struct ucm_open open = {0};
	struct ucm_hold hold;

	ck_assert_int_eq(ucm_store_claim(fx_set, ref, false, &hold), 0);
	ck_assert(holds().leaving);
	fx_misses(&file);
	ck_assert_int_eq(open_file(&open), -ENOENT);
	ck_assert_uint_eq(open.ref, 0);
	ck_assert_int_eq(ucm_store_claim(fx_set, ref, false, &hold), -ENOENT);
	ck_assert_int_eq(evict(), -ENOENT);
	ucm_store_unclaim(fx_set, ref);
	fx_serves(&file);
	ck_assert_int_eq(evict(), 0);
}

UNIT_TEST(a_claim_says_what_holds_the_block)
{
	struct ucm_open open = {0};
	struct ucm_hold hold;
	int fd = open_file(&open);

	ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), 0);
	ck_assert_int_eq(ucm_store_claim(fx_set, ref, false, &hold), -EPERM);
	ck_assert_uint_eq(hold.opens, 1);
	ck_assert(hold.pinned && !hold.leaving);
	ucm_hold_end(fx_set, &open);
	fx_close_file(fd);
}

/* Nothing is lost, and nobody goes on being told that it is absent. */
UNIT_TEST(an_eviction_that_fails_leaves_the_block)
{
	fx_fail("unlink", 1, -EIO, true);
	ck_assert_int_eq(evict(), -EIO);
	fx_fail(NULL, 0, 0, false);
	ck_assert(!holds().leaving);
	fx_serves(&file);
}

UNIT_TEST(what_is_open_is_counted)
{
	struct ucm_open open = {0};
	int fd = open_file(&open);

	must(!ucm_store_open_again(fx_set, &open));
	ck_assert_uint_eq(ucm_store_count_open(fx_set), 1);
	ucm_hold_end(fx_set, &open);
	fx_close_file(fd);
}

/* ---- against a model ---- */

enum { BLOCKS = 5, FILES = 4, STEPS = 20000, CASES = 5 };

struct model {
	struct ucm_open opens[FILES];
	unsigned num[FILES]; /* opens of each file */
	bool pinned, claimed;
	ucm_ref ref;
};

static void model_add_blocks(struct model *models)
{
	for (unsigned i = 0; i < BLOCKS; i++) {
		struct fx_file block;

		fx_block(&block, 10 + i, FX_PAGED);
		must(!fx_commit(&block));
		models[i] = (struct model){.ref = ref_of(&block)};
	}
}

static int model_verdict(const struct model *model)
{
	unsigned held = 0;

	for (unsigned i = 0; i < FILES; i++)
		held += model->num[i];
	return model->claimed  ? -ENOENT
	       : model->pinned ? -EPERM
	       : held	       ? -EBUSY
			       : 0;
}

static bool model_step_file(struct model *model, uint64_t *random)
{
	unsigned i = (unsigned)random_between(random, 0, FILES - 1);
	int err;

	switch (random_between(random, 0, 2)) {
	case 0:
		err = ucm_hold_open(fx_set, &model->opens[i], model->ref, true);
		model->num[i] += !err;
		return err == (model->claimed ? -ENOENT : 0);
	case 1:
		if (model->num[i]) {
			model->num[i]--;
			ucm_hold_close(&model->opens[i]);
		}
		return true;
	default:
		model->num[i] = 0;
		ucm_hold_end(fx_set, &model->opens[i]);
		return true;
	}
}

static bool model_step_claim(struct model *model, uint64_t *random)
{
	int want = model_verdict(model), err;

	if (model->claimed && random_between(random, 0, 1)) {
		ucm_store_unclaim(fx_set, model->ref);
		model->claimed = false;
		return true;
	}
	err = ucm_store_claim(fx_set, model->ref, false, NULL);
	model->claimed |= !err;
	return err == want;
}

static bool model_step(struct model *model, uint64_t *random)
{
	switch (random_between(random, 0, 4)) {
	case 0:
	case 1:
		return model_step_file(model, random);
	case 2:
	case 3:
		return model_step_claim(model, random);
	default:
		if (!model->claimed) {
			model->pinned = !model->pinned;
			return !ucm_store_pin(fx_set, model->ref,
					      model->pinned);
		}
		return true;
	}
}

static bool model_agrees(const struct model *model)
{
	unsigned opens = 0;
	struct ucm_hold hold;

	for (unsigned i = 0; i < FILES; i++)
		opens += model->num[i];
	return !ucm_store_holds(fx_set, model->ref, &hold) &&
	       hold.opens == opens && hold.pinned == model->pinned &&
	       hold.leaving == model->claimed;
}

UNIT_TEST(what_holds_a_block_is_what_a_model_says, .rows = CASES)
{
	uint64_t random = random_case((unsigned)_i);
	struct model models[BLOCKS];

	model_add_blocks(models);
	for (unsigned step = 0; step < STEPS; step++) {
		struct model *model =
		    &models[random_between(&random, 0, BLOCKS - 1)];

		must_in_case(model_step(model, &random), (unsigned)_i, "step");
		must_in_case(model_agrees(model), (unsigned)_i, "holds");
	}
	for (unsigned i = 0; i < BLOCKS; i++) {
		for (unsigned k = 0; k < FILES; k++)
			ucm_hold_end(fx_set, &models[i].opens[k]);
	}
}

/* ---- by several threads ---- */

enum { THREADS = 4, ROUNDS = 20000 };

/* Who holds each block, by what he has been told. */
static struct {
	ucm_ref ref;
	_Atomic int holders;
	_Atomic uint64_t claims, opens;
} shared[BLOCKS];

static void race_open(unsigned i, struct ucm_open *open)
{
	if (ucm_hold_open(fx_set, open, shared[i].ref, false))
		return;
	atomic_fetch_add(&shared[i].holders, 1);
	atomic_fetch_add(&shared[i].opens, 1);
	sched_yield();
	atomic_fetch_sub(&shared[i].holders, 1);
	ucm_hold_close(open);
}

static void race_claim(unsigned i)
{
	if (ucm_store_claim(fx_set, shared[i].ref, false, NULL))
		return;
	atomic_fetch_add(&shared[i].claims, 1);
	for (int look = 0; look < 100; look++)
		must(!atomic_load(&shared[i].holders));
	sched_yield();
	must(!atomic_load(&shared[i].holders));
	ucm_store_unclaim(fx_set, shared[i].ref);
}

struct racer {
	pthread_t thread;
	unsigned number;
};

static void *race(void *arg)
{
	const struct racer *racer = arg;
	uint64_t random = random_case(100 + racer->number);
	struct ucm_open opens[BLOCKS] = {0};

	for (unsigned round = 0; round < ROUNDS; round++) {
		unsigned i = (unsigned)random_between(&random, 0, BLOCKS - 1);

		switch (random_between(&random, 0, 3)) {
		case 0:
			race_claim(i);
			break;
		case 1: /* its file is closed for good */
			ucm_hold_end(fx_set, &opens[i]);
			break;
		default:
			race_open(i, &opens[i]);
		}
	}
	for (unsigned i = 0; i < BLOCKS; i++)
		ucm_hold_end(fx_set, &opens[i]);
	return NULL;
}

/* Whoever has a block open keeps it; whoever has claimed it has it alone. */
UNIT_TEST(holders_and_claims_exclude_each_other)
{
	struct model models[BLOCKS];
	struct racer racers[THREADS];

	model_add_blocks(models);
	for (unsigned i = 0; i < BLOCKS; i++)
		shared[i].ref = models[i].ref;
	for (unsigned i = 0; i < THREADS; i++) {
		racers[i].number = i;
		must(
		    !pthread_create(&racers[i].thread, NULL, race, &racers[i]));
	}
	for (unsigned i = 0; i < THREADS; i++)
		must(!pthread_join(racers[i].thread, NULL));
	for (unsigned i = 0; i < BLOCKS; i++) {
		must(shared[i].claims && shared[i].opens);
		must(!ucm_store_claim(fx_set, shared[i].ref, false, NULL));
		ucm_store_unclaim(fx_set, shared[i].ref);
	}
}

struct opener {
	struct ucm_open open;
	int fd;
};

static void *open_once(void *arg)
{
	struct opener *opener = arg;

	opener->fd = open_file(&opener->open);
	return NULL;
}

/* The same with files: who was given one has it, and the block stays. */
UNIT_TEST(an_open_or_an_eviction_comes_first)
{
	unsigned opened = 0, evicted = 0;

	for (int i = 0; i < 300; i++) {
		struct opener opener = {0};
		pthread_t thread;
		int err;

		must(!pthread_create(&thread, NULL, open_once, &opener));
		err = evict();
		must(!pthread_join(thread, NULL));
		if (opener.fd < 0) {
			ck_assert_msg(opener.fd == -ENOENT && !err, "%d %d",
				      opener.fd, err);
			must(!fx_commit(&file));
			ref = ref_of(&file);
			evicted++;
			continue;
		}
		must(err == -EBUSY);
		fx_serves(&file);
		ucm_hold_end(fx_set, &opener.open);
		fx_close_file(opener.fd);
		opened++;
	}
	ck_assert_uint_eq(opened + evicted, 300);
}
