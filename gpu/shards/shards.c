/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards.c - the store interface: sizes, and what callers say.
 *
 * A store is a group of the loader without pages: its regions are the smaller
 * one of tensor and layer, and each request brings their addresses.
 */
#include <config.h>

#include "gpu/shards/call.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/sized.h"

/* ---- a store ---- */

int ucm_shards_open(struct ucm_loader *loader,
		    const struct ucm_shards_config *config,
		    struct ucm_shards **out, struct ucm_error *error)
{
	struct ucm_shards_config own;
	struct ucm_shards *store;
	int err = ucm_sized_take(&own, sizeof(own), config,
				 offsetof(struct ucm_shards_config, num_layers),
				 "ucm_shards_config", error);

	if (err)
		return err;
	store = calloc(1, sizeof(*store));
	if (!store)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	store->loader = loader;
	err = ucm_shards_set_up(store, &own, error);
	if (err) {
		free(store);
		return err;
	}
	pthread_mutex_init(&store->lock, NULL);
	*out = store;
	return 0;
}

void ucm_shards_close(struct ucm_shards *store)
{
	if (!store)
		return;
	ucm_shards_end_calls(store);
	ucm_shards_end_dumps(store);
	pthread_mutex_destroy(&store->lock);
	free(store);
}

void ucm_shards_get_shape(const struct ucm_shards *store,
			  struct ucm_shards_shape *out)
{
	*out = store->shape;
}

/* ---- questions ---- */

int ucm_shards_lookup(struct ucm_shards *store, const struct ucm_id *ids,
		      size_t num, uint8_t *found)
{
	return ucm_loader_lookup(store->loader, store->group, ids, num, found);
}

int ucm_shards_lookup_on_prefix(struct ucm_shards *store,
				const struct ucm_id *ids, size_t num,
				int64_t *last_out)
{
	size_t count;
	int err = ucm_loader_prefix(store->loader, store->group, ids, num,
				    &count);

	if (!err)
		*last_out = (int64_t)count - 1;
	return err;
}

int ucm_shards_prefetch(struct ucm_shards *store, const struct ucm_id *ids,
			size_t num)
{
	ucm_loader_prefetch(store->loader, store->group, ids, num);
	return 0;
}

/* ---- what a call says ---- */

/* "entry 3, block 0123...: " to a failure's cause. */
__attribute__((format(printf, 4, 5))) static int refuse(struct ucm_error *error,
							size_t i,
							const struct ucm_id *id,
							const char *format, ...)
{
	char hex[UCM_ID_HEX + 1], text[192];
	va_list args;

	ucm_id_format(id, hex);
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return ucm_error_set(error, -EINVAL, "entry %zu, block %s: %s", i, hex,
			     text);
}

static int check_addresses(const struct ucm_shards_entry *entry, size_t num,
			   struct ucm_error *error)
{
	for (size_t i = 0; i < num; i++) {
		uint64_t address = entry->addresses[i];

		if (!address || address + entry->piece_bytes - 1 < address)
			return refuse(error, entry->index, &entry->id,
				      "%" PRIu64 " bytes at 0x%" PRIx64
				      ": no address",
				      entry->piece_bytes, address);
	}
	return 0;
}

/* Shards; of each, num pieces at addresses. */
static int take_shards(const struct ucm_shards *store,
		       struct ucm_shards_entry *entries,
		       const struct ucm_id *ids, const uint32_t *shards,
		       size_t num_entries, const uint64_t *addresses,
		       uint32_t num, struct ucm_error *error)
{
	const struct ucm_shards_shape *shape = &store->shape;
	uint32_t layers = shape->num_layers / shape->num_shards;
	int err = 0;

	for (size_t i = 0; i < num_entries && !err; i++) {
		struct ucm_shards_entry *entry = &entries[i];
		uint32_t shard = shards ? shards[i] : 0;

		if (shard >= shape->num_shards)
			return refuse(error, i, &ids[i],
				      "shard %" PRIu32 " of %" PRIu32, shard,
				      shape->num_shards);
		entry->id = ids[i];
		entry->first_layer = shard * layers;
		entry->num_layers = layers;
		entry->addresses = addresses + i * num;
		entry->piece_bytes = shape->shard_size / num;
		err = check_addresses(entry, num, error);
	}
	return err;
}

/* Whole layers from an offset on, at one address each. */
static int take_offsets(const struct ucm_shards *store,
			struct ucm_shards_entry *entries,
			const struct ucm_id *ids, const uint64_t *offsets,
			const struct ucm_span *spans, size_t num,
			struct ucm_error *error)
{
	uint64_t layer = store->shape.layer_size;
	uint64_t block = store->shape.block_size;
	int err = 0;

