/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest.h - space.json: what the blocks of a space are.
 *
 *   { "model": "...", "hash": "sha256", "geometry": {
 *       "num_layers": 32, "block_size": 16, "dtype": "float16",
 *       "k_bytes": 32768, "v_bytes": 32768,
 *       "num_kv_heads": 8, "head_dim": 128, "order": "NHD" } }
 *
 * geometry is required, and in it all but v_bytes, num_kv_heads, head_dim (0
 * where they are missing) and order (NHD).
 * Other keys may stand beside it; they are part of the identity.
 *
 * space_id is the SHA-256 of the canonical form: keys sorted by their bytes,
 * no white space, UTF-8 unescaped; what Python's json.dumps(x, sort_keys=True,
 * separators=(",", ":"), ensure_ascii=False) writes. Numbers with a fraction
 * have no one spelling and are refused.
 */
#ifndef UCM_MANIFEST_H
#define UCM_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>

#include "fs/tier/config.h"
#include "hashing/tree.h"

#define UCM_MANIFEST_MAX 65536

struct ucm_manifest {
	struct ucm_geometry geometry;
	uint8_t space_id[32];
};

/* 0, or -EINVAL; error names the key. */
int ucm_manifest_parse(const char *text, size_t len, struct ucm_manifest *out,
		       struct ucm_error *error);

#endif
