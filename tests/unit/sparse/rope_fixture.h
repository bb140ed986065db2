/* SPDX-License-Identifier: Apache-2.0 */
/* rope_fixture.h - models, and their frequencies by the formulas. */
#ifndef UCM_TESTS_ROPE_FIXTURE_H
#define UCM_TESTS_ROPE_FIXTURE_H

#include "tests/unit/unit.h"

/* ---- angles ---- */

/* From the formulas, with nothing of ours. */
static inline double naive_frequency(const struct ucm_rope *rope, uint32_t i)
{
	uint32_t dim = rope->rotary_dim ? rope->rotary_dim : rope->head_dim;
	double f = 1 / pow(rope->base, 2.0 * i / dim), s = rope->factor;
	double length = rope->original_length, pi = acos(-1), share;

	if (rope->scaling == UCM_ROPE_LINEAR)
		return f / s;
	if (rope->scaling == UCM_ROPE_YARN) {
		double fast = rope->beta_fast > 0 ? rope->beta_fast : 32;
		double slow = rope->beta_slow > 0 ? rope->beta_slow : 1;
		double low = floor(dim * log(length / (fast * 2 * pi)) /
				   (2 * log(rope->base)));
		double high = ceil(dim * log(length / (slow * 2 * pi)) /
				   (2 * log(rope->base)));

		low = fmax(low, 0);
		high = fmin(high, dim - 1);
		if (low == high)
			high += .001;
		share = fmin(fmax((i - low) / (high - low), 0), 1);
		return (1 - share) * f + share * f / s;
	}
	if (rope->scaling == UCM_ROPE_LLAMA3) {
		double low = rope->low_freq_factor > 0 ? rope->low_freq_factor
						       : 1;
		double high = rope->high_freq_factor > 0
				      ? rope->high_freq_factor : 4;
		double wave = 2 * pi / f;

		if (wave < length / high)
			return f;
		if (wave > length / low)
			return f / s;
		share = (length / wave - low) / (high - low);
		return (1 - share) * f / s + share * f;
	}
	return f;
}

static const struct ucm_rope models[] = {
	{ 0, UCM_ROPE_NONE, 128, 0, 10000, 0, 0, 0, 0, 0, 0, 0 },
	{ 1, UCM_ROPE_NONE, 64, 32, 1e6, 0, 0, 0, 0, 0, 0, 0 },
	{ 0, UCM_ROPE_LINEAR, 128, 0, 10000, 4, 0, 0, 0, 0, 0, 0 },
	/* Qwen 2.5's, DeepSeek's */
	{ 0, UCM_ROPE_YARN, 128, 0, 1e6, 4, 32768, 0, 0, 0, 0, 0 },
	{ 1, UCM_ROPE_YARN, 64, 0, 10000, 40, 4096, 32, 1, 0, 0, 1 },
	{ 0, UCM_ROPE_YARN, 128, 96, 10000, 1, 2048, 16, 2, 0, 0, 1.5 },
	{ 0, UCM_ROPE_YARN, 2, 0, 10000, 2, 6, 0, 0, 0, 0, 0 },
	/* Llama 3.1's, 3.2's */
	{ 0, UCM_ROPE_LLAMA3, 128, 0, 500000, 8, 8192, 0, 0, 1, 4, 0 },
	{ 0, UCM_ROPE_LLAMA3, 64, 0, 500000, 32, 8192, 0, 0, 0, 0, 0 },
};

#endif
