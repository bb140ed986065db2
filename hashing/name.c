/* SPDX-License-Identifier: Apache-2.0 */
/* name.c - ids as file names; see name.h. */
#include <config.h>

#include "hashing/name.h"

#include <errno.h>
#include <string.h>

#define SUFFIX ".bin"

int ucm_name_parse(const char *name, struct ucm_id *out)
{
	if (strlen(name) != UCM_BLOCK_NAME_LEN ||
	    strcmp(name + UCM_ID_HEX, SUFFIX))
		return -EINVAL;
	return ucm_id_parse(name, out);
}

int ucm_bucket_parse(const char *name)
{
	static const char digits[] = "0123456789abcdef";
	const char *high, *low;

	if (strlen(name) != 2)
		return -EINVAL;
	high = strchr(digits, name[0]);
	low = strchr(digits, name[1]);
	if (!high || !low)
		return -EINVAL;
	return (int)((high - digits) << 4 | (low - digits));
}

void ucm_name_format(const struct ucm_id *id,
		     char name[UCM_BLOCK_NAME_LEN + 1])
{
	ucm_id_format(id, name);
	memcpy(name + UCM_ID_HEX, SUFFIX, sizeof(SUFFIX));
}

void ucm_bucket_format(unsigned bucket, char name[3])
{
	static const char digits[] = "0123456789abcdef";

	name[0] = digits[bucket >> 4 & 15];
	name[1] = digits[bucket & 15];
	name[2] = '\0';
}

void ucm_path_format(const struct ucm_id *id,
		     char path[UCM_BLOCK_PATH_LEN + 1])
{
	ucm_bucket_format(ucm_bucket(id), path);
	path[2] = '/';
	ucm_name_format(id, path + 3);
}
