/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr.h - the file of representations that a block may have (ucm-repr(5)).
 *
 * It lies beside the block's file, in each of the block's places, and its
 * entry says that it does. It is the block's: it is seen only while the block
 * is, counts with it, and moves and goes with it. It can be made again from the
 * block, so what could not be kept is removed; what is wrong is quarantined, and so
 * is that of a block that is.
 */
#ifndef UCM_STORE_REPR_H
#define UCM_STORE_REPR_H

#include "fs/store/store.h"

#define UCM_STORE_REPR_MAX (64u << 20) /* bytes of a file */
#define UCM_STORE_REPR_PIECE (1u << 20) /* read and written at a time */

/* The file of a block: what stat(2) says of it, and the block's reference.
 * -ENOENT: there is none; -EINPROGRESS (fs/tier/wait.h). */
int ucm_store_find_repr(struct ucm_store *store, const struct ucm_key *key,
			struct stat *out, ucm_ref *ref_out);
int ucm_store_stat_repr(struct ucm_store *store, ucm_ref ref,
			struct ucm_entry *entry_out, struct stat *out);
/* For reading; entry_out->dir is where it lies. */
int ucm_store_open_repr(struct ucm_store *store, ucm_ref ref,
			struct ucm_entry *entry_out, struct ucm_file *out,
			struct stat *st);

/* Bytes that are the beginning of such a file, as far as can be seen: -EAGAIN:
 * more of it is to come. 0: they are whole, or wrong. */
int ucm_repr_is_whole(const void *bytes, size_t len);

/* The block gets this file, in place of the one that it has, in all its places
 * or in none. -ENOENT: there is no such block; -EINVAL: it is none of this
 * block's (logged); -ENOSPC, -EDQUOT. May wait. */
int ucm_store_put_repr(struct ucm_store *store, const struct ucm_key *key,
		       const void *bytes, size_t len);
/* -ENOENT: it has none. */
int ucm_store_remove_repr(struct ucm_store *store, const struct ucm_key *key);

#endif
