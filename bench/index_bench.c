/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_bench.c - what does it cost to ask which blocks there are?
 *
 * "lookup MOUNT": ids on standard input, all of them blocks of the mount. Each
 * round looks up a prefix of a request in the mapped index, of blocks that were
 * asked for just before (hot) and of others (spread over the whole index), the
 * same ids in a hash table of this process, and some of them by access(2). All
 * answers are compared.
 *
 * "insert": blocks into an index of our own, which others could map, and into
 * the same hash table. Medians of rounds; one line for each figure: name,
 * value, unit. bench/index makes the mount and the table.
 */
#include <config.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <ucm/index.h>

#include "common/parse.h"
#include "fs/index/index.h"
#include "hashing/tree.h"

#define ME "index_bench"
#define MAX_ROUNDS 1000

struct bench {
	const char *mount;
	uint64_t num, request, rounds, asked; /* ids; by access(2) */
	struct ucm_id *ids;
	struct ucm_index_reader *reader;
	struct ucm_id *table; /* the yardstick: half full, linear probing */
	uint64_t mask;
};

static double us_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* What a caller waits for. */
static double now_us(void)
{
	return us_of(CLOCK_MONOTONIC);
}

/* What we compute: other programs' turns in between are not counted. */
static double cpu_us(void)
{
	return us_of(CLOCK_THREAD_CPUTIME_ID);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void die(const char *what)
{
	fprintf(stderr, ME ": %s\n", what);
	exit(1);
}

static void *get(size_t num, size_t size)
{
	void *room = calloc(num ? num : 1, size);

	if (!room)
		die("no memory");
	return room;
}

/* The median and the quartiles, of one of the parts. */
static void tell(const char *what, double *us, size_t num, size_t parts)
{
	double one = 1 / (double)parts;

	qsort(us, num, sizeof(*us), by_value);
	printf("%s\t%.4f\tus\t%.4f\t%.4f\n", what, us[num / 2] * one,
	       us[num / 4] * one, us[num * 3 / 4] * one);
}

/* The same, and what the whole of it takes. */
static void tell_call(const char *what, double *us, size_t num, size_t parts)
{
	tell(what, us, num, parts);
	printf("%s, whole call\t%.1f\tus\t%.1f\t%.1f\n"
	       "%s, whole call, 9 of 10\t%.1f\tus\n",
	       what, us[num / 2], us[num / 4], us[num * 3 / 4], what,
	       us[num * 9 / 10]);
}

/* ---- the yardstick ---- */

static uint64_t *words(struct ucm_id *id)
{
	return (uint64_t *)(void *)id->bytes;
}

static struct ucm_id *table_find(const struct bench *bench,
				 const struct ucm_id *id)
{
	uint64_t at;

	memcpy(&at, id->bytes, sizeof(at));
	at *= UINT64_C(0x9e3779b97f4a7c15);
	for (at >>= 20;; at++) {
		struct ucm_id *there = &bench->table[at & bench->mask];

		if (!memcmp(there, id, sizeof(*id)) ||
		    (!words(there)[0] && !words(there)[1]))
			return there;
	}
}

static void table_new(struct bench *bench)
{
	for (bench->mask = 1; bench->mask < 2 * bench->num;)
		bench->mask *= 2;
	bench->table = get(bench->mask--, sizeof(*bench->table));
}

static size_t table_prefix(const struct bench *bench, const struct ucm_id *ids)
{
	size_t i = 0;

	while (i < bench->request &&
	       !memcmp(table_find(bench, &ids[i]), &ids[i], sizeof(*ids)))
		i++;
	return i;
}

/* ---- lookup ---- */

static void read_ids(struct bench *bench)
{
	char line[256];
	uint64_t room = 1 << 16;

	bench->ids = get(room, sizeof(*bench->ids));
	while (fgets(line, sizeof(line), stdin)) {
		char *name = strrchr(line, '/');

		if (bench->num == room) {
			room *= 2;
			bench->ids = realloc(bench->ids,
					     room * sizeof(*bench->ids));
			if (!bench->ids)
				die("no memory");
		}
		if (!ucm_id_parse(name ? name + 1 : line,
				  &bench->ids[bench->num]))
			bench->num++;
	}
	if (bench->num < 2 * bench->request)
		die("too few ids on standard input");
}

static double map_prefix(const struct bench *bench, const struct ucm_id *ids)
{
	double start = now_us();
	size_t count;
	int unknown;

	if (ucm_index_prefix(bench->reader, ids, bench->request, &count,
			     &unknown) ||
	    count != bench->request)
		die("the index has not all of the blocks");
	return now_us() - start;
}

static double time_table(const struct bench *bench, const struct ucm_id *ids)
{
	double start = now_us();

	if (table_prefix(bench, ids) != bench->request)
		die("the table has not all of the blocks");
	return now_us() - start;
}

/* None of them there; the same memory is looked at. */
static double map_absent(const struct bench *bench, const struct ucm_id *ids,
			 struct ucm_id *scratch, uint64_t *bitmap)
{
	double start;

	for (size_t i = 0; i < bench->request; i++) {
		scratch[i] = ids[i];
		scratch[i].bytes[15] ^= 1;
	}
	start = now_us();
	if (ucm_index_lookup(bench->reader, scratch, bench->request, bitmap,
			     NULL))
		die("lookup");
	start = now_us() - start;
	for (size_t i = 0; i < UCM_INDEX_WORDS(bench->request); i++) {
		if (bitmap[i])
			die("the index has blocks that nobody made");
	}
	return start;
}

static double time_access(const struct bench *bench, const struct ucm_id *ids,
			  char (*paths)[4200])
{
	double start;

	for (size_t i = 0; i < bench->asked; i++) {
		char name[UCM_TREE_BELOW_LEN + 1];

		ucm_tree_block_below(&ids[i], name);
		snprintf(paths[i], sizeof(paths[i]),
			 "%.4000s/" UCM_TREE_BLOCKS "/%s",
			 bench->mount, name);
	}
	start = now_us();
	for (size_t i = 0; i < bench->asked; i++) {
		if (access(paths[i], R_OK))
			die("the mount has not all of the blocks");
	}
	return now_us() - start;
}

#define OPENS 11

/* A reader of its own each time, so that no page is mapped before. */
static void measure_open(struct bench *bench)
{
	double open[OPENS], first[OPENS];

	for (unsigned i = 0; i < OPENS; i++) {
		uint64_t at = i * 7919 % (bench->num - bench->request);

		ucm_index_close(bench->reader);
		open[i] = now_us();
		if (ucm_index_open(bench->mount, NULL, &bench->reader))
			die("cannot open the index");
		open[i] = now_us() - open[i];
		first[i] = map_prefix(bench, bench->ids + at);
	}
	tell("open", open, OPENS, 1);
	tell("first call", first, OPENS, 1);
}

static void lookup(struct bench *bench)
{
	static double hot[MAX_ROUNDS], spread[MAX_ROUNDS], absent[MAX_ROUNDS];
	static double hot_table[MAX_ROUNDS], table[MAX_ROUNDS];
	static double ask[MAX_ROUNDS], ask_again[MAX_ROUNDS];
	struct ucm_id *scratch = get(bench->request, sizeof(*scratch));
	uint64_t *bitmap = get(UCM_INDEX_WORDS(bench->request), 8);
	char(*paths)[4200] = get(bench->asked, sizeof(*paths));
	uint64_t at = 0, places = bench->num / bench->request;
	struct ucm_index_info info;

	if (ucm_index_info(bench->reader, &info) || !info.complete)
		die("the index is not complete");
	printf("back end\t%s\t%s\n", info.backend, info.why ? info.why : "");
	for (size_t i = 0; i < bench->num; i++)
		*table_find(bench, &bench->ids[i]) = bench->ids[i];
	measure_open(bench);
	for (uint64_t i = 0; i < bench->rounds; i++) {
		const struct ucm_id *ids;

		at = (at + 7919) % places;
		ids = bench->ids + at * bench->request;
		spread[i] = map_prefix(bench, ids);
		hot[i] = map_prefix(bench, ids);
		at = (at + 7919) % places;
		ids = bench->ids + at * bench->request;
		table[i] = time_table(bench, ids);
		hot_table[i] = time_table(bench, ids);
		at = (at + 7919) % places;
		ids = bench->ids + at * bench->request;
		absent[i] = map_absent(bench, ids, scratch, bitmap);
		if (i < bench->rounds / 4 + 1) {
			ask[i] = time_access(bench, ids, paths);
			ask_again[i] = time_access(bench, ids, paths);
		}
	}
	tell_call("index, spread", spread, bench->rounds, bench->request);
	tell_call("index, hot", hot, bench->rounds, bench->request);
	tell_call("index, absent ids", absent, bench->rounds, bench->request);
	tell("hash table, spread", table, bench->rounds, bench->request);
	tell("hash table, hot", hot_table, bench->rounds, bench->request);
	tell("access(2), new name", ask, bench->rounds / 4 + 1, bench->asked);
	tell("access(2), known name", ask_again, bench->rounds / 4 + 1,
	     bench->asked);
}

/* ---- insert ---- */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t resident(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)usage.ru_maxrss * 1024;
}

