/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr_load.h - representations of many blocks at once, from the files beside
 * them (ucm-repr(5)) to slabs that are scored.
 *
 * Files are found through a mount of ucmfs, or in the directories of its tiers,
 * opened and read many at a time (io_uring), and a layer's bytes are compared
 * with their checksum before they are anywhere. They are read through the page
 * cache: they are small, and other requests want the same ones.
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

/* Where files of representations are. */
struct ucm_reprs;

/* Set size to sizeof(struct). Zero is a default. */
struct ucm_reprs_options {
	size_t size;
	/* One of them; with both the files are read in the tiers. */
	const char *mount;   /* a mount point of ucmfs */
	const char *tiers;   /* directories, as in SOURCE of ucmfs(8) */
	const char *space;   /* NULL: the default one */
	enum ucm_io_kind io;
	uint32_t depth;      /* files at a time [64]; up to 4096 */
};

int ucm_reprs_open(const struct ucm_reprs_options *options,
		   struct ucm_reprs **out, struct ucm_error *error);
void ucm_reprs_close(struct ucm_reprs *reprs); /* NULL is harmless */

/* What the file of a block says. -ENOENT: there is none. */
int ucm_reprs_header(struct ucm_reprs *reprs, const struct ucm_id *id,
		     struct ucm_repr_file *out, struct ucm_error *error);

/*
 * Some layers of some blocks.
 *
 * like: what all files must say, but for their block and space. Layer
 * first_layer + l of block i is written to slot slots[i] of slabs[l] (NULL: slot
 * i), which has room for its layer_bytes. Set size to sizeof(struct).
 */
struct ucm_reprs_request {
	size_t size;
	const struct ucm_id *ids;
	size_t num;
	const struct ucm_repr_file *like;
	uint32_t first_layer, num_layers;
	const struct ucm_repr_slab *slabs; /* num_layers of them */
	const int32_t *slots;
	/* What became of each block; NULL: not wanted. 0: loaded, all its
	 * layers; -ENOENT: it has no file; -EBADMSG: damaged; -EINVAL: of
	 * another kind, or not like `like` otherwise; -errno. Of these nothing
	 * is written to slabs. */
	int32_t *results;
};

/* 0: all were loaded; or the result of the first that was not, and then error
 * names it, and the others may be loaded. Waits for as long as the file system
 * takes. -EINVAL with *num_loaded 0, and no results: the request is wrong. */
int ucm_reprs_load(struct ucm_reprs *reprs,
		   const struct ucm_reprs_request *request,
		   size_t *num_loaded, struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
