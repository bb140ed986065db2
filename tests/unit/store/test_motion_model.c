/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_motion_model.c - random lives of a store of three tiers, against a map.
 *
 * A life is a child: it opens the store, with its movers, does a few hundred
 * random things, checks each answer, and ends well or is killed at a random
 * moment. What it did stands in memory that it shares with its parent, so that
 * the next life knows what must be there: a thing that was begun and not ended
 * may have been done or not.
 *
 * What must hold: what is read has the right bytes; what was unlinked is gone; a
 * block that is pinned or open is there, and so is every other that no
 * limit asked for; no directory is over its limit by more than one block; what directories count
 * is what the index has. Some kinds of lives are in a space, whose quota comes and
 * goes: no commit passes it, it is there in the next life, and what the space
 * takes is what its blocks take.
 *
 * When do limits ask for a block? When the lowest tier is at its low mark, which
 * is as far as movers go; when a space is over its quota; and, for a new block,
 * when the lowest tier takes none because it is being drained. The store counts
 * what it evicts: when that number has grown and nothing asked, a block is lost;
 * when something asked, the map no longer knows which blocks are there. A drain
 * itself asks for nothing.
 *
 * UCMFS_TEST_LONG=1: a million things of each kind of life.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fs/store/find/calls.h"
#include "fs/store/motion/motion.h"
#include "tests/unit/memory_medium.h"
#include "fs/store/quota.h"
#include "tests/unit/random.h"
#include "tests/unit/store_fixture.h"

#define NUM 96u /* blocks */
#define BYTES 8192u
#define LIFE 400u /* things that are done in a life */
#define EARLY 3u /* unlinks before all is read */
#define HELD 4u
#define SLOW_US 300u

enum state { ABSENT, MAYBE, PRESENT };

struct fate {
	uint8_t state;  /* enum state */
	uint8_t pinned; /* likewise */
};

struct model {
	struct fate fates[NUM];
	uint64_t random;
	uint64_t done;
	/* Of the space, in bytes: what it had, and what it has or is to have. */
	uint64_t quotas[2];
	bool unknown; /* a life may have evicted what it did not write down */
};

static const struct kind {
	const char *name, *source, *limits[3];
	const char *policy;
	const char *write;
	bool evicts;
	bool in_space;
} kinds[] = {
	{"roomy", "fast=$/a:mid=$/b:slow=$/c", {NULL}, "lru", "fast:back",
	 false, false},
	{"roomy, two directories", "fast=$/a:slow=$/b,$/c", {NULL}, "hazard",
	 "fast:stay", false, false},
	{"tight above", "fast=$/a:mid=$/b:slow=$/c",
	 {"fast:80K", "mid:80K"}, "lru", "fast:back", false, false},
	{"tight above, hazard", "fast=$/a:mid=$/b:slow=$/c",
	 {"fast:80K", "mid:80K"}, "hazard", "fast:stay", false, false},
	{"tight", "fast=$/a:mid=$/b:slow=$/c",
	 {"fast:80K", "mid:160K", "slow:320K"}, "hazard", "fast:back", true,
	 false},
	{"tight, write-through", "fast=$/a:mid=$/b:slow=$/c",
	 {"fast:80K", "mid:160K", "slow:320K"}, "lru", "fast:through", true,
	 false},
	{"tight, around", "fast=$/a:mid=$/b:slow=$/c",
	 {"fast:80K", "mid:160K", "slow:320K"}, "lru", "fast:around", true,
	 false},
	{"a space", "fast=$/a:mid=$/b:slow=$/c", {NULL}, "lru", "fast:back",
	 true, true},
	{"a tight space", "fast=$/a:mid=$/b:slow=$/c",
	 {"fast:80K", "mid:160K", "slow:320K"}, "hazard", "fast:through", true,
	 true},
};

