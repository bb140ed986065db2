/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_matrix.c - random orthogonal matrices, the same ones everywhere.
 *
 * A matrix G of independent normal numbers is a product QR, R being an upper
 * triangle. With the diagonal of R made positive, Q is distributed evenly over
 * all orthogonal matrices (Haar's measure: Mezzadri, Notices of the AMS 54,
 * 2007). That Q is unique, and so it is what Gram and Schmidt make of the
 * columns of G, one after the other: less what they have of the columns before,
 * and divided by their length. It is done twice for each, and then the rest is
 * orthogonal to rounding (Giraud, Langou, Rozloznik, 2005).
 *
 * Codes are stored, and shared between machines, so that no bit of this may
 * depend on a CPU or a library:
 * - Numbers come from Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011),
 *   which is a function of a counter: the column, the pair of its elements, and
 *   how many tries for that pair have failed.
 * - Pairs are made normal by Marsaglia's polar method, which takes a root, that
 *   IEEE 754 fixes, and a logarithm. The C library's has other last bits on
 *   other CPUs, so there is one here, of sums and products.
 * - The order of sums is the order of loops.
 */
#include <config.h>

#include "sparse/code_matrix.h"

#include <math.h>
#include <string.h>

#define DIM_MAX 1024u

/* ---- random numbers ---- */

void ucm_philox(const uint32_t counter[4], const uint32_t key[2],
		uint32_t out[4])
{
	uint32_t k[2] = { key[0], key[1] };

	memcpy(out, counter, 4 * sizeof(*out));
	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)out[0] * 0xd2511f53u;
		uint64_t b = (uint64_t)out[2] * 0xcd9e8d57u;

		out[0] = (uint32_t)(b >> 32) ^ out[1] ^ k[0];
		out[1] = (uint32_t)b;
		out[2] = (uint32_t)(a >> 32) ^ out[3] ^ k[1];
		out[3] = (uint32_t)a;
		k[0] += 0x9e3779b9u;
		k[1] += 0xbb67ae85u;
	}
}

/* -1 to 1, of 53 bits */
static double uniform_of(uint32_t high, uint32_t low)
{
	uint64_t bits = ((uint64_t)high << 32 | low) >> 11;

	return (double)bits * 0x1p-52 - 1;
}

/* ln value, of a positive one: ln (m 2^e) = e ln 2 + 2 atanh ((m-1)/(m+1)) */
static double log_of(double value)
{
	double mantissa, z, power, sum = 0;
	int exponent;

	mantissa = frexp(value, &exponent);
	if (mantissa < 0.70710678118654752) {
		mantissa *= 2;
		exponent--;
	}
	z = (mantissa - 1) / (mantissa + 1); /* at most 0.172 */
	power = z;
	for (int i = 1; i <= 23; i += 2) {
		sum += power / i;
		power *= z * z;
	}
	return exponent * 0.69314718055994531 + 2 * sum;
}

/* Two numbers of N(0, 2^2). */
static void normal_pair(uint64_t seed, uint32_t part, uint32_t column,
			uint32_t pair, double out[2])
{
	const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
	uint32_t counter[4] = { pair, 0, column, part };
	uint32_t words[4];
	double size;

	do {
		ucm_philox(counter, key, words);
		out[0] = uniform_of(words[0], words[1]);
		out[1] = uniform_of(words[2], words[3]);
		size = out[0] * out[0] + out[1] * out[1];
		counter[1]++;
	} while (size >= 1 || size <= 0);
	size = 2 * sqrt(-2 * log_of(size) / size);
	out[0] *= size;
	out[1] *= size;
}

/* ---- columns ---- */

/* Take from a column what it has of num others: those of matrix, from its first
 * on. */
static void column_clear(double *column, uint32_t dim, const float *matrix,
			 size_t stride, uint32_t num)
{
	double products[DIM_MAX] = { 0 };

	for (uint32_t c = 0; c < dim; c++) {
		for (uint32_t j = 0; j < num; j++)
			products[j] += (double)matrix[c * stride + j] *
				       column[c];
	}
	for (uint32_t c = 0; c < dim; c++) {
		double sum = 0;

		for (uint32_t j = 0; j < num; j++)
			sum += (double)matrix[c * stride + j] * products[j];
		column[c] -= sum;
	}
}

static void column_store(const double *column, uint32_t dim, float *to,
			 size_t stride)
{
	double sum = 0, length;

	for (uint32_t c = 0; c < dim; c++)
		sum += column[c] * column[c];
	length = sqrt(sum);
	for (uint32_t c = 0; c < dim; c++)
		to[c * stride] = (float)(column[c] / length);
}

void ucm_code_matrix_make(uint64_t seed, uint32_t part, uint32_t dim,
			  uint32_t num, float *out, size_t stride)
{
	double column[DIM_MAX + 1]; /* pairs: one more than an odd dim */

	for (uint32_t j = 0; j < num; j++) {
		uint32_t before = j % dim; /* of the same block */

		for (uint32_t c = 0; c < dim; c += 2)
			normal_pair(seed, part, j, c / 2, column + c);
		for (int pass = 0; before && pass < 2; pass++)
			column_clear(column, dim, out + j - before, stride,
				     before);
		column_store(column, dim, out + j, stride);
	}
}
