/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_header.h - what the loader keeps of a file's header.
 *
 * Pure. A head that was made says: this is the block of that name and of its
 * group's geometry, and its file is whole.
 */
#ifndef UCM_FILE_HEADER_H
#define UCM_FILE_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>

/* A header that is longer than this is none. */
#define UCM_FILE_HEADER_MOST ((uint64_t)16 << 20)

struct ucm_file_header {
	struct ucm_block block;
	uint32_t *planes; /* checksums, two for each layer; NULL: not known */
};

/* How many bytes of a file must be read to make its head. */
uint64_t ucm_file_header_bytes(const struct ucm_geometry *geometry);

/*
 * bytes, len: the start of the file, the whole of it or at least
 * ucm_file_header_bytes(). UCM_FAULT_NONE, or why the file is not to be used;
 * then *out is left alone. out->planes is allocated; -ENOMEM in *err_out.
 */
enum ucm_fault ucm_file_header_make(const void *bytes, size_t len,
				    uint64_t file_size, const struct ucm_id *id,
				    const struct ucm_geometry *geometry,
				    struct ucm_file_header *out, int *err_out);
void ucm_file_header_fini(struct ucm_file_header *head);

/*
 * Compare the checksums of the planes of [first_layer, end_layer), whose bytes
 * lie in a row at bytes. true, or the plane that differs.
 */
bool ucm_file_header_check(const struct ucm_file_header *head,
			   uint32_t first_layer, uint32_t end_layer,
			   const uint8_t *bytes, uint32_t *plane_out);

/* Add the payload's bytes from `at` on to the checksums of the planes that they
 * lie in: two for each layer, 0 before the first byte. All come in order. */
void ucm_file_header_add(const struct ucm_file_header *head, uint64_t at,
			 const uint8_t *bytes, size_t len, uint32_t *planes);

#endif