static struct fx_file files[NUM];
static struct model *model;
static const struct kind *kind;
static struct ucm_space *space;
static struct held {
	struct ucm_open open;
	int number;
	unsigned block;
	bool gone; /* unlinked: its bytes alone are there */
} helds[HELD];

/* In a life: check's own word for it is not heard there. */
#define claim(condition, ...)                                                 \
	do {                                                                  \
		if (!(condition)) {                                           \
			fprintf(stderr, "# line %d: ", __LINE__);             \
			fprintf(stderr, __VA_ARGS__);                         \
			fprintf(stderr, "; UCMFS_TEST_SEED=%" PRIu64 "\n",    \
				unit_seed());                                 \
			fx_print_log();                                       \
			_exit(1);                                             \
		}                                                             \
	} while (0)

/* check writes down each assertion that it passes, in a file of its own. A life
 * that is killed in the middle of that would leave half a line there. */
static void leave_check(void)
{
	char path[64], target[256];
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	for (int fd = 3; fd < 64; fd++) {
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		len = readlink(path, target, sizeof(target) - 1);
		target[len > 0 ? len : 0] = '\0';
		if (strstr(target, "/check_"))
			dup2(null, fd);
	}
	close(null);
}

static unsigned draw(unsigned num)
{
	return (unsigned)(random_next(&model->random) % num);
}

static void setup(void)
{
	fx_setup();
	for (unsigned i = 0; i < NUM; i++) {
		fx_block(&files[i], i + 1, FX_PAGED);
		if (i % 6) { /* chains of six */
			files[i].block.flags |= UCM_BLOCK_HAS_PARENT;
			files[i].block.parent = files[i - 1].key.id;
			fx_encode(&files[i], true);
		}
	}
	model = mmap(NULL, sizeof(*model), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(model != MAP_FAILED);
}

/* The quota is the one that it had, or was to have when the life ended. */
static void use_space(void)
{
	uint64_t quota;

	space = fx_set->names.spaces[0];
	if (!kind->in_space)
		return;
	space = ucm_namespace_find(&fx_set->names, "s");
	if (!space)
		claim(!ucm_store_mkdir(fx_set, "s", 0755, 0, 0, &space),
		      "no space");
	for (unsigned i = 0; i < NUM; i++)
		files[i].key.space = space->number;
	quota = ucm_quota_of(&fx_config, space);
	claim(quota == model->quotas[0] || quota == model->quotas[1],
	      "a quota of %llu", (unsigned long long)quota);
	model->quotas[0] = model->quotas[1] = quota;
}

static void open_store(void)
{
	fx_configure(kind->source);
	fx_option("policy", kind->policy);
	fx_option("write", kind->write);
	fx_option("promote", "now");
	for (unsigned i = 0; i < NUM_ROWS(kind->limits); i++) {
		if (kind->limits[i])
			fx_option("limit", kind->limits[i]);
	}
	fx_open();
	fx_start_only();
	use_space();
}

/* ---- what is expected ---- */

static bool is_held(unsigned i)
{
	for (unsigned j = 0; j < HELD; j++) {
		if (helds[j].number && helds[j].block == i && !helds[j].gone)
			return true;
	}
	return model->fates[i].pinned == PRESENT;
}

/* ---- what limits ask for ---- */

#define WINDOW 32u /* things that may be done before a mover acts on what it saw */
#define SLACK 8u   /* blocks by which it may then go below the low mark */
#define NONE UINT32_MAX

static unsigned drained = NONE; /* the directory that is being drained */
static bool asking, committing; /* what is being done */
static uint64_t evicted;	/* so many were, when it was looked last */
static uint64_t peak;		/* the most that the lowest tier had lately */
static uint64_t peak_at;	/* by model->done */

static struct ucm_tier *lowest_tier(void)
{
	return &fx_set->dirs.tiers[fx_set->dirs.num_tiers - 1];
}

static uint64_t count_evicted(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < fx_set->dirs.num_tiers; i++)
		sum += atomic_load(&fx_set->dirs.tiers[i].stats.evicted);
	return sum;
}

