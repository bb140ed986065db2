/* SPDX-License-Identifier: Apache-2.0 */
/* hasher.c - checking the meta, and what follows from it once for all. */
#include <config.h>

#include "hashing/explain.h"
#include "hashing/sha.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"

static bool empty(const char *text)
{
	return !text || !*text;
}

/* Is this text of a field one that can be hashed? */
static int check_text(const char *field, const char *text,
		      struct ucm_error *error)
{
	if (text && strnlen(text, UCM_HASH_TEXT_MAX + 1) > UCM_HASH_TEXT_MAX)
		return ucm_error_set(error, -EINVAL, "%s: over %u bytes", field,
				     UCM_HASH_TEXT_MAX);
	return 0;
}

/* ---- checks ---- */

static int check_items(const struct ucm_hash_extras *extras,
		       struct ucm_error *error)
{
	uint64_t end = 0;

	for (size_t i = 0; i < extras->num_items; i++) {
		const struct ucm_hash_item *item = &extras->items[i];

		if (item->position < end || item->length == 0 ||
		    item->length > INT64_MAX || item->position > INT64_MAX)
			return ucm_error_set(
				error, -EINVAL,
				"items[%zu]: tokens %" PRIu64 " + %" PRIu64
				": none, or not after those of the one before",
				i, item->position, item->length);
		end = item->position + item->length;
	}
	return 0;
}

static int refuse_extra(const struct ucm_scheme_info *info, const char *field,
			struct ucm_error *error)
{
	return ucm_error_set(error, -EINVAL, "%s: scheme %s cannot express it",
			     field, info->name);
}

int ucm_extras_check(const struct ucm_scheme_info *info,
		     const struct ucm_hash_extras *extras,
		     struct ucm_error *error)
{
	int err;

	if (!info->extras && !empty(extras->salt))
		return refuse_extra(info, "salt", error);
	if (!info->extras && !empty(extras->lora))
		return refuse_extra(info, "lora", error);
	if (!info->extras && extras->num_items)
		return refuse_extra(info, "items", error);
	err = check_text("salt", extras->salt, error)
		?: check_text("lora", extras->lora, error);
	if (err)
		return err;
	if (extras->lora_digest && empty(extras->lora))
		return ucm_error_set(error, -EINVAL,
				     "lora_digest: there is no lora");
	if (extras->num_items && !extras->items)
		return ucm_error_set(error, -EINVAL, "items: missing");
	return check_items(extras, error);
}

/* A model may contain ':', as a path may: the three fields after it cannot,
 * so the text is taken apart from its end in one way only. */
static int check_texts(const struct ucm_scheme_info *info,
		       const struct ucm_hash_meta *meta,
		       struct ucm_error *error)
{
	if (info->meta && !meta->model)
		return ucm_error_set(error, -EINVAL, "model: missing");
	if (info->meta && !meta->dtype)
		return ucm_error_set(error, -EINVAL, "dtype: missing");
	if (info->plain && strchr(meta->dtype, ':'))
		return ucm_error_set(error, -EINVAL, "dtype %s: it has a ':'",
				     meta->dtype);
	if (!info->tail && !empty(meta->tail))
		return refuse_extra(info, "tail", error);
	if (info->tail && empty(meta->tail))
		return ucm_error_set(error, -EINVAL, "tail: missing");
	return check_text("model", meta->model, error)
		       ?: check_text("dtype", meta->dtype, error)
		       ?: check_text("tail", meta->tail, error);
}

static int check_meta(const struct ucm_hash_meta *meta, struct ucm_error *error)
{
	const struct ucm_scheme_info *info = ucm_scheme_info(meta->scheme);
	int err;

	if (!info)
		return ucm_error_set(error, -EINVAL,
				     "scheme %" PRIu32 ": unknown",
				     meta->scheme);
	if (meta->block_size == 0 || meta->block_size > UCM_HASH_BLOCK_SIZE_MAX)
		return ucm_error_set(error, -EINVAL,
				     "block_size %" PRIu32 ": from 1 to %u",
				     meta->block_size, UCM_HASH_BLOCK_SIZE_MAX);
	if (meta->world_size == 0)
		return ucm_error_set(error, -EINVAL, "world_size 0: from 1 on");
	if (meta->rank >= meta->world_size)
		return ucm_error_set(error, -EINVAL,
				     "rank %" PRIu32 " of %" PRIu32, meta->rank,
				     meta->world_size);
	err = check_texts(info, meta, error);
	if (err)
		return err;
	if (meta->scheme == UCM_SCHEME_EXTERNAL && !meta->space_id)
		return ucm_error_set(error, -EINVAL, "space_id: missing");
	return ucm_extras_check(info, &meta->extras, error);
}