static double fill_index(const struct bench *bench, struct ucm_index *index)
{
	struct ucm_entry entry = { .size = 2 << 20, .blocks = 4096 };
	double start = cpu_us();

	for (uint64_t i = 0; i < bench->num; i++) {
		entry.id = bench->ids[i];
		if (ucm_index_add(index, &entry, NULL, NULL))
			die("add");
	}
	return (cpu_us() - start) / (double)bench->num;
}

static double empty_index(const struct bench *bench, struct ucm_index *index)
{
	double start = cpu_us();

	for (uint64_t i = 0; i < bench->num; i++) {
		struct ucm_key key = { .id = bench->ids[i] };
		ucm_ref ref;

		if (!ucm_index_find(index, &key, NULL, &ref) ||
		    !ucm_index_remove(index, ref, NULL))
			die("remove");
	}
	return (cpu_us() - start) / (double)bench->num;
}

static double fill_table(struct bench *bench)
{
	double start = cpu_us();

	for (uint64_t i = 0; i < bench->num; i++)
		*table_find(bench, &bench->ids[i]) = bench->ids[i];
	return (cpu_us() - start) / (double)bench->num;
}

static void insert(struct bench *bench)
{
	static double add[MAX_ROUNDS], gone[MAX_ROUNDS], table[MAX_ROUNDS];
	double num = (double)bench->num;
	uint64_t before;

	bench->ids = get(bench->num, sizeof(*bench->ids));
	for (uint64_t i = 0; i < 2 * bench->num; i++)
		words(bench->ids)[i] = mix(i);
	for (uint64_t i = 0; i < bench->rounds; i++) {
		struct ucm_index *index;

		before = resident();
		if (ucm_index_new(&index))
			die("no index");
		add[i] = fill_index(bench, index);
		if (i == 0) {
			printf("memory of a block, counted\t%.1f\tB\n",
			       (double)ucm_index_memory(index) / num);
			printf("memory of a block, resident\t%.1f\tB\n",
			       (double)(resident() - before) / num);
		}
		gone[i] = empty_index(bench, index);
		ucm_index_free(index);
		memset(bench->table, 0,
		       (bench->mask + 1) * sizeof(*bench->table));
		table[i] = fill_table(bench);
	}
	tell("insert and publish", add, bench->rounds, 1);
	tell("find, retract and remove", gone, bench->rounds, 1);
	tell("insert into a hash table", table, bench->rounds, 1);
}