/* Has the lowest tier been at its low mark lately? */
static bool lowest_is_full(void)
{
	uint64_t limit = ucm_tier_limit_bytes(lowest_tier());

	return limit != UINT64_MAX &&
	       peak + SLACK * BYTES >= limit / 100 * fx_set->config->low;
}

static void note_peak(void)
{
	uint64_t used = ucm_tier_used(lowest_tier());
	bool old = model->done - peak_at > WINDOW &&
		   !atomic_load(&fx_set->evictions.running);

	if (used < peak && !old)
		return;
	peak = used;
	peak_at = model->done;
}

static bool lowest_is_drained(void)
{
	return drained != NONE &&
	       fx_set->dirs.tier_of[drained] == lowest_tier() &&
	       kind->limits[0];
}

static bool limits_ask(void)
{
	return asking || model->quotas[0] || model->quotas[1] ||
	       lowest_is_full() || (committing && lowest_is_drained());
}

static void forget_fates(void)
{
	for (unsigned i = 0; i < NUM; i++) {
		if (model->fates[i].state == PRESENT && !is_held(i))
			model->fates[i].state = MAYBE;
	}
}

/* Has anything been evicted? It must have been asked for. */
static void note_evictions(void)
{
	uint64_t now = count_evicted();

	note_peak();
	if (now != evicted) {
		claim(limits_ask(), "%llu blocks were evicted for nothing",
		      (unsigned long long)(now - evicted));
		forget_fates();
	}
	evicted = now;
}

/* A block goes before it is counted. */
static void wait_for_evictions(void)
{
	const struct timespec moment = {.tv_nsec = 1000000};

	for (unsigned i = 0;
	     i < 10000 && atomic_load(&fx_set->evictions.running) &&
			     count_evicted() == evicted;
	     i++)
		nanosleep(&moment, NULL);
	note_evictions();
}

static bool must_be_there(unsigned i)
{
	if (model->fates[i].state == PRESENT && !is_held(i))
		wait_for_evictions();
	return model->fates[i].state == PRESENT;
}

/* Opened and read; what the map says of it is so from now on. */
static int open_and_read(unsigned i, struct ucm_open *open)
{
	uint8_t bytes[BYTES + 1];
	struct ucm_entry entry;
	ucm_ref ref;
	int number = ucm_store_find(fx_set, &files[i].key, &entry, &ref);

	if (!number)
		number = fx_open_block_held(ref, &entry, open);
	if (number == -ENOENT) {
		claim(!must_be_there(i),
		      "block %u is lost: pinned %d, there %d", i,
		      model->fates[i].pinned,
		      ucm_index_find(fx_set->index, &files[i].key, NULL, NULL));
		return number;
	}
	claim(number >= 0, "block %u: %s", i, strerror(-number));
	claim(model->fates[i].state != ABSENT, "block %u is back", i);
	claim(fx_pread(number, bytes, sizeof(bytes), 0) == BYTES, "short");
	claim(!memcmp(bytes, files[i].bytes, BYTES), "block %u: wrong bytes",
	      i);
	return number;
}

/* ---- things to do ---- */

static void do_commit(unsigned i)
{
	struct fate *fate = &model->fates[i];
	uint64_t quota = ucm_quota_of(&fx_config, space);
	bool there = ucm_index_find(fx_set->index, &files[i].key, NULL, NULL);
	uint8_t was = fate->state;
	int err;

	if (was == ABSENT)
		fate->state = MAYBE;
	committing = true;
	model->unknown |= lowest_is_drained();
	err = fx_commit(&files[i]);
	if (!err)
		fate->state = PRESENT;
	else if ((kind->evicts || lowest_is_drained()) &&
		 (err == -ENOSPC || err == -EDQUOT))
		fate->state = was;
	else
		claim(false, "commit: %s", strerror(-err));
	/* now, as it may have been evicted at once */
	note_evictions();
	committing = false;
	claim(err || there || !quota || space->used <= quota,
	      "a commit has passed the quota of %llu: %llu",
	      (unsigned long long)quota, (unsigned long long)space->used);
}

