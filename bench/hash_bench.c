/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash_bench.c - what does naming blocks cost?
 *
 * One chain against OpenSSL's one-shot MD5() of the same messages: those bytes
 * are recorded first, and the yardstick is timed twice, once copying each
 * digest into the next message (the work of a chain) and once not even that. A
 * batch against the single chain. CPython is timed by hash.py. Rounds are
 * interleaved; medians are printed, and the ratios' median and range.
 */
#define OPENSSL_SUPPRESS_DEPRECATED /* MD5(): OpenSSL's fastest */
#include <config.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/md5.h>

#include <ucm/hash.h>

#include "common/parse.h"
#include "hashing/walk.h"

#define ME "hash_bench"
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_ROUNDS 1000

struct bench {
	uint64_t blocks, tokens, batch, rounds;
	uint32_t scheme;
	struct ucm_hasher *hasher;
	int64_t *ids_in; /* tokens of the longest request */
	struct ucm_id *ids;
	struct ucm_hash_request *requests; /* blocks in all, in batch parts */
	uint8_t *messages; /* all, one after the other */
	size_t *lengths, *parents; /* of a message; of the parent in it */
};

/* CPU time: what other programs do in between is not counted. */
static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, size_t num)
{
	qsort(values, num, sizeof(*values), by_value);
	return values[num / 2];
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

/* ---- what is timed ---- */

static void single(const struct bench *bench)
{
	struct ucm_hash_request request = {
		.tokens = bench->ids_in,
		.num_tokens = bench->blocks * bench->tokens,
		.ids = bench->ids,
		.room = bench->blocks,
	};

	if (ucm_hash_request(bench->hasher, &request, NULL))
		die("request");
}

static void batch(const struct bench *bench)
{
	if (ucm_hash_batch(bench->hasher, bench->requests, bench->batch, NULL))
		die("batch");
}

static void openssl_chained(const struct bench *bench)
{
	uint8_t *at = bench->messages;
	uint8_t digest[16];

	for (size_t i = 0; i < bench->blocks; i++) {
		if (i)
			memcpy(at + bench->parents[i], digest, sizeof(digest));
		MD5(at, bench->lengths[i], digest);
		at += bench->lengths[i];
	}
}

static void openssl_plain(const struct bench *bench)
{
	const uint8_t *at = bench->messages;
	uint8_t digest[16];

	for (size_t i = 0; i < bench->blocks; i++) {
		MD5(at, bench->lengths[i], digest);
		at += bench->lengths[i];
	}
}

static const struct work {
	const char *name;
	void (*run)(const struct bench *bench);
	bool openssl;
} works[] = {
	{ "OpenSSL MD5(), chained", openssl_chained, true },
	{ "one chain", single, false },
	{ "OpenSSL MD5(), no chain", openssl_plain, true },
	{ "batch", batch, false },
};

/* ---- set-up ---- */

/* The messages, as the walk makes them, without lead and padding apart. */
static size_t record(struct bench *bench, uint8_t *out)
{
	struct ucm_hash_state state;
	size_t total = 0;

	single(bench);
	ucm_hash_start(bench->hasher, NULL, &state, NULL);
	for (size_t i = 0; i < bench->blocks; i++) {
		const struct ucm_hasher *hasher = bench->hasher;
		struct ucm_walk *walk = get(1, sizeof(*walk));
		uint8_t *message = out + total;
		uint8_t digest[16];
		size_t len = 0;

		walk->hasher = hasher;
		walk->encoder = hasher->info->encoder;
		walk->lead = &hasher->lead;
		walk->tokens = bench->ids_in + i * bench->tokens;
		walk->num_tokens = bench->tokens;
		walk->ids = &state.parent;
		walk->num_ids = 1;
		walk->num_whole = 1;
		walk->at_start = state;
		walk->at_start.tokens = i * bench->tokens;
		if (hasher->meta.scheme != UCM_SCHEME_UCM)
			walk->lead = NULL;
		else if (hasher->lead.bytes >= UCM_MD5_CHUNK)
			die("the meta is too long to be recorded");
		ucm_walk_begin(walk);
		while (ucm_walk_next(walk)) {
			size_t whole = walk->chunks * UCM_MD5_CHUNK;

			if (walk->place == UCM_WALK_LAST)
				whole = walk->fill; /* no padding */
			memcpy(message + len, walk->bytes, whole);
			len += whole;
			ucm_md5_one(walk->state, walk->bytes, walk->chunks);
		}
		free(walk);
		MD5(message, len, digest);
		if (memcmp(digest, &bench->ids[i], sizeof(digest)))
			die("OpenSSL differs");
		bench->lengths[i] = len;
		bench->parents[i] = hasher->meta.scheme == UCM_SCHEME_UCM
					    ? hasher->lead.bytes + 13 : 0;
		total += len;
	}
	return total;
}

static void set_up(struct bench *bench)
{
	const struct ucm_hash_meta meta = {
		.scheme = bench->scheme,
		.block_size = (uint32_t)bench->tokens,
		.world_size = 2,
		.model = "/models/llama",
		.dtype = "torch.bfloat16",
	};
	size_t num = bench->blocks * bench->tokens;
	size_t part = bench->blocks / bench->batch;
	uint64_t state = 1;

	if (ucm_hasher_open(&meta, &bench->hasher, NULL))
		die("ucm_hasher_open");
	bench->ids_in = get(num, sizeof(int64_t));
	for (size_t i = 0; i < num; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		bench->ids_in[i] = (int64_t)((state >> 33) % 128256);
	}
	bench->ids = get(bench->blocks, sizeof(*bench->ids));
	bench->requests = get(bench->batch, sizeof(*bench->requests));
	for (size_t i = 0; i < bench->batch; i++) {
		bench->requests[i] = (struct ucm_hash_request){
			.tokens = bench->ids_in + i * part * bench->tokens,
			.num_tokens = part * bench->tokens,
			.ids = bench->ids + i * part,
			.room = part,
		};
	}
}

/* ---- results ---- */

static void tell_ratio(const char *what, const double *a, const double *b,
		       size_t num)
{
	double ratios[MAX_ROUNDS], middle;

	for (size_t i = 0; i < num; i++)
		ratios[i] = a[i] / b[i];
	middle = median(ratios, num);
	printf("%-44s %6.3f  (%.3f to %.3f)\n", what, middle, ratios[0],
	       ratios[num - 1]);
}

static void measure(struct bench *bench)
{
	static double ns[LENGTH(works)][MAX_ROUNDS];
	double sorted[MAX_ROUNDS];
	bool md5 = bench->scheme != UCM_SCHEME_SHA256;
	size_t num = bench->rounds;

	for (size_t round = 0; round <= num; round++) {
		for (size_t i = 0; i < LENGTH(works); i++) {
			double start = now_ns();

			if (works[i].openssl && !md5)
				continue;
			works[i].run(bench);
			if (round > 0) /* the first is a warm-up */
				ns[i][round - 1] = (now_ns() - start) /
						   (double)bench->blocks;
		}
	}
	printf("%s, %llu blocks of %llu tokens, %zu rounds, ns per block:\n",
	       ucm_scheme_name(bench->scheme),
	       (unsigned long long)bench->blocks,
	       (unsigned long long)bench->tokens, num);
	for (size_t i = 0; i < LENGTH(works); i++) {
		if (works[i].openssl && !md5)
			continue;
		memcpy(sorted, ns[i], sizeof(sorted));
		printf("%-44s %6.1f\n", works[i].name, median(sorted, num));
	}
	if (md5) {
		tell_ratio("one chain / OpenSSL, chained", ns[1], ns[0], num);
		tell_ratio("one chain / OpenSSL, no chain", ns[1], ns[2], num);
	}
	tell_ratio("one chain / batch", ns[1], ns[3], num);
}

static void tell_last(const struct bench *bench)
{
	char hex[UCM_ID_HEX + 1];

	single(bench);
	ucm_id_format(&bench->ids[bench->blocks - 1], hex);
	printf("last id of the chain: %s\n", hex);
}

static int usage(void)
{
	fputs("usage: " ME
	      " [SCHEME [BLOCKS [TOKENS [BATCH [ROUNDS [avx2|avx512]]]]]]\n"
	      "       ucm, chain, hexchain or sha256; 8192 16 32 101\n",
	      stderr);
	return 2;
}

int main(int argc, char **argv)
{
	struct bench bench = {
		.blocks = 8192, .tokens = 16, .batch = 32, .rounds = 101,
		.scheme = UCM_SCHEME_CHAIN,
	};
	uint64_t *const numbers[] = {
		&bench.blocks, &bench.tokens, &bench.batch, &bench.rounds,
	};

	if (argc > 7 || (argc > 1 && ucm_scheme_parse(argv[1], &bench.scheme)))
		return usage();
	for (int i = 2; i < argc && i < 6; i++) {
		if (ucm_parse_range(argv[i], 1, 1 << 20, numbers[i - 2]))
			return usage();
	}
	if (bench.rounds > MAX_ROUNDS || bench.batch > bench.blocks ||
	    bench.scheme == UCM_SCHEME_PREFIX ||
	    bench.scheme >= UCM_SCHEME_EXTERNAL)
		return usage();
	set_up(&bench);
	if (argc == 7)
		bench.hasher->lanes = ucm_md5_lanes_named(argv[6]);
	if (bench.scheme != UCM_SCHEME_SHA256) {
		bench.messages = get(bench.blocks, 256 + 5 * bench.tokens);
		bench.lengths = get(bench.blocks, sizeof(size_t));
		bench.parents = get(bench.blocks, sizeof(size_t));
		record(&bench, bench.messages);
	}
	measure(&bench);
	tell_last(&bench);
	return 0;
}
