/* SPDX-License-Identifier: Apache-2.0 */
/* align.h - rounding. */
#ifndef UCM_ALIGN_H
#define UCM_ALIGN_H

#include <stdint.h>

static inline uint64_t ucm_round_up(uint64_t value, uint64_t power_of_two)
{
	return (value + power_of_two - 1) & ~(power_of_two - 1);
}

/* To a multiple of anything above 0. */
static inline uint64_t ucm_round_up_to(uint64_t value, uint64_t multiple)
{
	return (value + multiple - 1) / multiple * multiple;
}

#endif
