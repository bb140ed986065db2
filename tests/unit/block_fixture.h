/* SPDX-License-Identifier: Apache-2.0 */
/* block_fixture.h - block files in the directories of dir_fixture.h. */
#ifndef UCM_TESTS_BLOCK_FIXTURE_H
#define UCM_TESTS_BLOCK_FIXTURE_H

#include "tests/unit/medium_fixture.h"

#include <stdint.h>

#include <ucm/block.h>

#include "fs/index/index.h" /* struct ucm_key, and nothing that is called */

struct fx_file {
	struct ucm_block block;
	struct ucm_key key;
	size_t len;
	uint8_t bytes[32768];
};

enum fx_kind {
	FX_PAGED,     /* with checksums */
	FX_PACKED,    /* with checksums */
	FX_PAGED_RAW, /* without */
	FX_PACKED_RAW,
	FX_BARE,
};

/* 2 layers of 4 tokens, float16, 2 heads of 8: K 128 + V 128 bytes. */
extern const struct ucm_geometry fx_geometry;

/* Block number n of space 0: a file of 8192 bytes (paged), or 576. */
void fx_block(struct fx_file *file, unsigned n, enum fx_kind kind);
void fx_block_of(struct fx_file *file, unsigned n, enum fx_kind kind,
		 const struct ucm_geometry *geometry);
/* The same, as block and key in *file say (form, flags, parent, ...). */
void fx_encode(struct fx_file *file, bool crc);

/* "3f/3f9a....bin" */
const char *fx_name(const struct fx_file *file);
/* Puts the file into a backing directory, behind the store's back. */
void fx_plant(const char *dir, const char *folder, const struct fx_file *file);

/* Every file below DIR/blocks and DIR/spaces is a whole block. */
void fx_all_whole(const char *dir);

#endif
