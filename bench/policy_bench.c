/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_bench.c - how fast are victims chosen, and does the number of blocks
 * matter?
 *
 * Blocks lie in entries of 80 bytes, as in the store's index, in chains of 32,
 * with a list of the leaves. A victim is picked from the pool, taken out, and
 * remembered; its parent is offered; and it is put back as the tail of another
 * chain that was just asked for, so that there are always as many. Beside it the
 * same without a pool and a policy: as many draws, of which one goes that was
 * drawn a while ago. That is what the memory takes, and the less of it is in
 * caches the more; what is left when it is taken away must not depend on the
 * number.
 *
 * usage: policy_bench POLICY BLOCKS ROUNDS; a line for each figure: name, value,
 * unit, quartiles. bench/policy runs it.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/parse.h"
#include "fs/policy/pool.h"

#define CHAIN	  32u
#define ENTRY	  80u
#define VICTIMS	  20000u /* of a round */
#define NONE	  UINT32_MAX
#define MAX_ROUNDS 1000
#define START_S	  1000000u
#define REQUEST	  64u
#define EARLIER	  1024u /* draws, until one goes */

struct entry {
	struct ucm_policy_state state;
	uint32_t parent, children, leaf;
	uint8_t rest[ENTRY - sizeof(struct ucm_policy_state) - 12];
};
static_assert(sizeof(struct entry) == ENTRY, "the size of an entry");

static struct bench {
	struct ucm_policy *policy;
	struct ucm_pool pool;
	struct entry *entries;
	uint32_t *leaves;
	uint32_t num, num_leaves;
	uint32_t now_s;
	uint64_t random, touches;
} bench;

static void die(const char *what)
{
	fprintf(stderr, "policy_bench: %s\n", what);
	exit(1);
}

static void *get(size_t num, size_t size)
{
	void *room = calloc(num, size);

	if (!room)
		die("no memory");
	return room;
}

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static uint64_t next_random(void)
{
	uint64_t x = bench.random += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	return x ^ x >> 31;
}

static uint32_t below(uint32_t bound)
{
	return (uint32_t)((next_random() >> 32) * bound >> 32);
}

/* ---- blocks ---- */

static void add_leaf(uint32_t number)
{
	bench.entries[number].leaf = bench.num_leaves;
	bench.leaves[bench.num_leaves++] = number;
}

static void remove_leaf(uint32_t number)
{
	struct entry *entry = &bench.entries[number];
	uint32_t last = bench.leaves[--bench.num_leaves];

	bench.leaves[entry->leaf] = last;
	bench.entries[last].leaf = entry->leaf;
	entry->leaf = NONE;
}

static void hang_on(uint32_t number, uint32_t parent)
{
	bench.entries[number].parent = parent;
	if (parent == NONE)
		return;
	bench.entries[parent].children++;
	if (bench.entries[parent].leaf != NONE)
		remove_leaf(parent);
}

/* True: the parent has become a leaf. */
static bool take_off(uint32_t number)
{
	uint32_t parent = bench.entries[number].parent;

	if (parent == NONE || --bench.entries[parent].children)
		return false;
	add_leaf(parent);
	return true;
}

static void fill(void)
{
	for (uint32_t i = 0; i < bench.num; i++) {
		struct entry *entry = &bench.entries[i];

		entry->leaf = NONE;
		entry->state.last_s = START_S - below(20000);
		entry->state.uses = 1 + below(20);
		entry->state.mark = (uint8_t)below(128);
		bench.policy->ops->added(bench.policy, i, &entry->state);
		add_leaf(i);
		hang_on(i, i % CHAIN ? i - 1 : NONE);
	}
}

/* ---- victims ---- */

static bool draw(void *arg, struct ucm_pool_candidate *out)
{
	uint32_t number = bench.leaves[below(bench.num_leaves)];

	(void)arg;
	bench.touches++;
	out->ref = number;
	out->state = bench.entries[number].state;
	out->depth = number % CHAIN;
	return true;
}

static bool refresh(void *arg, struct ucm_pool_candidate *candidate)
{
	const struct entry *entry = &bench.entries[candidate->ref];

	(void)arg;
	bench.touches++;
	candidate->state = entry->state;
	return entry->leaf != NONE;
}

static const struct ucm_pool_source source = { draw, refresh, NULL };

static void offer(uint32_t number)
{
	struct ucm_pool_candidate candidate = {
		number, bench.entries[number].state, number % CHAIN,
	};

	ucm_pool_offer(&bench.pool, bench.policy, bench.now_s, &candidate);
}

/* A victim becomes the head of a new chain, or hangs on a leaf. */
static void evict(uint32_t number)
{
	struct entry *entry = &bench.entries[number];

	ucm_pool_drop(&bench.pool, number);
	remove_leaf(number);
	bench.policy->ops->gone(bench.policy, bench.now_s, number, &entry->state,
				UCM_POLICY_EVICTED);
	if (take_off(number))
		offer(entry->parent);
}

static void hang_back(uint32_t number)
{
	struct entry *entry = &bench.entries[number];
	uint32_t on = bench.num_leaves > bench.num / CHAIN
			      ? bench.leaves[below(bench.num_leaves)]
			      : NONE; /* a chain has ended: another begins */

	entry->state.last_s = bench.now_s;
	entry->state.uses = 1;
	add_leaf(number);
	hang_on(number, on);
}

