/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - reads a block file and compares it with what it says of itself. */
#include <config.h>

#include "fs/block/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/align.h"
#include "common/cleanup.h"
#include "common/osfile.h"

#define CHUNK (1u << 18)
#define ALIGN ((uint64_t)UCM_BLOCK_PAGE) /* of memory, offset and length */

/* ---- by descriptor (bytes.h) ---- */

static ssize_t bytes_read_fd(const struct ucm_bytes *bytes, void *buffer,
			     size_t len, uint64_t offset)
{
	return ucm_os_read_at(bytes->fd, buffer, len, (off_t)offset);
}

/* No read-ahead: the rest is not wanted, or was written with O_DIRECT. */
static void bytes_expect_fd(const struct ucm_bytes *bytes, bool one)
{
	posix_fadvise(bytes->fd, 0, 0,
		      one ? POSIX_FADV_RANDOM : POSIX_FADV_NORMAL);
}

struct ucm_bytes ucm_bytes_of_fd(int fd)
{
	return (struct ucm_bytes){
		.read = bytes_read_fd,
		.expect_one_page = bytes_expect_fd,
		.fd = fd,
	};
}

/* ---- heads ---- */

/* The first bytes of a file, as many as its extension takes. */
struct head {
	_Alignas(UCM_BLOCK_PAGE) char first[UCM_BLOCK_PAGE];
	char *bytes; /* first, or allocated */
	size_t len;
};

static void head_fini(struct head *head)
{
	if (head->bytes != head->first)
		free(head->bytes);
}

static void expect_one_page(const struct ucm_bytes *file, bool one)
{
	if (file->expect_one_page)
		file->expect_one_page(file, one);
}

static int head_read(const struct ucm_bytes *file, struct head *head)
{
	ssize_t got = file->read(file, head->first, sizeof(head->first), 0);

	head->bytes = head->first;
	if (got < 0)
		return (int)got;
	head->len = (size_t)got;
	return 0;
}

