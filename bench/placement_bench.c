/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement_bench.c - by what should a new file of files/ be placed?
 *
 * For the layouts of programs that keep chunks in files, and for four keys: how
 * even the files lie in n directories (the fullest one's share of what it should
 * have), and how many renames over an old file cross directories: of a file that
 * was made by a rename before ("again"), or under its own name ("first"). The
 * old one is replaced by a file with another random number, where the program
 * uses one. Nothing is written anywhere.
 */
#include <config.h>

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "fs/files/files.h"
#include "hashing/digest.h"

#define FILES 8192
#define MOST_DIRS 8

/* splitmix64: the same in every run */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* 64 hex digits of a chunk. */
static const char *hash_of(unsigned number)
{
	static char text[65];

	for (unsigned i = 0; i < 4; i++)
		snprintf(text + 16 * i, 17, "%016jx",
			 (uintmax_t)mix(4u * number + i));
	return text;
}

/* ---- layouts: the name of a chunk, and its temporary one ---- */

typedef void (*layout_fn)(unsigned number, uint64_t random, char *name,
			  char *temp);

static void vllm(unsigned number, uint64_t random, char *name, char *temp)
{
	const char *h = hash_of(number);

	sprintf(name, "files/vllm/m_0123456789ab_r0/%.3s/%.2s_g0/%s.bin", h,
		h + 3, h);
	sprintf(temp, "%s_%ju.tmp", name, (uintmax_t)random >> 1);
}

static void lmcache(unsigned number, uint64_t random, char *name, char *temp)
{
	char stem[256];

	(void)random;
	sprintf(stem, "files/lmcache/Qwen-SEP-Qwen2.5-7B@1@0@%.16s@bfloat16",
		hash_of(number));
	sprintf(name, "%s.data", stem);
	sprintf(temp, "%s.tmp", stem);
}

static void sglang(unsigned number, uint64_t random, char *name, char *temp)
{
	sprintf(name, "files/sglang/%s_Qwen-Qwen2.5-7B_0_1.bin",
		hash_of(number));
	sprintf(temp, "%s.tmp.4711.%ju.%016jx%016jx", name,
		(uintmax_t)random >> 17, (uintmax_t)mix(random),
		(uintmax_t)mix(random + 1));
}

/* vLLM's ExampleConnector: a folder for each prompt, a file for each layer. */
static void example(unsigned number, uint64_t random, char *name, char *temp)
{
	(void)random;
	sprintf(name,
		"files/example/%.32s/model.layers.%u.self_attn.attn.safetensors",
		hash_of(number / 32), number % 32);
	strcpy(temp, name); /* written under its own name */
}

/* Checkpoints: torch.save to .tmp, then os.replace. */
static void checkpoint(unsigned number, uint64_t random, char *name,
		       char *temp)
{
	(void)random;
	sprintf(name, "files/runs/%u/rank%u.pt", number / 8, number % 8);
	sprintf(temp, "%s.tmp", name);
}

static void rsync(unsigned number, uint64_t random, char *name, char *temp)
{
	unsigned folder = number / 64, file = number % 64;

	sprintf(name, "files/copy/%u/shard-%05u.safetensors", folder, file);
	sprintf(temp, "files/copy/%u/.shard-%05u.safetensors.%06jx", folder,
		file, (uintmax_t)random >> 40);
}

/* ---- keys ---- */

typedef void (*key_fn)(const char *path, struct ucm_id *out);

static void hash(const char *text, size_t len, struct ucm_id *out)
{
	if (ucm_md5(text, len, out->bytes))
		memset(out, 0, sizeof(*out));
}

static void by_path(const char *path, struct ucm_id *out)
{
	hash(path, strlen(path), out);
}

static void by_folder(const char *path, struct ucm_id *out)
{
	hash(path, (size_t)(strrchr(path, '/') - path), out);
}

static void by_stem(const char *path, struct ucm_id *out)
{
	size_t len;
	const char *stem = ucm_files_stem(strrchr(path, '/') + 1, &len);

	hash(stem, len, out);
}

static unsigned place(key_fn key, const char *path, unsigned num)
{
	uint8_t uuids[MOST_DIRS][16], order[MOST_DIRS];
	struct ucm_id id;

	for (unsigned i = 0; i < num; i++) {
		uint64_t words[2] = { mix(i + 1000), mix(i + 2000) };

		memcpy(uuids[i], words, sizeof(words));
	}
	key(path, &id);
	ucm_placement_order(UCM_PLACEMENT_RENDEZVOUS,
			    (const uint8_t(*)[16])uuids, num, &id, 0, order);
	return order[0];
}

struct result {
	double fullest; /* 1: all have the same */
	unsigned again, first; /* renames that cross */
};

static struct result try(layout_fn layout, key_fn key, unsigned num)
{
	unsigned shares[MOST_DIRS] = { 0 }, most = 0;
	struct result result = { 0 };

	for (unsigned i = 0; i < FILES; i++) {
		char name[PATH_MAX], temp[2][PATH_MAX];
		unsigned was, is;

		layout(i, mix(i + 1000000), name, temp[0]);
		layout(i, mix(i + 2000000), name, temp[1]);
		was = place(key, temp[0], num);
		is = place(key, temp[1], num);
		result.again += is != was;
		result.first += is != place(key, name, num);
		shares[was]++;
	}
	for (unsigned i = 0; i < num; i++)
		most = shares[i] > most ? shares[i] : most;
	result.fullest = (double)most * num / FILES;
	return result;
}

static const struct {
	const char *name;
	layout_fn fn;
} layouts[] = {
	{ "vLLM fs", vllm }, { "LMCache fs", lmcache },
	{ "SGLang file", sglang }, { "vLLM example", example },
	{ "checkpoints", checkpoint }, { "rsync", rsync },
};

static const struct {
	const char *name;
	key_fn fn;
} keys[] = {
	{ "path", by_path },
	{ "folder", by_folder },
	{ "stem", by_stem },
	{ "folder and stem", ucm_files_place },
};

int main(void)
{
	printf("%d files, 2, 4 and 8 directories; renames: over 4\n\n"
	       "| layout | key | fullest of 2 | of 4 | of 8 | again | first |\n"
	       "|---|---|---|---|---|---|---|\n",
	       FILES);
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		for (size_t j = 0; j < sizeof(keys) / sizeof(keys[0]); j++) {
			struct result four = try(layouts[i].fn, keys[j].fn, 4);

			printf("| %s | %s | %.2f | %.2f | %.2f | %u %% | %u %% |\n",
			       layouts[i].name, keys[j].name,
			       try(layouts[i].fn, keys[j].fn, 2).fullest,
			       four.fullest,
			       try(layouts[i].fn, keys[j].fn, 8).fullest,
			       four.again * 100 / FILES,
			       four.first * 100 / FILES);
		}
	}
	return 0;
}
