/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_core.h - hash codes: their arithmetic, in plain C that a GPU can be
 * compiled for as well. It does not know where codes come from.
 *
 * All scores come from one number, the distance of a key's code from a query's
 * planes: the sum over the planes of weight * (bits in which plane and code
 * differ). What planes and weights are:
 *
 * - One query head: its code, weight 1. The distance is Hamming's.
 * - The sum of Hamming's distances of G heads, of which c have bit j set. There
 *   are weights of which any sum from 0 to G can be made: half of G rounded up,
 *   half of the rest, and so on, 1 + log2 G of them. Plane p has bit j where
 *   weight p is needed for c. A key's bit 0 differs from weights that sum up to
 *   c, and a bit 1 from the others, G - c: as it does from the heads.
 * - A query with 4 bits: channel j is an odd number from -15 to 15, times a
 *   unit. Such a number is a sum of 8, 4, 2 and 1, each with a sign; plane p
 *   has bit j where the sign is +. The sum of the channels, each times +1 or -1
 *   as the key's bit is 1 or 0, is 15 for each bit less twice the distance.
 *
 * Counts are rows, too. Let c of n tokens have bit j set, and row i have digit
 * i of c in base 2. The tokens' distances from a plane sum up to c where the
 * plane's bit is 0, and to n - c where it is 1; those of the rows, times 2^i,
 * to c, and to 2^rows - 1 - c. They differ by as much for each 1 of the plane.
 */
#ifndef UCM_SPARSE_CODE_CORE_H
#define UCM_SPARSE_CODE_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "fs/repr/shape.h"
#include "sparse/plain.h"

#define UCM_CODE_PLANES	 8u  /* at most; so a group has at most 255 heads */
#define UCM_CODE_LEVELS	 16  /* of a query's channel: 4 bits */
#define UCM_CODE_LIMIT	 0x1p40f /* no score of such numbers is infinite */

/* Where word number word of a row is, among those of a head. */
UCM_PLAIN size_t ucm_code_at(uint32_t row, uint32_t words, uint32_t word)
{
	return ((size_t)(row / UCM_CODE_TILE) * words + word) * UCM_CODE_TILE +
	       row % UCM_CODE_TILE;
}

/* Weights whose sums are 0 to heads, the largest first, 1 the last one; returns
 * how many. */
UCM_PLAIN uint32_t ucm_code_weights(uint32_t heads,
					uint32_t weights[UCM_CODE_PLANES])
{
	uint32_t num = 0;

	for (; heads && num < UCM_CODE_PLANES; heads /= 2)
		weights[num++] = (heads + 1) / 2;
	return num;
}

/* Which weights sum up to count? Bit p stands for weight p. */
UCM_PLAIN uint32_t ucm_code_sum_of(uint32_t count, const uint32_t *weights,
				       uint32_t num)
{
	uint32_t which = 0;

	for (uint32_t p = 0; p < num; p++) {
		if (count < weights[p])
			continue;
		count -= weights[p];
		which |= 1u << p;
	}
	return which;
}

/* The level, 0 to 15, that stands for a value from -most to most: level i for
 * (2 i - 15) / 16 most, which is off by at most most / 16. */
UCM_PLAIN uint32_t ucm_code_level(float value, float most)
{
	float steps = value / most * (UCM_CODE_LEVELS / 2) +
		      UCM_CODE_LEVELS / 2;

	if (!(steps > 0))
		return 0;
	return steps < UCM_CODE_LEVELS ? (uint32_t)steps : UCM_CODE_LEVELS - 1;
}

/* Count a token's word: add it to the digits of the counts, from row 0 on. */
UCM_PLAIN void ucm_code_count(uint64_t *rows, uint32_t num, uint32_t words,
				  uint32_t word, uint64_t bits)
{
	for (uint32_t i = 0; i < num && bits; i++) {
		uint64_t *digit = rows + ucm_code_at(i, words, word);
		uint64_t carry = *digit & bits;

		*digit ^= bits;
		bits = carry;
	}
}

/* What a token's channels sum up to, each with the sign of its bit, in units;
 * bits in all, of which none is padding. */
UCM_PLAIN int32_t ucm_code_agreement(uint32_t bits, uint32_t distance)
{
	return (int32_t)((UCM_CODE_LEVELS - 1) * bits) - 2 * (int32_t)distance;
}

#endif
