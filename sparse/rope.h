/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope.h - rotations: by what angle, and of what.
 *
 * The arithmetic is plain functions of numbers, without libm and without the
 * instructions of a CPU, so that a GPU can do the same and have the same bits:
 * each operation is rounded once (no fused ones).
 *
 * Angles are in turns, not in radians: whole turns are then taken away exactly.
 * delta times turns is off by at most 2^-53 of itself twice: after 2^24 positions
 * of the fastest pair (1 / 2 pi turns each) by 6e-10 turns, where a float of the
 * sine is off by 3e-8.
 */
#ifndef UCM_SPARSE_ROPE_H
#define UCM_SPARSE_ROPE_H

#include <stdint.h>

#include <ucm/position.h>

#include "sparse/number.h"
#include "sparse/plain.h"

/* sin x and cos x, |x| <= pi / 4: Taylor's series, in double within 2^-52. */
UCM_PLAIN double ucm_small_sin(double x)
{
	double y = x * x, sum = -1.0 / 1307674368000.0; /* 15! */

	sum = sum * y + 1.0 / 6227020800.0;
	sum = sum * y - 1.0 / 39916800.0;
	sum = sum * y + 1.0 / 362880.0;
	sum = sum * y - 1.0 / 5040.0;
	sum = sum * y + 1.0 / 120.0;
	sum = sum * y - 1.0 / 6.0;
	return x + x * (y * sum);
}

UCM_PLAIN double ucm_small_cos(double x)
{
	double y = x * x, sum = 1.0 / 20922789888000.0; /* 16! */

	sum = sum * y - 1.0 / 87178291200.0;
	sum = sum * y + 1.0 / 479001600.0;
	sum = sum * y - 1.0 / 3628800.0;
	sum = sum * y + 1.0 / 40320.0;
	sum = sum * y - 1.0 / 720.0;
	sum = sum * y + 1.0 / 24.0;
	sum = sum * y - 0.5;
	return 1.0 + y * sum;
}

/* Of an angle in turns, up to 2^31 of them. */
UCM_PLAIN void ucm_turn(double turns, double *cosine, double *sine)
{
	double x, c, s;
	int quarter;

	turns -= (double)(int64_t)(turns + (turns < 0 ? -0.5 : 0.5));
	quarter = (int)(turns * 4 + (turns < 0 ? -0.5 : 0.5)); /* -2 to 2 */
	x = (turns - quarter * 0.25) * 6.283185307179586476925;
	c = ucm_small_cos(x);
	s = ucm_small_sin(x);
	switch (quarter & 3) {
	case 0:
		*cosine = c;
		*sine = s;
		break;
	case 1:
		*cosine = -s;
		*sine = c;
		break;
	case 2:
		*cosine = -c;
		*sine = -s;
		break;
	default:
		*cosine = s;
		*sine = -c;
	}
}

/* A channel after its rotation: cosine and sine are those of the pair's table;
 * the sine of its first channel is negative there. */
UCM_PLAIN float ucm_rotated(float x, float partner, float cosine,
				  float sine)
{
	return x * cosine + partner * sine;
}

/* The nearest of the type that keys were read in. NaN stays NaN: a bfloat16's has
 * none of the bits that are rounded away, nor has what is computed with it. */
UCM_PLAIN uint16_t ucm_rotated_bfloat16(float value)
{
	return ucm_bfloat16_of(value, UCM_ROUND_NEAREST);
}

UCM_PLAIN uint16_t ucm_rotated_float16(float value)
{
	return value == value ? ucm_float16_of(value, UCM_ROUND_NEAREST)
			      : 0x7e00;
}

/* ---- a model's rotations ---- */

/* Its rotation in numbers. */
struct ucm_rope_shape {
	uint32_t rotary;  /* channels */
	double magnitude; /* YaRN's factor, or 1 */
	/* for each pair, and each position */
	double turns[UCM_REPR_HEAD_DIM_MAX / 2];
};

int ucm_rope_check(const struct ucm_rope *rope, struct ucm_rope_shape *out,
		   struct ucm_error *error);

/* A rotation: for each channel its cosine and its sine, negative for the first
 * channel of a pair. */
struct ucm_rope_table {
	float cosines[UCM_REPR_HEAD_DIM_MAX] __attribute__((aligned(64)));
	float sines[UCM_REPR_HEAD_DIM_MAX] __attribute__((aligned(64)));
};

/* By delta positions. */
void ucm_rope_table_fill(const struct ucm_rope *rope,
			 const struct ucm_rope_shape *shape, int64_t delta,
			 double magnitude, struct ucm_rope_table *out);

#endif