	for (size_t i = 0; i < num && !err; i++) {
		struct ucm_shards_entry *entry = &entries[i];
		uint64_t offset = offsets ? offsets[i] : 0;
		uint64_t bytes = spans[i].bytes;

		if (!bytes || bytes > block || offset > block - bytes)
			return refuse(error, i, &ids[i],
				      "%" PRIu64 " bytes from offset %" PRIu64
				      " on: the block has %" PRIu64,
				      bytes, offset, block);
		if (offset % layer || bytes % layer)
			return refuse(error, i, &ids[i],
				      "%" PRIu64 " bytes from offset %" PRIu64
				      " on: not whole layers of %" PRIu64
				      " bytes (of %" PRIu32 ")",
				      bytes, offset, layer,
				      store->shape.num_layers);
		entry->id = ids[i];
		entry->first_layer = (uint32_t)(offset / layer);
		entry->num_layers = (uint32_t)(bytes / layer);
		entry->addresses = &spans[i].address;
		entry->piece_bytes = bytes;
		err = check_addresses(entry, 1, error);
	}
	return err;
}

/* Which of the entries may be dumped? */
static void admit(struct ucm_shards *store, struct ucm_shards_call *call,
		  size_t num, bool held)
{
	const struct ucm_shards_entry *entry = call->entries;
	struct ucm_outcome outcome;

	pthread_mutex_lock(&store->lock);
	for (size_t i = 0; i < num; i++, entry++) {
		if (!ucm_shards_admit(store, &entry->id, entry->first_layer,
				      entry->num_layers, held, &outcome))
			call->outcomes[i] = outcome;
	}
	pthread_mutex_unlock(&store->lock);
}

static int new_call(struct ucm_shards *store, enum ucm_shards_kind kind,
		    size_t num, struct ucm_shards_call **out,
		    struct ucm_error *error)
{
	if (num > UINT32_MAX)
		return ucm_error_set(error, -EINVAL, "%zu entries", num);
	if (ucm_shards_call_new(store, kind, num, out))
		return ucm_error_set(error, -ENOMEM, "out of memory");
	return 0;
}

/* ---- V1 ---- */

static int move_shards(struct ucm_shards *store, enum ucm_shards_kind kind,
		       const struct ucm_id *ids, const uint32_t *shards,
		       size_t num, const uint64_t *addresses,
		       uint32_t per_shard, uint64_t *handle,
		       struct ucm_error *error)
{
	struct ucm_shards_call *call;
	int err = new_call(store, kind, num, &call, error);

	if (err)
		return err;
	err = take_shards(store, call->entries, ids, shards, num, addresses,
			  per_shard, error);
	if (err) {
		ucm_shards_call_free(call);
		return err;
	}
	if (kind == UCM_SHARDS_DUMP)
		admit(store, call, num, false);
	*handle = ucm_shards_call_start(call);
	return 0;
}

int ucm_shards_load(struct ucm_shards *store, const struct ucm_id *ids,
		    const uint32_t *shards, size_t num,
		    const uint64_t *addresses, uint64_t *handle,
		    struct ucm_error *error)
{
	return move_shards(store, UCM_SHARDS_LOAD, ids, shards, num, addresses,
			   store->shape.tensors_per_shard, handle, error);
}

int ucm_shards_dump(struct ucm_shards *store, const struct ucm_id *ids,
		    const uint32_t *shards, size_t num,
		    const uint64_t *addresses, uint64_t *handle,
		    struct ucm_error *error)
{
	return move_shards(store, UCM_SHARDS_DUMP, ids, shards, num, addresses,
			   store->shape.tensors_per_shard, handle, error);
}

/* Spans to addresses. */
static int take_spans(const struct ucm_shards *store,
		      const struct ucm_span *spans, size_t num_spans,
		      size_t num, uint32_t per_shard, uint64_t *addresses,
		      struct ucm_error *error)
{
	const struct ucm_shards_shape *shape = &store->shape;
	uint64_t bytes = shape->shard_size / per_shard;

	if (num_spans / per_shard != num || num_spans % per_shard)
		return ucm_error_set(error, -EINVAL,
				     "%zu spans for %zu shards: one or %" PRIu32
				     " for each",
				     num_spans, num, shape->tensors_per_shard);
	for (size_t i = 0; i < num_spans; i++) {
		if (spans[i].bytes != bytes)
			return ucm_error_set(error, -EINVAL,
					     "entry %zu, span %zu: %" PRIu64
					     " bytes instead of %" PRIu64,
					     i / per_shard, i % per_shard,
					     spans[i].bytes, bytes);
		addresses[i] = spans[i].address;
	}
	return 0;
}

