/* SPDX-License-Identifier: Apache-2.0 */
/* id.c - a block's id as text. */
#include <config.h>

#include <errno.h>

#include <ucm/block.h>

/* Lowercase only: one block has one spelling. */
static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

int ucm_id_parse(const char *hex, struct ucm_id *out)
{
	struct ucm_id id;

	for (size_t i = 0; i < UCM_ID_BYTES; i++) {
		int high = hex_digit(hex[2 * i]);
		int low = high < 0 ? -1 : hex_digit(hex[2 * i + 1]);

		if (low < 0)
			return -EINVAL;
		id.bytes[i] = (uint8_t)(high << 4 | low);
	}
	*out = id;
	return 0;
}

void ucm_id_format(const struct ucm_id *id, char hex[UCM_ID_HEX + 1])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < UCM_ID_BYTES; i++) {
		hex[2 * i] = digits[id->bytes[i] >> 4];
		hex[2 * i + 1] = digits[id->bytes[i] & 15];
	}
	hex[UCM_ID_HEX] = '\0';
}
