/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name.h - a block's id and its name: "3f9a...e1.bin" in bucket "3f".
 *
 * Names are parsed, never concatenated into paths before they are: only 32
 * lowercase hex digits and ".bin" are a block's name, and only in the bucket
 * of their first two digits.
 */
#ifndef UCM_NAME_H
#define UCM_NAME_H

#include <ucm/block.h>

#define UCM_BLOCK_NAME_LEN (UCM_ID_HEX + 4)          /* "….bin" */
#define UCM_BLOCK_PATH_LEN (3 + UCM_BLOCK_NAME_LEN)  /* "3f/….bin" */
#define UCM_BUCKETS 256

/* "3f9a…e1.bin" to an id; -EINVAL for any other name. */
int ucm_name_parse(const char *name, struct ucm_id *out);

/* "3f" to 0x3f; -EINVAL for anything but two lowercase hex digits. */
int ucm_bucket_parse(const char *name);

static inline unsigned ucm_bucket(const struct ucm_id *id)
{
	return id->bytes[0];
}

void ucm_name_format(const struct ucm_id *id,
		     char name[UCM_BLOCK_NAME_LEN + 1]);
void ucm_bucket_format(unsigned bucket, char name[3]);

/* "3f/3f9a…e1.bin" */
void ucm_path_format(const struct ucm_id *id,
		     char path[UCM_BLOCK_PATH_LEN + 1]);

/* An id for a line of the log: ucm_hex(&id).text, good until the end of the
 * full expression. */
struct ucm_hex {
	char text[UCM_ID_HEX + 1];
};

static inline struct ucm_hex ucm_hex(const struct ucm_id *id)
{
	struct ucm_hex hex;

	ucm_id_format(id, hex.text);
	return hex;
}

#endif
