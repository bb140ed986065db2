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
 *
 * "quota" is the one key that says nothing of the blocks: how many bytes they
 * may take (a number, or text such as "500G"; 0: no limit of its own). It is no
 * part of the identity. A space of which nothing else is known has a
 * space.json with that key alone.
 */
#ifndef UCM_MANIFEST_H
#define UCM_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>
#include <ucm/error.h>

#define UCM_MANIFEST_MAX 65536
#define UCM_QUOTA_MAX ((uint64_t)INT64_MAX) /* as JSON has it */

struct ucm_manifest {
	struct ucm_geometry geometry;
	uint8_t space_id[32];
	bool has_quota;
	uint64_t quota;
};

/* 0, or -EINVAL; error names the key. */
int ucm_manifest_parse(const char *text, size_t len, struct ucm_manifest *out,
		       struct ucm_error *error);

/* The quota of a text that has no other key. False: it is another text. */
bool ucm_manifest_quota_alone(const char *text, size_t len,
			      uint64_t *quota_out);

/* A text (NULL: none) with another quota, 0: without one; to be freed. -EINVAL:
 * the text is no JSON object; -EFBIG: it would be too long; -ENOMEM. */
int ucm_manifest_with_quota(const char *text, uint64_t quota, char **out);

#endif
