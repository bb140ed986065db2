/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter_args.h - what the kernels are given: structs of host and device.
 *
 * Read by nvcc as well; scatter.h says what is done with it.
 */
#ifndef UCM_SCATTER_ARGS_H
#define UCM_SCATTER_ARGS_H

#include <stdint.h>

#define UCM_CTA_THREADS 512
#define UCM_UNIT_BYTES 16
#define UCM_ITEM_UNITS 512 /* 8 KiB where runs are long */

/* n / by without a division: magic is 2^64 / by, rounded up. Exact for all n
 * and by below 2^32. */
struct ucm_divisor {
	uint64_t magic;
	uint32_t by;
};

/* A region of load.h; a table is as long as the layout's, and one after it of
 * which only first_item counts. */
struct ucm_scatter_region {
	uint64_t base;
	int64_t page_stride;
	uint64_t run_bytes;
	int64_t s0, s1;
	uint64_t offset;
	uint64_t num_units;  /* of all its runs */
	uint64_t first_item; /* counted from the table's start */
	struct ucm_divisor units; /* of a run */
	struct ucm_divisor n0;    /* below 2^31 */
};

/* All addresses are the device's. */
struct ucm_scatter_job {
	uint64_t staging;    /* of the payload's byte 0, if it were there */
	uint64_t table;      /* struct ucm_scatter_region[] */
	uint64_t addresses;  /* uint64_t[], from first_region on; or 0 */
	uint64_t first_item; /* counted from the launch's start */
	uint32_t page;
	uint32_t first_region, end_region;
	uint32_t reserved;
};

/* The one argument of the kernels. */
struct ucm_scatter_args {
	uint64_t jobs; /* struct ucm_scatter_job[] on the device */
	uint64_t num_items;
	uint32_t num_jobs;
	uint32_t reserved;
};

#endif