/* Many layers make an extension of several pages. */
static int head_extend(const struct ucm_bytes *file, struct head *head,
		       size_t len)
{
	ssize_t got;
	char *bytes;

	if (len <= head->len)
		return 0;
	bytes = aligned_alloc(ALIGN, ucm_round_up(len, ALIGN));
	if (!bytes)
		return -ENOMEM;
	got = file->read(file, bytes, ucm_round_up(len, ALIGN), 0);
	if (got < 0) {
		free(bytes);
		return (int)got;
	}
	head->bytes = bytes;
	head->len = (size_t)got < len ? (size_t)got : len;
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
int ucm_verify_header(const struct ucm_bytes *file, uint64_t size,
		      const struct ucm_id *name, struct ucm_block *out,
		      enum ucm_fault *fault)
{
	struct head head;
	int err;

	expect_one_page(file, true);
	err = head_read(file, &head);
	if (err)
		return err;
	*fault = check_head(&head, size, name, out);
	return 0;
}

static int check_extension(const struct ucm_bytes *file, struct head *head,
			   const struct ucm_block *block, enum ucm_fault *fault)
{
	int err;

	if (block->form != UCM_FORM_PAGED)
		return 0;
	err = head_extend(file, head, block->data_offset);
	if (!err)
		*fault = ucm_block_check_extension(block, head->bytes,
						   head->len);
	return err;
}

int ucm_verify_commit(const struct ucm_bytes *file, uint64_t size,
		      const struct ucm_id *name, struct ucm_block *out,
		      enum ucm_fault *fault)
{
	struct head head;
	int err;

	/* one page, of a file whose rest was perhaps written with O_DIRECT; the
	 * descriptor is the one that readers will share, so set it back */
	expect_one_page(file, true);
	err = head_read(file, &head);
	expect_one_page(file, false);
	if (err)
		return err;
	*fault = check_head(&head, size, name, out);
	if (!*fault)
		err = check_extension(file, &head, out, fault);
	head_fini(&head);
	return err;
}

/* A megabyte of the file, read as a descriptor with O_DIRECT wants it: planes
 * are small, and nothing is read ahead for that one. */
struct window {
	const struct ucm_bytes *file;
	char *bytes;
	uint64_t offset;
	size_t len;
};
#define WINDOW (CHUNK + ALIGN)

static bool window_has(const struct window *window, uint64_t offset, size_t len)
{
	return offset >= window->offset &&
	       offset + len <= window->offset + window->len;
}

static int window_move(struct window *window, uint64_t offset)
{
	ssize_t got;

	window->offset = offset - offset % ALIGN;
	window->len = 0;
	got = window->file->read(window->file, window->bytes, WINDOW,
				 window->offset);
	if (got < 0)
		return (int)got;
	window->len = (size_t)got;
	return 0;
}

/* At most CHUNK bytes; -EIO where the file ends too soon. */
static int window_read(struct window *window, uint64_t offset, size_t len,
		       const char **out)
{
	int err = 0;

	if (!window_has(window, offset, len))
		err = window_move(window, offset);
	if (!err && !window_has(window, offset, len))
		err = -EIO;
	if (!err)
		*out = window->bytes + (offset - window->offset);
	return err;
}

/* CRC of a byte range of the file. */
static int range_crc(struct window *window, uint64_t offset, uint64_t len,
		     uint32_t *crc)
{
	while (len > 0) {
		size_t part = len < CHUNK ? (size_t)len : CHUNK;
		const char *bytes = NULL;
		int err = window_read(window, offset, part, &bytes);

		if (err)
			return err;
		*crc = ucm_crc32c(*crc, bytes, part);
		offset += part;
		len -= part;
	}
	return 0;
}

static int check_planes(struct window *window, const struct head *head,
			const struct ucm_block *block, enum ucm_fault *fault,
			uint32_t *plane)
{
	const struct ucm_geometry *g = &block->geometry;
	uint64_t at = block->data_offset;

	for (uint32_t i = 0; i < 2 * g->num_layers; i++) {
		uint64_t len = i % 2 ? g->v_bytes : g->k_bytes;
		uint32_t crc = 0;
		int err = range_crc(window, at, len, &crc);

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

static int check_payload(struct window *window, const struct head *head,
			 const struct ucm_block *block, enum ucm_fault *fault,
			 uint32_t *plane)
{
	uint32_t crc = 0;
	int err;

	if (!(block->flags & UCM_BLOCK_HAS_CRC))
		return 0;
	if (block->form == UCM_FORM_PAGED)
		return check_planes(window, head, block, fault, plane);
	err = range_crc(window, block->data_offset,
			ucm_block_payload_bytes(&block->geometry), &crc);
	if (!err && crc != block->payload_crc)
		*fault = UCM_FAULT_PAYLOAD;
	return err;
}

static int check_tail(struct window *window, const struct ucm_block *block,
		      enum ucm_fault *fault)
{
	uint64_t end = block->data_offset +
		       ucm_block_payload_bytes(&block->geometry);
	size_t len = (size_t)(ucm_block_file_size(block) - end);
	const char *bytes = NULL;
	int err = window_read(window, end, len, &bytes);

	if (err)
		return err;
	for (size_t i = 0; i < len; i++) {
		if (bytes[i])
			*fault = UCM_FAULT_TAIL;
	}
	return 0;
}

int ucm_verify_whole(const struct ucm_bytes *file, uint64_t size,
		     const struct ucm_id *name, struct ucm_block *out,
		     enum ucm_fault *fault, uint32_t *plane)
{
	_cleanup_free_ char *bytes = aligned_alloc(ALIGN, WINDOW);
	struct window window = { .file = file, .bytes = bytes };
	struct head head;
	int err;

	if (!bytes)
		return -ENOMEM;
	err = head_read(file, &head);
	if (err)
		return err;
	*fault = check_head(&head, size, name, out);
	if (!*fault)
		err = check_extension(file, &head, out, fault);
	if (!err && !*fault)
		err = check_payload(&window, &head, out, fault, plane);
	if (!err && !*fault)
		err = check_tail(&window, out, fault);
	head_fini(&head);
	return err;
}
