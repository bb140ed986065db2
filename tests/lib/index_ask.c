/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_ask.c - the calls of <ucm/index.h>, for shell tests.
 *
 * "ask": one line that says how it is answered ("map", or "socket: why"), one of
 * y, n and ? for each name on standard input. "entry": a line for each. "wait":
 * ask once, then wait for a line on standard input and ask again. "follow": until
 * the daemon is gone, compare with what a writer has had acknowledged. Names are
 * as mkblocks --list prints them.
 */
#include <config.h>

#include <ucm/index.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ME "index_ask"
#define MOST 20000
#define BLOCK_BYTES 8192 /* of mount.sh's $small */

static struct ucm_index_reader *reader;
static struct ucm_id ids[MOST];
static size_t num;

static int fail(const char *what, int err)
{
	printf("%s: %s\n", what, err ? strerror(-err) : "");
	return 1;
}

/* Whole lines only: somebody may be writing the next. */
static void read_names(FILE *in)
{
	static char line[512];
	static size_t len;
	int c;

	while (num < MOST && (c = fgetc(in)) != EOF) {
		if (c != '\n') {
			if (len + 1 < sizeof(line))
				line[len++] = (char)c;
			continue;
		}
		line[len] = '\0';
		len = 0;
		if (!ucm_id_parse(strrchr(line, '/') ? strrchr(line, '/') + 1
						     : line, &ids[num]))
			num++;
	}
	clearerr(in);
}

static int tell_backend(void)
{
	struct ucm_index_info info;
	int err = ucm_index_info(reader, &info);

	if (err)
		return fail("info", err);
	printf("%s%s%s\n", info.backend, info.why ? ": " : "",
	       info.why ? info.why : "");
	return 0;
}

static int ask(void)
{
	uint64_t present[UCM_INDEX_WORDS(MOST)], unknown[UCM_INDEX_WORDS(MOST)];
	int err = ucm_index_lookup(reader, ids, num, present, unknown);

	if (err)
		return fail("lookup", err);
	if (tell_backend())
		return 1;
	for (size_t i = 0; i < num; i++)
		putchar(present[i / 64] >> i % 64 & 1	? 'y'
			: unknown[i / 64] >> i % 64 & 1 ? '?'
							: 'n');
	putchar('\n');
	return 0;
}

static int tell_entries(void)
{
	for (size_t i = 0; i < num; i++) {
		struct ucm_index_entry entry;
		int err = ucm_index_entry(reader, &ids[i], &entry);

		if (err)
			printf("%s\n", strerror(-err));
		else
			printf("size %llu tier %d %s flags %u\n",
			       (unsigned long long)entry.size, entry.tier,
			       entry.tier_name, entry.flags);
	}
	return 0;
}

static int ask_when_told(void)
{
	char line[8];

	if (ask())
		return 1;
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return fail("no line", 0);
	return ask();
}

/* ---- follow ---- */

static bool bit(const uint64_t *bitmap, size_t i)
{
	return bitmap[i / 64] >> i % 64 & 1;
}

/* What has been acknowledged is there, and is what was written. */
static int check_acknowledged(size_t *unknowns)
{
	static uint64_t present[UCM_INDEX_WORDS(MOST)];
	static uint64_t unknown[UCM_INDEX_WORDS(MOST)];
	int err = ucm_index_lookup(reader, ids, num, present, unknown);

	for (size_t i = 0; !err && i < num; i++) {
		struct ucm_index_entry entry;

		*unknowns += bit(unknown, i);
		if (!bit(present, i) && !bit(unknown, i))
			return fail("an acknowledged block is absent", 0);
		if (i + 50 < num) /* the newest are the ones that change */
			continue;
		err = ucm_index_entry(reader, &ids[i], &entry);
		if (err == -EAGAIN)
			err = 0;
		else if (!err && (entry.size != BLOCK_BYTES || entry.tier ||
				  strcmp(entry.tier_name, "tier0")))
			return fail("half an entry", 0);
		else if (err == -ENOENT)
			return fail("an acknowledged block has gone", 0);
	}
	return err;
}

static int check_others(void)
{
	struct ucm_id others[256];
	uint64_t present[4];
	int err;

	for (size_t i = 0; i < 256; i++) {
		others[i] = ids[i % num];
		others[i].bytes[15] ^= 1 + i / num % 255;
	}
	err = ucm_index_lookup(reader, others, 256, present, NULL);
	if (!err && (present[0] | present[1] | present[2] | present[3]))
		return fail("a block that nobody wrote", 0);
	return err;
}

static int follow(const char *path)
{
	FILE *in = fopen(path, "re");
	size_t rounds = 0, unknowns = 0;
	int err = 0;

	if (!in)
		return fail(path, -errno);
	printf("following\n"); /* the daemon may be killed now */
	fflush(stdout);
	for (; !err; rounds++) {
		read_names(in);
		err = check_acknowledged(&unknowns);
		if (!err && num)
			err = check_others();
	}
	fclose(in);
	if (err != -ENOTCONN)
		return err < 0 ? fail("lookup", err) : err;
	printf("gone after %zu rounds, %zu blocks, %zu unknown\n", rounds, num,
	       unknowns);
	return 0;
}

int main(int argc, char **argv)
{
	const char *space = argc > 3 && *argv[3] ? argv[3] : NULL;
	int err, status = 2;

	if (argc < 3)
		return fail("usage: " ME " ask|entry|wait|follow MOUNT [SPACE "
			    "[FILE]]", 0);
	err = ucm_index_open(argv[2], space, &reader);
	if (err)
		return fail("open", err);
	if (!strcmp(argv[1], "follow") && argc == 5) {
		status = follow(argv[4]);
	} else if (!strcmp(argv[1], "wait") && argc == 5) {
		FILE *in = fopen(argv[4], "re");

		if (in)
			read_names(in);
		status = in ? ask_when_told() : fail(argv[4], -errno);
		if (in)
			fclose(in);
	} else {
		read_names(stdin);
		status = strcmp(argv[1], "entry") ? ask() : tell_entries();
	}
	ucm_index_close(reader);
	return status;
}