static int move_data(struct ucm_shards *store, enum ucm_shards_kind kind,
		     const struct ucm_id *ids, const uint32_t *shards,
		     size_t num, const struct ucm_span *spans, size_t num_spans,
		     uint64_t *handle, struct ucm_error *error)
{
	uint32_t per_shard =
		num_spans == num ? 1 : store->shape.tensors_per_shard;
	uint64_t *addresses =
		calloc(num_spans ? num_spans : 1, sizeof(*addresses));
	int err;

	if (!addresses)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	err = take_spans(store, spans, num_spans, num, per_shard, addresses,
			 error)
		?: move_shards(store, kind, ids, shards, num, addresses,
			       per_shard, handle, error);
	free(addresses);
	return err;
}

int ucm_shards_load_data(struct ucm_shards *store, const struct ucm_id *ids,
			 const uint32_t *shards, size_t num,
			 const struct ucm_span *spans, size_t num_spans,
			 uint64_t *handle, struct ucm_error *error)
{
	return move_data(store, UCM_SHARDS_LOAD, ids, shards, num, spans,
			 num_spans, handle, error);
}

int ucm_shards_dump_data(struct ucm_shards *store, const struct ucm_id *ids,
			 const uint32_t *shards, size_t num,
			 const struct ucm_span *spans, size_t num_spans,
			 uint64_t *handle, struct ucm_error *error)
{
	return move_data(store, UCM_SHARDS_DUMP, ids, shards, num, spans,
			 num_spans, handle, error);
}

/* ---- V0 ---- */

int ucm_shards_create(struct ucm_shards *store, const struct ucm_id *ids,
		      size_t num, int *results)
{
	uint8_t *found = malloc(num ? num : 1);
	int err;

	if (!found)
		return -ENOMEM;
	err = ucm_shards_lookup(store, ids, num, found);
	if (err)
		goto out;
	pthread_mutex_lock(&store->lock);
	for (size_t i = 0; i < num; i++)
		results[i] =
			found[i] ? -EEXIST : ucm_shards_reserve(store, &ids[i]);
	pthread_mutex_unlock(&store->lock);
out:
	free(found);
	return err;
}

static int move_bytes(struct ucm_shards *store, enum ucm_shards_kind kind,
		      const struct ucm_id *ids, const uint64_t *offsets,
		      const struct ucm_span *spans, size_t num,
		      uint64_t *handle, struct ucm_error *error)
{
	struct ucm_shards_call *call;
	int err = new_call(store, kind, num, &call, error);

	if (err)
		return err;
	err = take_offsets(store, call->entries, ids, offsets, spans, num,
			   error);
	if (err) {
		ucm_shards_call_free(call);
		return err;
	}
	if (kind == UCM_SHARDS_DUMP_HELD)
		admit(store, call, num, true);
	*handle = ucm_shards_call_start(call);
	return 0;
}

int ucm_shards_load_at(struct ucm_shards *store, const struct ucm_id *ids,
		       const uint64_t *offsets, const struct ucm_span *spans,
		       size_t num, uint64_t *handle, struct ucm_error *error)
{
	return move_bytes(store, UCM_SHARDS_LOAD, ids, offsets, spans, num,
			  handle, error);
}

int ucm_shards_dump_at(struct ucm_shards *store, const struct ucm_id *ids,
		       const uint64_t *offsets, const struct ucm_span *spans,
		       size_t num, uint64_t *handle, struct ucm_error *error)
{
	return move_bytes(store, UCM_SHARDS_DUMP_HELD, ids, offsets, spans, num,
			  handle, error);
}

int ucm_shards_commit(struct ucm_shards *store, const struct ucm_id *ids,
		      const uint8_t *success, size_t num, uint64_t *handle,
		      struct ucm_error *error)
{
	struct ucm_shards_call *call;
	struct ucm_outcome outcome;
	int err = new_call(store, UCM_SHARDS_COMMIT, num, &call, error);

	if (err)
		return err;
	pthread_mutex_lock(&store->lock);
	for (size_t i = 0; i < num; i++) {
		call->entries[i].id = ids[i];
		if (!ucm_shards_may_commit(store, &ids[i],
					   !success || success[i], &outcome))
			call->outcomes[i] = outcome;
	}
	pthread_mutex_unlock(&store->lock);
	*handle = ucm_shards_call_start(call);
	return 0;
}
