/* SPDX-License-Identifier: Apache-2.0 */
/*
 * number.h - float16 and bfloat16: to float, which is exact, and back, rounded
 * to the nearest (to even), upwards or downwards;
 * and whole numbers of steps of a scale, for int8.
 */
#ifndef UCM_SPARSE_NUMBER_H
#define UCM_SPARSE_NUMBER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "sparse/plain.h"

enum ucm_rounding {
	UCM_ROUND_NEAREST,
	UCM_ROUND_UP,
	UCM_ROUND_DOWN,
};

UCM_PLAIN uint32_t ucm_float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

UCM_PLAIN float ucm_float_of(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Infinities and NaN have all bits of the exponent set. */
UCM_PLAIN bool ucm_float_finite(float value)
{
	return (ucm_float_bits(value) & 0x7f800000u) != 0x7f800000u;
}

/* The length of a vector, added up in the order of its elements. */
UCM_PLAIN double ucm_length_of(const float *vector, uint32_t num)
{
	double sum = 0;

	for (uint32_t i = 0; i < num; i++)
		sum += (double)vector[i] * (double)vector[i];
	return sqrt(sum);
}

UCM_PLAIN float ucm_float_of_bfloat16(uint16_t bits)
{
	return ucm_float_of((uint32_t)bits << 16);
}

UCM_PLAIN float ucm_float_of_float16(uint16_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
	uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;

	if (exponent == 0) /* subnormal: fraction * 2^-24 */
		return ucm_float_of(sign | ucm_float_bits((float)fraction *
							  0x1p-24f));
	exponent = exponent == 0x1f ? 0xff : exponent + 112;
	return ucm_float_of(sign | exponent << 23 | fraction << 13);
}

/* What is added to bits of a magnitude before the low ones are cut off. */
UCM_PLAIN uint32_t ucm_rounding_bias(uint32_t magnitude, unsigned low_bits,
				     bool negative, enum ucm_rounding way)
{
	uint32_t unit = 1u << low_bits;

	if (way == UCM_ROUND_NEAREST)
		return unit / 2 - 1 + (magnitude >> low_bits & 1);
	return (way == UCM_ROUND_UP) != negative ? unit - 1 : 0;
}

/* value is finite. The result is not if it is too large for the type. */
UCM_PLAIN uint16_t ucm_bfloat16_of(float value, enum ucm_rounding way)
{
	uint32_t bits = ucm_float_bits(value), size = bits & 0x7fffffffu;
	bool negative = bits >> 31;

	size += ucm_rounding_bias(size, 16, negative, way);
	return (uint16_t)(size >> 16 | (negative ? 0x8000u : 0));
}

UCM_PLAIN uint16_t ucm_float16_of(float value, enum ucm_rounding way)
{
	uint32_t bits = ucm_float_bits(value), size = bits & 0x7fffffffu;
	bool negative = bits >> 31;
	uint32_t sign = negative ? 0x8000u : 0, steps;
	float scaled, rest;

	if (size >= 0x38800000u) { /* 2^-14, the smallest normal number */
		size += ucm_rounding_bias(size, 13, negative, way);
		size = (size >> 13) - (112u << 10);
		return (uint16_t)(sign | (size < 0x7c00u ? size : 0x7c00u));
	}
	scaled = ucm_float_of(size) * 0x1p24f; /* steps of subnormals; exact */
	steps = (uint32_t)scaled;
	rest = scaled - (float)steps;
	if (way == UCM_ROUND_NEAREST)
		steps += rest > 0.5f || (rest == 0.5f && steps & 1);
	else if ((way == UCM_ROUND_UP) != negative)
		steps += rest > 0;
	return (uint16_t)(sign | steps);
}

/* Number i and number i + num / 2, and so on: num is a power of two. They are used
 * up. */
UCM_PLAIN float ucm_tree_sum(float *floats, uint32_t num)
{
	while (num /= 2) {
		for (uint32_t i = 0; i < num; i++)
			floats[i] += floats[i + num];
	}
	return floats[0];
}

/* The largest magnitude. */
UCM_PLAIN float ucm_most_of(const float *floats, uint32_t num)
{
	float most = 0;

	for (uint32_t i = 0; i < num; i++)
		most = fabsf(floats[i]) > most ? fabsf(floats[i]) : most;
	return most;
}

/* A scale of which so many steps are at least as much as that magnitude; steps has
 * at most 24 bits. */
UCM_PLAIN float ucm_scale_for(float most, int steps)
{
	float scale = most / (float)steps;

	if (steps * (double)scale < (double)most)
		scale = nextafterf(scale, INFINITY);
	return scale;
}

UCM_PLAIN float ucm_scale_of(const float *floats, uint32_t num, int steps)
{
	return ucm_scale_for(ucm_most_of(floats, num), steps);
}

/* How many steps of a scale a value is. */
UCM_PLAIN long ucm_steps_of(float value, float scale, enum ucm_rounding way)
{
	/* Rounded, but never to a whole number that it is not: both have 24
	 * bits, a whole number at most 14, and a double 53. */
	double times = scale > 0 ? (double)value / (double)scale : 0;

	if (way == UCM_ROUND_NEAREST)
		return lrint(times);
	return (long)(way == UCM_ROUND_UP ? ceil(times) : floor(times));
}

#endif