static int usage(void)
{
	fputs("usage: " ME " lookup MOUNT [REQUEST [ROUNDS]] <IDS\n"
	      "       " ME " insert BLOCKS [ROUNDS]\n", stderr);
	return 2;
}

static int set_up(struct bench *bench, int argc, char **argv)
{
	bool looks = argc > 2 && !strcmp(argv[1], "lookup");

	bench->mount = argc > 2 ? argv[2] : NULL;
	if (argc < 3 || argc > 5 || (!looks && (strcmp(argv[1], "insert") || argc > 4)))
		return -1;
	if (!looks)
		return ucm_parse_range(argv[2], 1, 1 << 28, &bench->num) ||
		       (argc > 3 && ucm_parse_range(argv[3], 1, MAX_ROUNDS,
						    &bench->rounds));
	return (argc > 3 && ucm_parse_range(argv[3], 1, 1 << 24,
					    &bench->request)) ||
	       (argc > 4 && ucm_parse_range(argv[4], 4, MAX_ROUNDS,
					    &bench->rounds));
}

int main(int argc, char **argv)
{
	struct bench bench = { .request = 8192, .rounds = 101 };

	if (set_up(&bench, argc, argv))
		return usage();
	bench.asked = bench.request < 1024 ? bench.request : 1024;
	if (!strcmp(argv[1], "insert")) {
		table_new(&bench);
		insert(&bench);
		return 0;
	}
	read_ids(&bench);
	table_new(&bench);
	if (ucm_index_open(bench.mount, NULL, &bench.reader))
		die("cannot open the index");
	lookup(&bench);
	ucm_index_close(bench.reader);
	return 0;
}