static double round_of_victims(void)
{
	double began = now_ns();

	bench.touches = 0;
	for (unsigned i = 0; i < VICTIMS; i++) {
		struct ucm_pool_candidate victim;

		bench.now_s += i % 64 == 0;
		if (!ucm_pool_pick(&bench.pool, bench.policy, bench.now_s,
				   &source, &victim, NULL))
			die("no victim");
		evict((uint32_t)victim.ref);
		hang_back((uint32_t)victim.ref);
		bench.policy->ops->added(bench.policy, victim.ref,
					 &bench.entries[victim.ref].state);
	}
	return (now_ns() - began) / VICTIMS;
}

/* 0, after the processor has waited for value. */
static uint64_t wait_for(uint64_t value)
{
	uint64_t zero = 0;

	__asm__("" : "+r"(zero)); /* the compiler does not know that it is 0 */
	return value & zero;
}

static uint64_t children_of(uint32_t number)
{
	return number == NONE ? 0 : bench.entries[number].children;
}

/* The same looks at memory, and nothing chosen. As when one is chosen, the
 * victim waits for the draws, and the next draws for the victim's parent. */
static double round_of_draws(void)
{
	static uint32_t earlier[EARLIER];
	double began = now_ns();

	for (unsigned i = 0; i < VICTIMS; i++) {
		struct ucm_pool_candidate drawn = { 0 };
		uint32_t number, parent;

		for (unsigned j = 0; j < UCM_POOL_DRAWS; j++)
			draw(NULL, &drawn);
		number = earlier[(i + wait_for(drawn.state.uses)) % EARLIER];
		earlier[i % EARLIER] = (uint32_t)drawn.ref;
		drawn.ref = number;
		if (!refresh(NULL, &drawn))
			number = bench.leaves[below(bench.num_leaves)];
		parent = bench.entries[number].parent;
		remove_leaf(number);
		take_off(number);
		bench.random += wait_for(children_of(parent));
		hang_back(number);
	}
	return (now_ns() - began) / VICTIMS;
}

/* ---- requests, and what is made of them ---- */

static double round_of_requests(void)
{
	struct ucm_policy_asked asked[REQUEST];
	struct ucm_policy_request request = { asked, REQUEST, NULL };
	double began;

	for (unsigned i = 0; i < REQUEST; i++)
		asked[i] = (struct ucm_policy_asked){
			.tag = next_random() % (2 * (uint64_t)bench.num),
			.present = i < REQUEST / 2,
			.state = { bench.now_s - i, 1, 0 },
		};
	began = now_ns();
	bench.policy->ops->ask(bench.policy, bench.now_s, &request);
	return (now_ns() - began) / REQUEST;
}

static double round_of_learning(void)
{
	double began;

	for (unsigned i = 0; i < 64; i++)
		round_of_requests();
	began = now_ns();
	bench.policy->ops->learn(bench.policy, bench.now_s);
	return (now_ns() - began) / 1e3;
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void tell(const char *name, double *values, uint64_t num,
		 const char *unit)
{
	qsort(values, num, sizeof(*values), by_value);
	printf("%s\t%.1f\t%s\t%.1f\t%.1f\n", name, values[num / 2], unit,
	       values[num / 4], values[num * 3 / 4]);
}

static void measure(uint64_t rounds)
{
	double victims[MAX_ROUNDS], touches[MAX_ROUNDS], rest[MAX_ROUNDS];
	double requests[MAX_ROUNDS], learning[MAX_ROUNDS];
	uint64_t looks = 0;

	round_of_victims(); /* fills the pool; not counted */
	for (uint64_t i = 0; i < rounds; i++) {
		victims[i] = round_of_victims();
		looks = bench.touches;
		touches[i] = round_of_draws();
		rest[i] = victims[i] - touches[i];
		requests[i] = round_of_requests();
		learning[i] = round_of_learning();
	}
	tell("eviction", victims, rounds, "ns");
	tell("the same, nothing chosen", touches, rounds, "ns");
	tell("eviction without that", rest, rounds, "ns");
	tell("a block of a request", requests, rounds, "ns");
	tell("learning", learning, rounds, "us");
	printf("looks at blocks for an eviction\t%.1f\t\n",
	       (double)looks / VICTIMS);
}

int main(int argc, char **argv)
{
	uint64_t num, rounds;

	if (argc != 4 || !ucm_policy_find(argv[1]) ||
	    ucm_parse_range(argv[2], 1000, 1u << 28, &num) ||
	    ucm_parse_range(argv[3], 1, MAX_ROUNDS, &rounds))
		die("usage: policy_bench POLICY BLOCKS ROUNDS");
	bench.num = (uint32_t)num;
	bench.now_s = START_S;
	bench.entries = get(num, sizeof(*bench.entries));
	bench.leaves = get(num, sizeof(*bench.leaves));
	if (ucm_policy_find(argv[1])->new(1, num, &bench.policy))
		die("no memory");
	ucm_pool_init(&bench.pool, UCM_POOL_MAX, UCM_POOL_DRAWS);
	fill();
	measure(rounds);
	ucm_policy_free(bench.policy);
	free(bench.entries);
	free(bench.leaves);
	return 0;
}
