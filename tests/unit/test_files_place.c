/* SPDX-License-Identifier: Apache-2.0 */
/* test_files_place.c - what of a name of files/ decides where it is placed. */
#include <config.h>

#include "fs/files/files.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"

/* Temporary names, and others that look a little like them. */
static const struct {
	const char *name, *stem;
} stems[] = {
	{ "x.tmp", "x" },
	{ "x.bin.tmp", "x.bin" },
	{ "x.tmp.4711", "x" },
	{ "x.bin.tmp.4711.140213.3f9ac0de3f9ac0de", "x.bin" }, /* SGLang */
	{ "x.tmp-1", "x" },
	{ "x.temp", "x" },
	{ "x.part", "x" },
	{ "x.partial", "x" },
	{ "x.incomplete", "x" },
	{ "index.lock", "index" },
	{ "x.new", "x" },
	{ "x~", "x" },
	{ "9a41.bin_4611686018427387904.tmp", "9a41.bin" }, /* vLLM */
	{ "9a41.bin_100000000000.tmp", "9a41.bin" },
	{ ".x.bin.A1b2C3", "x.bin" },	/* rsync */
	{ ".x.bin.a1b2_c3d", "x.bin" }, /* mkstemp(3) of Python */
	{ ".x.tmp", "x" },
	/* these are their own */
	{ "", "" },
	{ "x", "x" },
	{ "x.bin", "x.bin" },
	{ ".tmp", ".tmp" },
	{ "~", "~" },
	{ ".", "." },
	{ "..", ".." },
	{ ".x", ".x" },
	{ ".x.bin", ".x.bin" },
	{ ".A1b2C3", ".A1b2C3" },
	{ ".x.A1b2-3", ".x.A1b2-3" },
	{ "x.A1b2C3", "x.A1b2C3" },
	{ "x.tmpl", "x.tmpl" },
	{ "x.template", "x.template" },
	{ "tmp_x", "tmp_x" },
	{ "x.part2", "x.part2" },
	{ "x.newer", "x.newer" },
	{ "x.locked.bin", "x.locked.bin" },
	/* a number is what tells chunks from one another */
	{ "chunk_000000000017.tmp", "chunk_000000000017" },
	{ "chunk.000000000017.tmp", "chunk.000000000017" },
	{ "x.bin_17.tmp", "x.bin_17" },
	{ "x.bin_4611686018427387904", "x.bin_4611686018427387904" },
	{ "x._4611686018427387904.tmp", "x._4611686018427387904" },
	{ "_4611686018427387904.tmp", "_4611686018427387904" },
	{ "4611686018427387904.tmp", "4611686018427387904" },
	/* where there are two, the first one known ends it */
	{ "x.tmp.tmpl", "x" },
	{ "x.tmpl.tmp", "x.tmpl" },
	{ "Qwen2.5-7B@1@0@9a41@bfloat16.tmp", "Qwen2.5-7B@1@0@9a41@bfloat16" },
};

UNIT_TEST(a_temporary_name_has_the_stem_of_the_other, .rows = NUM_ROWS(stems))
{
	size_t len;
	const char *stem = ucm_files_stem(stems[_i].name, &len);

	ck_assert_msg(len == strlen(stems[_i].stem) &&
			      !memcmp(stem, stems[_i].stem, len),
		      "%s: %.*s", stems[_i].name, (int)len, stem);
}

static struct ucm_id placed(const char *path)
{
	struct ucm_id id;

	ucm_files_place(path, &id);
	return id;
}

static bool together(const char *a, const char *b)
{
	struct ucm_id x = placed(a), y = placed(b);

	return !memcmp(&x, &y, sizeof(x));
}

UNIT_TEST(the_folder_and_the_stem_decide)
{
	char path[PATH_MAX];

	ck_assert(together("files/a/x.tmp", "files/a/x"));
	ck_assert(together("files/x.tmp", "files/x"));
	ck_assert(!together("files/a/x", "files/b/x"));
	ck_assert(!together("files/a/x", "files/a/y"));
	ck_assert(!together("files/a.tmp/x", "files/a/x"));
	memset(path, 'x', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	memcpy(path, "files/", 6);
	ck_assert(!together(path, "files/x"));
}

/* The fullest of four directories has not much more than its quarter. */
UNIT_TEST(chunks_in_one_folder_are_spread, .rows = 7)
{
	static const struct {
		const char *before, *after; /* the number */
	} layouts[] = {
		{ "files/vllm/", "_g0/9a.bin_4611686018427387904.tmp" },
		{ "files/vllm/00_g0/", ".bin_4611686018427387904.tmp" },
		{ "files/lmcache/Qwen2.5-7B@1@0@", "@bfloat16.tmp" },
		{ "files/sglang/", "_m_0_1.bin.tmp.1.2.3f9ac0de" },
		{ "files/chunks/", ".tmp" },
		{ "files/chunks/part.", "" },
		{ "files/chunks/.hidden-", ".A1b2C3" },
	};
	uint8_t uuids[4][16] = { { 1 }, { 2 }, { 3 }, { 4 } }, order[4];
	unsigned shares[4] = { 0 };
	char path[256];

	for (unsigned i = 0; i < 4000; i++) {
		struct ucm_id id;

		snprintf(path, sizeof(path), "%s%06u%s", layouts[_i].before, i,
			 layouts[_i].after);
		ucm_files_place(path, &id);
		ucm_placement_order(UCM_PLACEMENT_RENDEZVOUS,
				    (const uint8_t(*)[16])uuids, 4, &id, 0,
				    order);
		shares[order[0]]++;
	}
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_lt(shares[i], 1100);
}
