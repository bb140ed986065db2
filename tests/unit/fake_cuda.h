/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.h - a driver for tests, in a library of its own (fake_cuda.c).
 *
 * Memory of the device is memory of the host; its addresses are marked, so that
 * one taken for the other is found. What is queued in a stream runs when it is
 * asked about, not before; kernels are scatter.h and fake_twins.h for every
 * thread. A time that is counted, not measured, makes what is timed repeatable.
 * That another thread captures a graph is pretended. Only what is atomic may be
 * changed while a loader's thread runs.
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
	_Atomic bool hold;     /* nothing that is queued ends, */
	unsigned release;      /* but what so many next events tell of */
	int no_binary, no_ptx; /* images are refused: the results */
	int sm;                /* the device's: 90 */
	/* Another thread captures a graph in global mode: calls that could
	 * disturb it are refused with 900, and spoil it, unless the caller's
	 * mode is relaxed. */
	bool capturing;
	void *captured; /* this stream is in a capture: what is queued in it is
			 * part of a graph, and does not run */
	_Atomic int refusal; /* events and streams cannot be asked: the result */
	/* Told to it. */
	unsigned from_ptx; /* modules that were made of PTX */
	unsigned live;     /* things that were made and not undone */
	int pushed;        /* contexts */
	unsigned launches, ctas, batches, copies, queued;
	unsigned foreign;  /* of these, in FAKE_STREAM */
	unsigned legacy;   /* of these, in the legacy default stream */
	unsigned waits;    /* of streams for events */
	unsigned spoiled;  /* captures: see capturing, captured */
	_Atomic unsigned refused; /* by refusal */
	unsigned mistakes; /* bad addresses and the like; text in the output */
};

#endif
