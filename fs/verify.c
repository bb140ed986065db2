/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - reads a block file and compares it with what it says of itself. */
#include <config.h>

#include "fs/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/osfile.h"

#define CHUNK (1u << 20)

/* The first bytes of a file, as many as its extension takes. */
struct head {
	char first[UCM_BLOCK_PAGE];
	char *bytes; /* first, or allocated */
	size_t len;
};

static void head_fini(struct head *head)
{
	if (head->bytes != head->first)
		free(head->bytes);
}

static int head_read(int fd, struct head *head)
{
	ssize_t got = ucm_os_read_at(fd, head->first, sizeof(head->first), 0);

	head->bytes = head->first;
	if (got < 0)
		return (int)got;
	head->len = (size_t)got;
	return 0;
}

/* Many layers make an extension of several pages. */
static int head_extend(int fd, struct head *head, size_t len)
{
	ssize_t got;
	char *bytes;

	if (len <= head->len)
		return 0;
	bytes = malloc(len);
	if (!bytes)
		return -ENOMEM;
	got = ucm_os_read_at(fd, bytes, len, 0);
	if (got < 0) {
		free(bytes);
		return (int)got;
	}
	head->bytes = bytes;
	head->len = (size_t)got;
	return 0;
}

static enum ucm_fault check_head(const struct head *head, uint64_t size,
				 const struct ucm_id *name,
				 struct ucm_block *block)
{
	enum ucm_fault fault;
	uint64_t want;

	fault = ucm_block_parse(head->bytes, head->len, size, block);
	if (fault)
		return fault;
	if (memcmp(&block->id, name, sizeof(*name)))
		return UCM_FAULT_NAME;
	want = ucm_block_file_size(block);
	if (size != want)
		return size < want ? UCM_FAULT_SHORT : UCM_FAULT_SIZE;
	return UCM_FAULT_NONE;
}

/* A scan reads one header in two megabytes: no read-ahead for that. */
int ucm_verify_header(int fd, uint64_t size, const struct ucm_id *name,
		      struct ucm_block *out, enum ucm_fault *fault)
{
	struct head head;
	int err;

	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	err = head_read(fd, &head);
	if (err)
		return err;
	*fault = check_head(&head, size, name, out);
	return 0;
}

static int check_extension(int fd, struct head *head,
			   const struct ucm_block *block, enum ucm_fault *fault)
{
	int err;

	if (block->form != UCM_FORM_PAGED)
		return 0;
	err = head_extend(fd, head, block->data_offset);
	if (!err)
		*fault = ucm_block_check_extension(block, head->bytes,
						   head->len);
	return err;
}

int ucm_verify_commit(int fd, uint64_t size, const struct ucm_id *name,
		      struct ucm_block *out, enum ucm_fault *fault)
{
	struct head head;
	int err;

	/* one page, of a file whose rest was perhaps written with O_DIRECT; the
	 * descriptor is the one that readers will share, so set it back */
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	err = head_read(fd, &head);
	posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
	if (err)
		return err;
	*fault = check_head(&head, size, name, out);
	if (!*fault)
		err = check_extension(fd, &head, out, fault);
	head_fini(&head);
	return err;
}

/* CRC of a byte range of the file; -EIO where it ends too soon. */
static int range_crc(int fd, char *chunk, uint64_t offset, uint64_t len,
		     uint32_t *crc)
{
	while (len > 0) {
		size_t part = len < CHUNK ? (size_t)len : CHUNK;
		ssize_t got = ucm_os_read_at(fd, chunk, part, (off_t)offset);

		if (got < 0)
			return (int)got;
		if ((size_t)got < part)
			return -EIO;
		*crc = ucm_crc32c(*crc, chunk, part);
		offset += part;
		len -= part;
	}
	return 0;
}

static int check_planes(int fd, char *chunk, const struct head *head,
			const struct ucm_block *block, enum ucm_fault *fault,
			uint32_t *plane)
{
	const struct ucm_geometry *g = &block->geometry;
	uint64_t at = block->data_offset;

	for (uint32_t i = 0; i < 2 * g->num_layers; i++) {
		uint64_t len = i % 2 ? g->v_bytes : g->k_bytes;
		uint32_t crc = 0;
		int err = range_crc(fd, chunk, at, len, &crc);

		if (err)
			return err;
		if (crc != ucm_block_plane_crc(block, head->bytes, i)) {
			*fault = UCM_FAULT_PLANE;
			*plane = i;
			return 0;
		}
		at += len;
	}
	return 0;
}

static int check_payload(int fd, char *chunk, const struct head *head,
			 const struct ucm_block *block, enum ucm_fault *fault,
			 uint32_t *plane)
{
	uint32_t crc = 0;
	int err;

	if (!(block->flags & UCM_BLOCK_HAS_CRC))
		return 0;
	if (block->form == UCM_FORM_PAGED)
		return check_planes(fd, chunk, head, block, fault, plane);
	err = range_crc(fd, chunk, block->data_offset,
			ucm_block_payload_bytes(&block->geometry), &crc);
	if (!err && crc != block->payload_crc)
		*fault = UCM_FAULT_PAYLOAD;
	return err;
}

static int check_tail(int fd, char *chunk, const struct ucm_block *block,
		      enum ucm_fault *fault)
{
	uint64_t end = block->data_offset +
		       ucm_block_payload_bytes(&block->geometry);
	size_t len = (size_t)(ucm_block_file_size(block) - end);
	ssize_t got = ucm_os_read_at(fd, chunk, len, (off_t)end);

	if (got < 0)
		return (int)got;
	if ((size_t)got < len)
		return -EIO;
	for (size_t i = 0; i < len; i++) {
		if (chunk[i])
			*fault = UCM_FAULT_TAIL;
	}
	return 0;
}

int ucm_verify_whole(int fd, uint64_t size, const struct ucm_id *name,
		     struct ucm_block *out, enum ucm_fault *fault,
		     uint32_t *plane)
{
	_cleanup_free_ char *chunk = malloc(CHUNK);
	struct head head;
	int err;

	if (!chunk)
		return -ENOMEM;
	err = head_read(fd, &head);
	if (err)
		return err;
	*fault = check_head(&head, size, name, out);
	if (!*fault)
		err = check_extension(fd, &head, out, fault);
	if (!err && !*fault)
		err = check_payload(fd, chunk, &head, out, fault, plane);
	if (!err && !*fault)
		err = check_tail(fd, chunk, out, fault);
	head_fini(&head);
	return err;
}
