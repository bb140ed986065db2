/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr_load.h - representations of many blocks, between their space
 * (ucm-repr(5)) and slabs that are scored.
 *
 * They are ordinary blocks, and a loader (<ucm/load.h>) moves them: this wraps
 * one with a group of the space. A program that has a loader, or a device, may
 * as well add such a group itself.
 *
 * Any thread may call, several at a time, but for open and close. Calls that
 * return int return 0 or -errno, and write *error (<ucm/error.h>; NULL: not
 * wanted) if they fail. ucm_repr_load(3) describes them.
 */
#ifndef UCM_REPR_LOAD_H
#define UCM_REPR_LOAD_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/error.h>
#include <ucm/load.h>
#include <ucm/repr.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A space of representations. */
struct ucm_reprs;

/* Set size to sizeof(struct). Zero is a default. */
struct ucm_reprs_options {
	size_t size;
	/* One of them. */
	const char *mount;   /* a mount point of ucmfs, or a daemon's socket */
	const char *tiers;   /* directories, as in SOURCE of ucmfs(8) */
	const char *blocks;  /* the space of the blocks; NULL: the default one */
	const char *space;   /* of the representations; NULL: its sibling */
	/* What it must hold; NULL: whatever it does. */
	const struct ucm_repr_space *like;
	enum ucm_io_kind io;
	uint32_t make; /* 1: make the space, if there is none; needs like */
};

/* -ENOENT: there is no such space, or mount; -EINVAL: it does not hold
 * representations, or others. */
int ucm_reprs_open(const struct ucm_reprs_options *options,
		   struct ucm_reprs **out, struct ucm_error *error);
void ucm_reprs_close(struct ucm_reprs *reprs); /* NULL is harmless */

/* What it holds. */
const struct ucm_repr_space *ucm_reprs_space(const struct ucm_reprs *reprs);

/*
 * Some layers of some blocks.
 *
 * Layer first_layer + l of block i is slot slots[i] of slabs[l] (NULL: slot i),
 * which has room for a layer's k_bytes. Set size to sizeof(struct).
 */
struct ucm_reprs_request {
	size_t size;
	const struct ucm_id *ids;
	size_t num;
	uint32_t first_layer, num_layers;
	const struct ucm_repr_slab *slabs; /* num_layers of them */
	const int32_t *slots;
	/* What became of each block; NULL: not wanted. 0: loaded, or saved;
	 * -ENOENT: it has none: attend to it densely; -EBADMSG: damaged; or
	 * another -errno. What its slots have then is not said. */
	int32_t *results;
};

/* 0: all were loaded; or the result of the first that was not, and then error
 * names it, and the others may be loaded. Waits for as long as the file system
 * takes. -EINVAL with *num_loaded 0, and no results: the request is wrong.
 * -ESTALE, of all: the space was removed or made anew; close and open it. */
int ucm_reprs_load(struct ucm_reprs *reprs,
		   const struct ucm_reprs_request *request,
		   size_t *num_loaded, struct ucm_error *error);

/* The same, the other way: all layers. Those that are there already stay as they
 * are, and count as saved. */
int ucm_reprs_save(struct ucm_reprs *reprs,
		   const struct ucm_reprs_request *request,
		   size_t *num_saved, struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