/* ---- copies ---- */

/* Of a path that ends in slashes, or in none; cuts them off. */
static const char *last_name(char *path)
{
	size_t len = strlen(path);
	const char *slash;

	while (len > 0 && path[len - 1] == '/')
		path[--len] = '\0';
	slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static size_t text_bytes(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

static char *keep_text(char **to, const char *text)
{
	char *kept = *to;

	if (!text)
		return NULL;
	*to = stpcpy(kept, text) + 1;
	return kept;
}

static const uint8_t *keep_digest(uint8_t *to, const uint8_t *digest)
{
	return digest ? memcpy(to, digest, UCM_HASH_DIGEST_BYTES) : NULL;
}

static int keep_items(struct ucm_hasher *hasher)
{
	struct ucm_hash_extras *extras = &hasher->meta.extras;

	if (!extras->num_items) {
		extras->items = NULL;
		return 0;
	}
	hasher->items = calloc(extras->num_items, sizeof(*extras->items));
	if (!hasher->items)
		return -ENOMEM;
	memcpy(hasher->items, extras->items,
	       extras->num_items * sizeof(*extras->items));
	extras->items = hasher->items;
	return 0;
}

static struct ucm_hasher *keep(const struct ucm_hash_meta *meta)
{
	const struct ucm_hash_extras *extras = &meta->extras;
	struct ucm_hasher *hasher;
	char *to, *model;

	hasher = calloc(1, sizeof(*hasher) + text_bytes(meta->model) +
				   text_bytes(meta->dtype) +
				   text_bytes(meta->tail) +
				   text_bytes(extras->salt) +
				   text_bytes(extras->lora));
	if (!hasher)
		return NULL;
	to = hasher->texts;
	hasher->meta = *meta;
	model = keep_text(&to, meta->model);
	hasher->info = ucm_scheme_info(meta->scheme);
	hasher->meta.model = hasher->info->tail ? last_name(model) : model;
	hasher->meta.dtype = keep_text(&to, meta->dtype);
	hasher->meta.tail = keep_text(&to, meta->tail);
	hasher->meta.extras.salt = keep_text(&to, extras->salt);
	hasher->meta.extras.lora = keep_text(&to, extras->lora);
	hasher->meta.space_id = keep_digest(hasher->digests[0], meta->space_id);
	hasher->meta.extras.lora_digest =
		keep_digest(hasher->digests[1], extras->lora_digest);
	if (keep_items(hasher)) {
		free(hasher);
		return NULL;
	}
	return hasher;
}

/* ---- seeds ---- */

static struct ucm_id lead_digest(const struct ucm_midstate *lead)
{
	uint8_t room[UCM_MD5_CHUNK + UCM_MD5_PADDING];
	uint32_t state[4];
	struct ucm_id id;

	memcpy(state, lead->state, sizeof(state));
	memcpy(room, lead->rest, sizeof(lead->rest));
	ucm_md5_one(state, room,
		    ucm_md5_pad(room, ucm_midstate_rest(lead), lead->bytes));
	ucm_md5_digest(state, id.bytes);
	return id;
}

/* Of the bytes that ucm_explain_seed() names, where there are some. */
static void make_seed(struct ucm_hasher *hasher)
{
	struct ucm_midstate lead;
	struct ucm_sha256 sha;

	if (!hasher->info->meta)
		return; /* the first block has no parent */
	if (!hasher->info->encoder) {
		ucm_sha256_begin(&sha);
		ucm_explain_seed(hasher, ucm_sha_add, &sha);
		hasher->seed = ucm_sha_end(&sha);
		return;
	}
	ucm_midstate_init(&lead);
	ucm_explain_seed(hasher, ucm_midstate_add, &lead);
	hasher->seed = lead_digest(&lead);
	if (hasher->info->pickled)
		ucm_midstate_meta(hasher, 0, &hasher->lead);
}

int ucm_hasher_open(const struct ucm_hash_meta *meta, struct ucm_hasher **out,
		    struct ucm_error *error)
{
	struct ucm_hasher *hasher;
	int err = check_meta(meta, error);

	if (err)
		return err;
	hasher = keep(meta);
	if (!hasher)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	hasher->rank = meta->mla ? 0 : meta->rank;
	hasher->lanes = ucm_md5_lanes_best();
	snprintf(hasher->decimal, sizeof(hasher->decimal), "%u",
		 meta->block_size);
	make_seed(hasher);
	*out = hasher;
	return 0;
}

void ucm_hasher_close(struct ucm_hasher *hasher)
{
	if (!hasher)
		return;
	free(hasher->items);
	free(hasher);
}
