/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twins_fixture.h - <ucm/sparse_cuda.h> compared with the calls for the CPU on random
 * input, byte by byte: on the driver made for tests (tests/unit) and on a device
 * (tests/gpu), with the same code.
 */
#ifndef UCM_TESTS_TWINS_FIXTURE_H
#define UCM_TESTS_TWINS_FIXTURE_H

#include <ucm/sparse_cuda.h>

#include "gpu/copy/cuda_api.h"
#include "tests/unit/sparse_fixture.h"

#define TWINS_MEMORY_MAX 32

struct twins_fixture {
	const struct ucm_cuda *cuda;
	CUdevice device;
	CUcontext context;
	struct ucm_sparse_cuda *twins;
	CUstream stream;
	CUdeviceptr memory[TWINS_MEMORY_MAX]; /* to be freed */
	unsigned num;
};

/* The driver must be there. stream NULL: one of its own. */
void twins_open(struct twins_fixture *fixture, CUstream stream);
void twins_close(struct twins_fixture *fixture);

/* A copy on the device, aligned to 256; until twins_release(). */
void *twins_upload(struct twins_fixture *fixture, const void *from, size_t len);
void twins_download(struct twins_fixture *fixture, void *to, const void *from,
		    size_t len);
void twins_release(struct twins_fixture *fixture);

/* A random case each; number is in messages. */
void twins_compare_scores(struct twins_fixture *fixture, unsigned number);
void twins_compare_build(struct twins_fixture *fixture, unsigned number);
void twins_compare_codes(struct twins_fixture *fixture, unsigned number);
void twins_compare_star(struct twins_fixture *fixture, unsigned number);
void twins_compare_select(struct twins_fixture *fixture, unsigned number);
void twins_compare_shift(struct twins_fixture *fixture, unsigned number);
void twins_compare_deviation(struct twins_fixture *fixture, unsigned number);
void twins_compare_attention(struct twins_fixture *fixture, unsigned number);

#endif
