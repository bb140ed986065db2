/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.h - a driver for tests, in a library of its own (fake_cuda.c).
 *
 * Memory of the device is memory of the host; its addresses are marked, so that
 * one taken for the other is found. What is queued in a stream runs when it is
 * asked about, not before; kernels are scatter.h and fake_twins.h for every
 * thread. A time that is counted, not measured, makes what is timed repeatable.
 * One thread.
 */
#ifndef UCM_TESTS_FAKE_CUDA_H
#define UCM_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_MARK (UINT64_C(1) << 60) /* in an address of the device */
#define FAKE_STREAM 0x5eed            /* a handle that a caller may give */

struct fake_cuda {
	/* Set by the test. */
	int version; /* of the driver: 13000 */
	int num_devices;
	const char *missing;   /* a call that the driver has not got */
	const char *fail;      /* a call that fails, */
	unsigned fail_after;   /* after so many that do not, */
	int fail_with;         /* with this result */
	bool hold;             /* nothing that is queued ends, */
	unsigned release;      /* but what so many next events tell of */
	double us_per_piece;   /* what the copy engine takes */
	/* Told to it. */
	unsigned live;     /* things that were made and not undone */
	int pushed;        /* contexts */
	unsigned launches, ctas, batches, copies, queued;
	unsigned foreign;  /* of these, in FAKE_STREAM */
	unsigned mistakes; /* bad addresses and the like; text in the output */
};

#endif
