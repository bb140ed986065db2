/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - spaces that a peer makes, reads the manifests of, and removes.
 *
 * Engines of one model that start together all ask for its space, with the manifest
 * that they need. One request after another is served (making): the first one makes
 * the space and writes its manifest, the others compare theirs with it. A manifest is
 * written only while the space has no blocks, as it says what they are.
 */
#include <config.h>

#include "fs/serve/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/log.h"

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* ---- making ---- */

static int make_new(struct ucm_exchange *exchange, struct ucm_space **out)
{
	const struct ucm_peer *peer = exchange->peer;

	if (peer->terms->readonly)
		return -EROFS;
	return ucm_store_mkdir(peer->terms->store, exchange->request->space,
			       exchange->request->argument, peer->uid,
			       peer->gid, out);
}

static bool is_same(const struct ucm_manifest *wanted, const char *text)
{
	struct ucm_manifest here;

	return !ucm_manifest_parse(text, strlen(text), &here, NULL) &&
	       !memcmp(here.space_id, wanted->space_id, sizeof(here.space_id));
}

static int write_manifest(struct ucm_exchange *exchange,
			  struct ucm_space *space, const char *text)
{
	const struct ucm_peer *peer = exchange->peer;
	int err = ucm_peer_may(peer, space, true);

	if (err)
		return err;
	if (peer->terms->readonly)
		return -EROFS;
	return ucm_store_write_manifest(peer->terms->store, space, text,
					strlen(text));
}

/* One that says nothing but a quota does not say what the blocks are. */
static int agree(struct ucm_exchange *exchange, struct ucm_space *space,
		 const char *text, const struct ucm_manifest *wanted)
{
	struct ucm_store *store = exchange->peer->terms->store;
	_cleanup_free_ char *here = malloc(UCM_MANIFEST_MAX);
	uint64_t quota;
	int err;

	if (!here)
		return -ENOMEM;
	err = ucm_store_read_manifest(store, space, here, UCM_MANIFEST_MAX);
	if (err && err != -ENOENT)
		return err;
	if (!err && !ucm_manifest_quota_alone(here, strlen(here), &quota))
		return is_same(wanted, here) ? 0 : -EEXIST;
	if (ucm_store_has_blocks(store, space))
		return -ENOTEMPTY;
	return write_manifest(exchange, space, text);
}

/* mkdir(2) in a mount does not wait for us: then the space is found. */
static int make_for(struct ucm_exchange *exchange, const char *text,
		    const struct ucm_manifest *wanted)
{
	struct ucm_store *store = exchange->peer->terms->store;
	struct ucm_space *space, *made = NULL;
	int err;

	do {
		space = ucm_store_meet_space(store, exchange->request->space);
		err = space ? ucm_peer_may(exchange->peer, space, false)
			    : make_new(exchange, &made);
	} while (!space && err == -EEXIST);
	if (!err)
		err = agree(exchange, space ? space : made, text, wanted);
	if (err && made)
		ucm_store_rmdir(store, made);
	return err;
}

static int make_with_manifest(struct ucm_exchange *exchange)
{
	_cleanup_free_ char *text = strndup(exchange->items, exchange->size);
	struct ucm_manifest wanted;
	struct ucm_error error;
	int err;

	if (!text)
		return -ENOMEM;
	if (strlen(text) != exchange->size)
		return -EINVAL;
	err = ucm_store_check_manifest(exchange->peer->terms->store, text,
				       exchange->size, &wanted, &error);
	if (err) {
		ucm_warning("socket: a space is not made: %s", error.text);
		return err;
	}
	return make_for(exchange, text, &wanted);
}

int ucm_peer_mkspace(struct ucm_exchange *exchange)
{
	struct ucm_space *space;
	int err;

	if (!*exchange->request->space)
		return -EEXIST; /* the default one */
	pthread_mutex_lock(&making);
	err = exchange->request->num ? make_with_manifest(exchange)
				     : make_new(exchange, &space);
	pthread_mutex_unlock(&making);
	return err;
}

/* ---- removing ---- */

static int remove_blocks(struct ucm_store *store, struct ucm_space *space,
			 unsigned bucket)
{
	struct ucm_key key = { .space = space->number };
	struct ucm_entry entry;
	uint32_t cursor = 0;
	ucm_ref ref;
	int err = 0;

	ucm_store_fill_bucket(store, space, bucket);
	while (!err && ucm_index_next(store->index, space->number, bucket,
				      &cursor, &entry, &ref)) {
		key.id = entry.id;
		err = ucm_store_remove(store, &key);
		if (err == -ENOENT) /* another one has removed it */
			err = 0;
	}
	return err;
}

/* Its folder may be that of a new space by now, which has its name. */
static int remove_empty(const struct ucm_server_terms *terms,
			struct ucm_space *space)
{
	if (!ucm_namespace_get(&terms->store->names, space->number))
		return -ENOENT;
	if (terms->writes && terms->writes(terms->arg, space))
		return -ENOTEMPTY;
	return ucm_store_rmdir(terms->store, space);
}

int ucm_peer_rmspace(struct ucm_exchange *exchange)
{
	const struct ucm_server_terms *terms = exchange->peer->terms;
	struct ucm_space *space = exchange->space;
	int err = space->number ? 0 : -EINVAL; /* the default one stays */

	for (unsigned i = 0; i < UCM_BUCKETS && !err; i++)
		err = remove_blocks(terms->store, space, i);
	if (err)
		return err;
	pthread_mutex_lock(&making);
	err = remove_empty(terms, space);
	pthread_mutex_unlock(&making);
	return err;
}

/* ---- reading ---- */

int ucm_peer_space(struct ucm_exchange *exchange)
{
	const struct ucm_store *store = exchange->peer->terms->store;
	struct ucm_serve_space *out = exchange->out;

	out->number = exchange->space->number;
	if (ucm_index_is_published(store->index, exchange->space->number))
		out->flags = UCM_SPACE_PUBLISHED;
	return 0;
}

int ucm_peer_manifest(struct ucm_exchange *exchange, char **out,
		      size_t *len_out)
{
	char *text = malloc(UCM_MANIFEST_MAX);
	int err;

	if (!text)
		return -ENOMEM;
	err = ucm_store_read_manifest(exchange->peer->terms->store,
				      exchange->space, text, UCM_MANIFEST_MAX);
	if (err) {
		free(text);
		return err;
	}
	*len_out = strlen(text);
	*out = text;
	return 0;
}

int ucm_peer_spaces(struct ucm_exchange *exchange, char **out, size_t *len_out)
{
	struct ucm_namespace *names = &exchange->peer->terms->store->names;
	unsigned num = names->num;
	FILE *text = open_memstream(out, len_out);

	if (!text)
		return -ENOMEM;
	for (unsigned i = 1; i < num; i++) { /* 0 is the default one */
		const struct ucm_space *space = ucm_namespace_get(names, i);

		if (space)
			fwrite(space->name, 1, strlen(space->name) + 1, text);
	}
	if (!fclose(text))
		return 0;
	free(*out);
	*out = NULL;
	return -ENOMEM;
}
