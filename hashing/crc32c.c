/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c.c - the checksum of all files of this project. */
#include <config.h>

#include <ucm/block.h>

#include <isa-l/crc.h>

/* isa-l has the CRC without its initial and final complement. */
uint32_t ucm_crc32c(uint32_t crc, const void *bytes, size_t len)
{
	const unsigned char *at = bytes;

	crc = ~crc;
	while (len > 0) {
		/* crc32_iscsi counts in int */
		int part = len > (1u << 30) ? 1 << 30 : (int)len;

		crc = crc32_iscsi((unsigned char *)at, part, crc);
		at += part;
		len -= (size_t)part;
	}
	return ~crc;
}
