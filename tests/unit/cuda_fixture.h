/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_fixture.h - copies between staging and pages through gpu/copy/cuda.c,
 * compared with load.h word by word: on the driver made for tests (tests/unit)
 * and on a device (tests/gpu), with the same code.
 */
#ifndef UCM_TESTS_CUDA_FIXTURE_H
#define UCM_TESTS_CUDA_FIXTURE_H

#include "gpu/copy/copy.h"
#include "gpu/copy/cuda_api.h"

#include "tests/unit/layout_fixture.h"

#define PAGES_BYTES RANDOM_BYTES
#define STAGING_BYTES (768 << 10)
#define MAX_GROUPS 64

struct cuda_fixture {
	const struct ucm_cuda *cuda;
	CUdevice device;
	CUcontext context;
	CUdeviceptr pages; /* on the device */
	uint8_t *staging;  /* registered */
	struct ucm_copy *copy;
	/* The pages' bytes, as they ought to be and as they are. */
	uint8_t *want, *got, *want_staging;
	/* add_group's */
	struct ucm_layout layouts[MAX_GROUPS];
	struct ucm_region regions[MAX_GROUPS][MAX_REGIONS];
	uint32_t layer_first[MAX_GROUPS][MAX_REGIONS + 1];
	unsigned num_groups;
};

/* The driver must be there. */
void cuda_fixture_open(struct cuda_fixture *fixture,
		       const struct ucm_copy_options *options);
void cuda_fixture_close(struct cuda_fixture *fixture);

/* Call poll until so many jobs are done, or fail; returns the last error. */
int cuda_fixture_wait(struct cuda_fixture *fixture, unsigned num);

/* Bytes of the pages to the device, and back from it. */
void cuda_fixture_upload(struct cuda_fixture *fixture, const uint8_t *bytes);
void cuda_fixture_download(struct cuda_fixture *fixture, uint8_t *bytes);

/* Another group; its pages are in fixture->pages. */
const struct ucm_layout *cuda_fixture_group(struct cuda_fixture *fixture);

/* Random bytes everywhere; one or two jobs of the newest group, some by
 * addresses; and then each byte is what it ought to be. */
void cuda_fixture_round(struct cuda_fixture *fixture, bool gather);

#endif
