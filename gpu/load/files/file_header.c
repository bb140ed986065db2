/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_header.c - what the loader keeps of a file's header.
 */
#include <config.h>

#include "gpu/load/files/file_header.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t ucm_file_header_bytes(const struct ucm_geometry *geometry)
{
	return ucm_block_data_offset(geometry->num_layers);
}

static enum ucm_fault judge(const struct ucm_block *block, uint64_t file_size,
			    const struct ucm_id *id,
			    const struct ucm_geometry *geometry)
{
	uint64_t size = ucm_block_file_size(block);

	if (memcmp(&block->id, id, sizeof(*id)) != 0)
		return UCM_FAULT_NAME;
	if (!ucm_geometry_equal(&block->geometry, geometry))
		return UCM_FAULT_GEOMETRY;
	if (file_size != size)
		return file_size < size ? UCM_FAULT_SHORT : UCM_FAULT_SIZE;
	return UCM_FAULT_NONE;
}

enum ucm_fault ucm_file_header_make(const void *bytes, size_t len,
				    uint64_t file_size, const struct ucm_id *id,
				    const struct ucm_geometry *geometry,
				    struct ucm_file_header *out, int *err_out)
{
	uint32_t num = 2 * geometry->num_layers;
	struct ucm_file_header head = { .planes = NULL };
	enum ucm_fault fault;

	*err_out = 0;
	fault = ucm_block_parse(bytes, len, file_size, &head.block);
	if (!fault && head.block.data_offset > UCM_FILE_HEADER_MOST)
		fault = UCM_FAULT_FIELD;
	if (!fault)
		fault = judge(&head.block, file_size, id, geometry);
	if (!fault && head.block.form == UCM_FORM_PAGED &&
	    len < head.block.data_offset)
		fault = UCM_FAULT_SHORT;
	if (!fault)
		fault = ucm_block_check_extension(&head.block, bytes, len);
	if (fault)
		return fault;
	if (head.block.form == UCM_FORM_PAGED &&
	    (head.block.flags & UCM_BLOCK_HAS_CRC)) {
		head.planes = malloc(num * sizeof(*head.planes));
		if (!head.planes) {
			*err_out = -ENOMEM;
			return UCM_FAULT_NONE;
		}
		for (uint32_t i = 0; i < num; i++)
			head.planes[i] =
				ucm_block_plane_crc(&head.block, bytes, i);
	}
	*out = head;
	return UCM_FAULT_NONE;
}

void ucm_file_header_fini(struct ucm_file_header *head)
{
	free(head->planes);
	head->planes = NULL;
}

bool ucm_file_header_check(const struct ucm_file_header *head,
			   uint32_t first_layer, uint32_t end_layer,
			   const uint8_t *bytes, uint32_t *plane_out)
{
	const uint32_t plane_bytes[] = { head->block.geometry.k_bytes,
					 head->block.geometry.v_bytes };

	if (!head->planes)
		return true;
	for (uint32_t plane = 2 * first_layer; plane < 2 * end_layer; plane++) {
		uint32_t len = plane_bytes[plane & 1];

		if (len && ucm_crc32c(0, bytes, len) != head->planes[plane]) {
			*plane_out = plane;
			return false;
		}
		bytes += len;
	}
	return true;
}

void ucm_file_header_add(const struct ucm_file_header *head, uint64_t at,
			 const uint8_t *bytes, size_t len, uint32_t *planes)
{
	const uint64_t k_bytes = head->block.geometry.k_bytes;
	const uint64_t layer_bytes = k_bytes + head->block.geometry.v_bytes;

	while (len) {
		uint64_t inside = at % layer_bytes;
		bool v = inside >= k_bytes;
		uint64_t part = (v ? layer_bytes : k_bytes) - inside;
		uint32_t *plane = &planes[2 * (at / layer_bytes) + v];

		if (part > len)
			part = len;
		*plane = ucm_crc32c(*plane, bytes, part);
		bytes += part;
		at += part;
		len -= part;
	}
}