static void do_read(unsigned i)
{
	int number = open_and_read(i, NULL);

	if (number >= 0)
		fx_close_file(number);
}

static void do_hold(unsigned i)
{
	struct held *held = &helds[draw(HELD)];

	if (held->number) {
		uint8_t bytes[BYTES];

		/* whatever became of the block: who has it open reads on */
		claim(fx_pread(held->number, bytes, BYTES, 0) == BYTES, "short");
		claim(!memcmp(bytes, files[held->block].bytes, BYTES), "block %u: wrong bytes",
	      held->block);
		ucm_hold_end(fx_set, &held->open);
		fx_close_file(held->number);
		held->number = 0;
		return;
	}
	held->open = (struct ucm_open){ 0 };
	held->block = i;
	held->gone = false;
	held->number = open_and_read(i, &held->open);
	if (held->number < 0)
		held->number = 0;
}

static void do_unlink(unsigned i)
{
	struct fate *fate = &model->fates[i];
	int err;

	if (fate->state == PRESENT)
		fate->state = MAYBE;
	if (fate->pinned == PRESENT)
		fate->pinned = MAYBE;
	err = ucm_store_remove(fx_set, &files[i].key);
	claim(!err || err == -ENOENT, "it failed");
	fate->state = fate->pinned = ABSENT;
	for (unsigned j = 0; j < HELD; j++) {
		if (helds[j].number && helds[j].block == i)
			helds[j].gone = true;
	}
}

static bool find(unsigned i, ucm_ref *ref)
{
	struct ucm_entry entry;

	return !ucm_store_find(fx_set, &files[i].key, &entry, ref);
}

static void do_pin(unsigned i)
{
	struct fate *fate = &model->fates[i];
	bool pin = fate->pinned == ABSENT && !draw(4);
	ucm_ref ref;
	int err;

	if (!find(i, &ref))
		return;
	fate->pinned = MAYBE;
	err = ucm_store_pin(fx_set, ref, pin);
	if (!err)
		fate->pinned = pin ? PRESENT : ABSENT;
	else
		fate->pinned = ABSENT;
	claim(!err || err == -ENOENT, "it failed");
	if (!err && pin)
		fate->state = PRESENT;
}

static void do_expect(unsigned i)
{
	int known = ucm_calls_expect(fx_set, &files[i].key, 0);

	claim(known >= 0 || known == -ENOENT, "it failed");
}

static void is_one_of(int err, const int *errors, unsigned num)
{
	for (unsigned i = 0; i < num; i++) {
		if (err == errors[i])
			return;
	}
	claim(false, "a move: %s", strerror(-err));
}

static const int harmless[] = {0, -ENOENT, -EEXIST, -EBUSY, -ENOSPC, -ESTALE,
			       -EPERM};

static void do_copy(unsigned i)
{
	const struct ucm_move_terms move = {
		.to = &fx_set->dirs.tiers[draw(fx_set->dirs.num_tiers)],
		.first = draw(2),
		.durable = draw(2),
		.within = !draw(4),
	};
	ucm_ref ref;

	if (find(i, &ref))
		is_one_of(ucm_store_copy(fx_set, ref, &move, NULL), harmless,
			  NUM_ROWS(harmless));
}

static void do_drop(unsigned i)
{
	ucm_ref ref;

	if (find(i, &ref))
		is_one_of(ucm_store_drop_place(fx_set, ref,
					       draw(fx_set->dirs.num), NULL),
			  harmless, NUM_ROWS(harmless));
}

static void do_evict(unsigned i)
{
	uint64_t freed;

	if (!kind->evicts)
		return;
	asking = true;
	ucm_evict_bytes(fx_set, i % fx_set->dirs.num, BYTES,
			draw(2) ? UCM_EVICTION_MOVING : UCM_EVICTION_AT_ONCE,
			NULL,
			&freed);
	note_evictions();
	asking = false;
}

