/* SPDX-License-Identifier: Apache-2.0 */
/* parse.h - numbers and words in text, whole or not at all. */
#ifndef UCM_PARSE_H
#define UCM_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each returns 0 and writes *out, or -EINVAL (not such a number, or something
 * after it) or -ERANGE (too large) and leaves it alone. */

int ucm_parse_u64(const char *text, uint64_t *out);

/* min..max inclusive, else -ERANGE. */
int ucm_parse_range(const char *text, uint64_t min, uint64_t max,
		    uint64_t *out);

/* Bytes: 4096, 64K, 1.5 is refused, 500G, 2T; powers of 1024. */
int ucm_parse_bytes(const char *text, uint64_t *out);

/* Bytes as above, or "80%": then *percent is set and *out is the number. */
int ucm_parse_limit(const char *text, uint64_t *out, bool *percent);

/* yes/no, true/false, on/off, 1/0. */
int ucm_parse_bool(const char *text, bool *out);

/* The number of a word among others; also of an enum. */
int ucm_parse_word(const char *text, const char *const *words, size_t num,
		   unsigned *out);

#endif
