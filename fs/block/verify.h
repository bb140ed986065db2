/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h - is this file the block that it is called?
 *
 * Works on the bytes of an open file; knows the format, not where files lie.
 * Each call returns 0 and a verdict in *fault, or -errno if the file could not be
 * read, which says nothing about its bytes.
 */
#ifndef UCM_VERIFY_H
#define UCM_VERIFY_H

#include <stdint.h>

#include <ucm/block.h>

#include "fs/block/bytes.h"

/* Header, name and size: what every block that is served has passed. A file
 * shorter than its header announces is UCM_FAULT_SHORT. */
int ucm_verify_header(const struct ucm_bytes *file, uint64_t size,
		      const struct ucm_id *name, struct ucm_block *out,
		      enum ucm_fault *fault);

/* The same, and the extension: what a commit asks for. */
int ucm_verify_commit(const struct ucm_bytes *file, uint64_t size,
		      const struct ucm_id *name, struct ucm_block *out,
		      enum ucm_fault *fault);

/*
 * Everything, with all checksums. On UCM_FAULT_PLANE *plane is the plane's
 * number (layer 0 K, layer 0 V, ...). A block without checksums passes if the
 * rest is right; block->flags says which. They may be read with
 * O_DIRECT; -EINVAL then: not in this file system.
 */
int ucm_verify_whole(const struct ucm_bytes *file, uint64_t size,
		      const struct ucm_id *name,
		     struct ucm_block *out, enum ucm_fault *fault,
		     uint32_t *plane);

#endif
