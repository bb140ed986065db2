/* SPDX-License-Identifier: Apache-2.0 */
/* sha.c - the messages of the schemes over SHA-256; see sha.h. */
#include <config.h>

#include "hashing/sha.h"

#include <string.h>

#define FORMAT_VERSION 1

enum kind {
	KIND_ROOT = 1,
	KIND_BLOCK = 2,
	KIND_RANK = 3,
	KIND_EXTERNAL = 4,
};

#define TOKENS_AT_ONCE 256

static void put_begin(enum kind kind, ucm_sink sink, void *arg)
{
	uint8_t bytes[8] = { 'U', 'C', 'M', 'H', FORMAT_VERSION, (uint8_t)kind };

	sink(arg, "begin", bytes, sizeof(bytes));
}

static void put_number(const char *name, uint32_t number, ucm_sink sink,
		       void *arg)
{
	sink(arg, name, &number, sizeof(number));
}

static void put_bytes(const char *name, const void *bytes, size_t len,
		      ucm_sink sink, void *arg)
{
	put_number("length", (uint32_t)len, sink, arg);
	if (len)
		sink(arg, name, bytes, len);
}

static void put_text(const char *name, const char *text, ucm_sink sink,
		     void *arg)
{
	put_bytes(name, text, text ? strlen(text) : 0, sink, arg);
}

void ucm_sha_root(const struct ucm_hash_meta *meta,
		  const struct ucm_hash_extras *extras, ucm_sink sink,
		  void *arg)
{
	put_begin(KIND_ROOT, sink, arg);
	put_text("model", meta->model, sink, arg);
	put_text("dtype", meta->dtype, sink, arg);
	put_number("world size", meta->world_size, sink, arg);
	put_text("salt", extras->salt, sink, arg);
	put_text("lora", extras->lora, sink, arg);
	put_bytes("lora digest", extras->lora_digest,
		  extras->lora_digest ? UCM_HASH_DIGEST_BYTES : 0, sink, arg);
}

static void put_tokens(const struct ucm_sha_block *block, ucm_sink sink,
		       void *arg)
{
	uint32_t words[TOKENS_AT_ONCE];

	for (size_t at = 0; at < block->num; at += TOKENS_AT_ONCE) {
		size_t num = block->num - at;

		if (num > TOKENS_AT_ONCE)
			num = TOKENS_AT_ONCE;
		for (size_t i = 0; i < num; i++)
			words[i] = (uint32_t)block->tokens[at + i];
		sink(arg, "tokens", words, num * sizeof(words[0]));
	}
}

/* The first item that does not end before the block; there are items. */
static const struct ucm_hash_item *
first_item(const struct ucm_sha_block *block)
{
	const struct ucm_hash_item *items = block->extras->items;
	size_t low = 0, high = block->extras->num_items;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (items[middle].position + items[middle].length >
		    block->position)
			high = middle;
		else
			low = middle + 1;
	}
	return items + low;
}

/* How many of the items that follow begin before the block ends. */
static uint32_t items_in(const struct ucm_sha_block *block,
			 const struct ucm_hash_item *item)
{
	const struct ucm_hash_extras *extras = block->extras;
	uint32_t num = 0;

	while (item + num < extras->items + extras->num_items &&
	       item[num].position < block->position + block->num)
		num++;
	return num;
}

static void put_items(const struct ucm_sha_block *block, ucm_sink sink,
		      void *arg)
{
	const struct ucm_hash_item *item = NULL;
	uint32_t num = 0;

	if (block->extras->num_items) {
		item = first_item(block);
		num = items_in(block, item);
	}
	put_number("number of items", num, sink, arg);
	for (uint32_t i = 0; i < num; i++) {
		sink(arg, "item", item[i].hash, sizeof(item[i].hash));
		sink(arg, "position", &item[i].position, sizeof(uint64_t));
		sink(arg, "length", &item[i].length, sizeof(uint64_t));
	}
}

void ucm_sha_block(const struct ucm_sha_block *block, ucm_sink sink,
		   void *arg)
{
	put_begin(KIND_BLOCK, sink, arg);
	sink(arg, "parent", &block->parent, sizeof(block->parent));
	put_number("number of tokens", (uint32_t)block->num, sink, arg);
	put_tokens(block, sink, arg);
	put_items(block, sink, arg);
}

void ucm_sha_rank(uint32_t rank, const struct ucm_id *id0, ucm_sink sink,
		  void *arg)
{
	put_begin(KIND_RANK, sink, arg);
	put_number("rank", rank, sink, arg);
	sink(arg, "id of rank 0", id0, sizeof(*id0));
}

void ucm_sha_external(const uint8_t *space_id, uint32_t group,
		      const void *hash, size_t hash_bytes, ucm_sink sink,
		      void *arg)
{
	put_begin(KIND_EXTERNAL, sink, arg);
	sink(arg, "space", space_id, UCM_HASH_DIGEST_BYTES);
	put_number("group", group, sink, arg);
	put_bytes("hash", hash, hash_bytes, sink, arg);
}

void ucm_sha_add(void *arg, const char *name, const void *bytes, size_t len)
{
	(void)name;
	ucm_sha256_add(arg, bytes, len);
}

struct ucm_id ucm_sha_end(struct ucm_sha256 *sha)
{
	uint8_t digest[UCM_SHA256_BYTES];
	struct ucm_id id;

	ucm_sha256_end(sha, digest);
	memcpy(&id, digest, sizeof(id));
	return id;
}
