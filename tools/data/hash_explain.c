/* SPDX-License-Identifier: Apache-2.0 */
/* hash_explain.c - ucm hash --explain: the bytes of which ids are made. */
#include <config.h>

#include "hashing/tree.h"
#include "tools/data/hash.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "hashing/explain.h"

#define LINE 16

/* A message that is being printed; pieces of one name run on. */
struct page {
	const char *name;
	size_t offset; /* in the message, of the line's first byte */
	uint8_t line[LINE];
	size_t fill;
	bool any;
};

static void end_line(struct page *page)
{
	if (!page->fill)
		return;
	printf("  %06zx ", page->offset);
	for (size_t i = 0; i < LINE; i++) {
		if (i < page->fill)
			printf(" %02x", page->line[i]);
		else
			printf("   ");
	}
	printf("  |");
	for (size_t i = 0; i < page->fill; i++)
		putchar(isprint(page->line[i]) ? page->line[i] : '.');
	printf("|%*s  %s\n", (int)(LINE - page->fill), "", page->name);
	page->offset += page->fill;
	page->fill = 0;
}

/* A ucm_sink. */
static void put_bytes(void *arg, const char *name, const void *bytes,
		      size_t len)
{
	const uint8_t *at = bytes;
	struct page *page = arg;

	if (page->name && strcmp(page->name, name))
		end_line(page);
	page->name = name;
	page->any = page->any || len;
	for (size_t i = 0; i < len; i++) {
		page->line[page->fill++] = at[i];
		if (page->fill == LINE)
			end_line(page);
	}
}

static void put_result(struct page *page, const struct ucm_id *id)
{
	end_line(page);
	printf("  = %s\n", ucm_hex(id).text);
}

static const char *digest_name(const struct ucm_hasher *hasher)
{
	return hasher->info->encoder ? "MD5"
				     : "the first 16 bytes of SHA-256";
}

static void explain_seed(const struct ucm_hasher *hasher)
{
	struct page page = { 0 };

	printf("before the first block: %s of\n", digest_name(hasher));
	ucm_explain_seed(hasher, put_bytes, &page);
	if (page.any)
		put_result(&page, &hasher->seed);
	else
		printf("  nothing\n");
}

static int explain_block(const struct ucm_hasher *hasher,
			 const struct ucm_hash_request *request,
			 const struct ucm_hash_state *state, size_t index,
			 const struct ucm_id *parent, const struct ucm_id *id0)
{
	struct page page = { 0 };
	int err;

	printf("block %zu: %s of\n", index, digest_name(hasher));
	err = ucm_explain_block(hasher, request, state, index, parent,
				put_bytes, &page);
	if (err)
		return err;
	put_result(&page, id0);
	if (!hasher->rank || !hasher->info->ranks)
		return 0;
	printf("rank %u: %s of\n", hasher->rank, digest_name(hasher));
	page = (struct page){ 0 };
	ucm_explain_rank(hasher, id0, put_bytes, &page);
	put_result(&page, &request->ids[index]);
	return 0;
}

int ucm_hash_explain(const struct ucm_hasher *hasher,
		     const struct ucm_hash_request *request,
		     const struct ucm_hash_state *state,
		     const struct ucm_id *ids0)
{
	size_t num = ucm_hash_count(hasher, request->num_tokens,
				    request->flags);

	if (state->tokens == 0)
		explain_seed(hasher);
	for (size_t i = 0; i < num; i++) {
		int err = explain_block(hasher, request, state, i,
					i ? &ids0[i - 1] : &state->parent,
					&ids0[i]);

		if (err)
			return err;
	}
	return 0;
}