/* One directory at a time, so that another takes what is new. */
static void do_drain(unsigned i)
{
	if (drained != NONE) {
		ucm_movers_drain(fx_set, drained, false);
		drained = NONE;
	} else {
		drained = i % fx_set->dirs.num;
		ucm_movers_drain(fx_set, drained, true);
	}
}

static void do_flush(unsigned i)
{
	int err = ucm_movers_flush(fx_set, NULL, NULL);

	(void)i;
	claim(!err || (err == -ENOSPC && (kind->evicts || drained != NONE)),
	      "flush: %s", strerror(-err));
}

static bool quota_is_busy(void)
{
	struct ucm_quota *quota = atomic_load(&space->quota);

	return quota && atomic_load(&quota->victims.busy);
}

/* By one thread, which is this one: what is taken is never more than it was, or
 * than the quota. */
static void do_quota(unsigned i)
{
	const struct timespec moment = {.tv_nsec = 1000000};

	if (!kind->in_space)
		return;
	model->quotas[1] = draw(4) ? (uint64_t)(i + 4) * BYTES : 0;
	claim(!ucm_store_set_quota(fx_set, space, model->quotas[1]),
	      "no quota");
	/* a mover that has begun goes on by the quota that was */
	while (quota_is_busy())
		nanosleep(&moment, NULL);
	note_evictions();
	model->quotas[0] = model->quotas[1];
}

static void do_evict_one(unsigned i)
{
	bool there = must_be_there(i), held = is_held(i);
	int err;

	if (!kind->evicts)
		return;
	err = ucm_store_evict(fx_set, &files[i].key, false);
	/* busy: it is being copied */
	claim(!err || err == -EBUSY || !there || held || !must_be_there(i),
	      "evict: %s", strerror(-err));
	if (!err) {
		claim(!held || model->fates[i].state != PRESENT,
			      "block %u was held", i);
		model->fates[i].state = ABSENT;
		model->fates[i].pinned = ABSENT;
	}
}

static const struct {
	void (*fn)(unsigned i);
	unsigned weight;
} things[] = {
	{do_commit, 30}, {do_read, 30}, {do_hold, 10},  {do_unlink, 4},
	{do_pin, 3},     {do_expect, 6}, {do_copy, 12}, {do_drop, 8},
	{do_evict, 4},   {do_evict_one, 2}, {do_quota, 2}, {do_drain, 2},
	{do_flush, 1},
};

static void do_something(void)
{
	unsigned all = 0, choice;

	for (unsigned i = 0; i < NUM_ROWS(things); i++)
		all += things[i].weight;
	choice = draw(all);
	for (unsigned i = 0; i < NUM_ROWS(things); i++) {
		if (choice < things[i].weight) {
			things[i].fn(draw(NUM));
			break;
		}
		choice -= things[i].weight;
	}
	model->done++;
}

/* ---- what must hold at any time ---- */

static void limits_hold(unsigned when)
{
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++) {
		struct ucm_tier *tier = fx_set->dirs.tier_of[dir];
		uint64_t limit = ucm_tier_limit_bytes(tier);

		if (limit != UINT64_MAX)
			claim(ucm_tier_used(tier) <= limit + BYTES,
			      "tier %s is over its limit at %u: %llu",
			      tier->name, when,
			      (unsigned long long)ucm_tier_used(tier));
	}
}

/* When nothing moves. */
static void sums_are_right(void)
{
	uint64_t blocks[3] = {0}, num = 0;

	for (unsigned i = 0; i < NUM; i++) {
		struct ucm_entry entry;

		if (!ucm_index_find(fx_set->index, &files[i].key, &entry, NULL))
			continue;
		num++;
		blocks[entry.dir]++;
		if (entry.copy)
			blocks[entry.copy - 1]++;
	}
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++) {
		const struct ucm_medium *medium = fx_set->dirs.at[dir];

		claim(medium->blocks == blocks[dir] &&
			      medium->used == blocks[dir] * BYTES,
		      "%s: %llu blocks take %llu: there are %llu", medium->path,
		      (unsigned long long)medium->blocks,
		      (unsigned long long)medium->used,
		      (unsigned long long)blocks[dir]);
	}
	claim(space->blocks == num && space->used == num * BYTES,
	      "%llu blocks of a space take %llu", (unsigned long long)num,
	      (unsigned long long)space->used);
	claim(!space->writing, "promised");
}

/* ---- a life ---- */

static void look_at_all(void)
{
	for (unsigned i = 0; i < NUM; i++) {
		struct fate *fate = &model->fates[i];
		int number = open_and_read(i, NULL);

		fate->state = number < 0 ? ABSENT : PRESENT;
		if (number >= 0)
			fx_close_file(number);
		else
			fate->pinned = ABSENT;
	}
}

static void look_at_pins(void)
{
	for (unsigned i = 0; i < NUM; i++) {
		struct fate *fate = &model->fates[i];
		struct ucm_entry entry;
		bool pinned;

		if (!ucm_index_find(fx_set->index, &files[i].key, &entry, NULL))
			continue;
		pinned = entry.flags & UCM_ENTRY_PINNED;
		claim(fate->pinned == MAYBE ||
				      pinned == (fate->pinned == PRESENT),
			      "block %u: pinned: %d", i, pinned);
		fate->pinned = pinned ? PRESENT : ABSENT;
	}
}

/* While the directories are read: what is found is so from then on. */
static void look_early(void)
{
	for (unsigned i = 0; i < EARLY; i++)
		do_unlink(draw(NUM));
	look_at_all();
}

static void *kill_soon(void *arg)
{
	const struct timespec time = {.tv_nsec = (long)(uintptr_t)arg};

	nanosleep(&time, NULL);
	if (fx_before_death)
		fx_before_death();
	_exit(42);
}

static void live(void *arg)
{
	bool dies = draw(2);
	pthread_t killer;

	(void)arg;
	leave_check();
	if (draw(2)) /* where it is in memory: other orders */
		memory_delay(NULL, draw(SLOW_US));
	open_store();
	if (kind->evicts || model->unknown)
		forget_fates();
	model->unknown = false;
	if (draw(2))
		look_early();
	fx_wait_scanned();
	look_at_pins();
	look_at_all();
	if (dies)
		claim(!pthread_create(&killer, NULL, kill_soon,
				     (void *)(uintptr_t)(draw(30000) * 1000)), "it failed");
	for (unsigned i = 0; i < LIFE; i++) {
		do_something();
		note_evictions();
		limits_hold(i);
	}
	if (dies)
		pthread_join(killer, NULL);
	for (unsigned j = 0; j < HELD; j++) {
		if (helds[j].number) {
			ucm_hold_end(fx_set, &helds[j].open);
			fx_close_file(helds[j].number);
		}
	}
	/* threads end first, so that the sums stand still */
	ucm_store_quiet(fx_set);
	claim(ucm_movers_stop(fx_set), "it failed");
	note_evictions();
	sums_are_right();
	fx_close();
}

static uint64_t num_things(void)
{
	const char *text = getenv("UCMFS_TEST_LONG");

	return text && atoi(text) ? 1000000 : 1500;
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown, .timeout = 3600);

UNIT_TEST(nothing_is_lost_and_no_byte_is_wrong, .rows = NUM_ROWS(kinds))
{
	kind = &kinds[_i];
	model->random = random_case((unsigned)_i);
	while (model->done < num_things())
		fx_in_child(live, NULL);
}

/* For UNIT_PROGRAM: on directories and on media in memory. */
UNIT_PROGRAM(.variants = fx_media);
