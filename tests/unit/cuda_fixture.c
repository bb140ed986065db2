/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_fixture.c - copies through gpu/copy/cuda.c, compared with load.h. */
#include <config.h>

#include "tests/unit/cuda_fixture.h"

#include <string.h>
#include <sys/mman.h>

#include "common/clock.h"

#define LIMIT_MS 20000

static void ok(CUresult result)
{
	ck_assert_int_eq(result, CUDA_SUCCESS);
}

static void enter(struct cuda_fixture *fixture)
{
	ok(fixture->cuda->CtxPushCurrent(fixture->context));
}

static void leave(struct cuda_fixture *fixture)
{
	ok(fixture->cuda->CtxPopCurrent(&fixture->context));
}

static void move(struct cuda_fixture *fixture, CUdeviceptr to, CUdeviceptr from)
{
	enter(fixture);
	ok(fixture->cuda->MemcpyAsync(to, from, PAGES_BYTES,
				      CU_STREAM_LEGACY));
	ok(fixture->cuda->StreamSynchronize(CU_STREAM_LEGACY));
	leave(fixture);
}

void cuda_fixture_upload(struct cuda_fixture *fixture, const uint8_t *bytes)
{
	move(fixture, fixture->pages, (uintptr_t)bytes);
}

void cuda_fixture_download(struct cuda_fixture *fixture, uint8_t *bytes)
{
	move(fixture, (uintptr_t)bytes, fixture->pages);
}

void cuda_fixture_open(struct cuda_fixture *fixture,
		       const struct ucm_copy_options *options)
{
	struct ucm_error error = { "" };
	int err;

	memset(fixture, 0, sizeof(*fixture));
	err = ucm_cuda_get(&fixture->cuda, &error);
	ck_assert_msg(!err, "%s", error.text);
	ok(fixture->cuda->DeviceGet(&fixture->device, options->device));
	ok(fixture->cuda->DevicePrimaryCtxRetain(&fixture->context,
						 fixture->device));
	enter(fixture);
	ok(fixture->cuda->MemAlloc(&fixture->pages, PAGES_BYTES));
	leave(fixture);
	fixture->staging = mmap(NULL, STAGING_BYTES, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(fixture->staging, MAP_FAILED);
	fixture->want = malloc(PAGES_BYTES);
	fixture->got = malloc(PAGES_BYTES);
	fixture->want_staging = malloc(STAGING_BYTES);
	err = ucm_copy_cuda.open(options, &fixture->copy, &error);
	ck_assert_msg(!err, "%s", error.text);
	err = ucm_copy_cuda.register_staging(fixture->copy, fixture->staging,
					     STAGING_BYTES);
	ck_assert_int_eq(err, 0);
}

void cuda_fixture_close(struct cuda_fixture *fixture)
{
	ucm_copy_cuda.close(fixture->copy);
	enter(fixture);
	ok(fixture->cuda->MemFree(fixture->pages));
	leave(fixture);
	ok(fixture->cuda->DevicePrimaryCtxRelease(fixture->device));
	munmap(fixture->staging, STAGING_BYTES);
	free(fixture->want);
	free(fixture->got);
	free(fixture->want_staging);
}

int cuda_fixture_wait(struct cuda_fixture *fixture, unsigned num)
{
	int64_t limit = ucm_monotonic_ms() + LIMIT_MS;
	int err = 0;

	while (num) {
		struct ucm_copy_job *job = ucm_copy_cuda.poll(fixture->copy);

		for (; job; job = job->next) {
			must(num);
			num--;
			err = job->err ? job->err : err;
		}
		must(ucm_monotonic_ms() < limit);
	}
	ck_assert_ptr_null(ucm_copy_cuda.poll(fixture->copy));
	return err;
}

const struct ucm_layout *cuda_fixture_group(struct cuda_fixture *fixture)
{
	unsigned number = fixture->num_groups++;
	struct ucm_layout *layout = &fixture->layouts[number];

	must(number < MAX_GROUPS);
	random_layout(layout, fixture->regions[number],
		      fixture->layer_first[number], fixture->pages);
	ck_assert_int_eq(ucm_copy_cuda.add_group(fixture->copy, number, layout),
			 0);
	return layout;
}

struct naive {
	struct cuda_fixture *fixture;
	bool gather;
};

static void naive_run(uint64_t page, const uint8_t *staging, uint64_t len,
		      void *arg)
{
	const struct naive *naive = arg;
	struct cuda_fixture *fixture = naive->fixture;
	uint8_t *in_page = fixture->want + (page - fixture->pages);

	if (naive->gather)
		memcpy(fixture->want_staging + (staging - fixture->staging),
		       in_page, len);
	else
		memcpy(in_page, staging, len);
}

static void fill_all(struct cuda_fixture *fixture)
{
	for (size_t i = 0; i < PAGES_BYTES; i++)
		fixture->want[i] = (uint8_t)below(256);
	for (size_t i = 0; i < STAGING_BYTES; i++)
		fixture->staging[i] = (uint8_t)below(256);
	memcpy(fixture->want_staging, fixture->staging, STAGING_BYTES);
	cuda_fixture_upload(fixture, fixture->want);
}

/* The same place as the page's, told by addresses. */
static void use_addresses(const struct ucm_layout *layout,
			  struct ucm_copy_job *job, uint64_t *addresses)
{
	uint32_t first = layout->layer_first[job->first_layer];

	for (uint32_t i = first; i < layout->layer_first[job->end_layer]; i++)
		addresses[i - first] =
			layout->regions[i].base +
			(uint64_t)layout->regions[i].page_stride * job->page;
	job->addresses = addresses;
	job->page = 0x7fffffff;
}

void cuda_fixture_round(struct cuda_fixture *fixture, bool gather)
{
	unsigned group = fixture->num_groups - 1, num = 1 + below(2);
	const struct ucm_layout *layout = &fixture->layouts[group];
	struct naive naive = { .fixture = fixture, .gather = gather };
	struct ucm_copy_job jobs[2] = { 0 };
	uint64_t addresses[2][MAX_REGIONS];
	uint8_t *staging = fixture->staging + below(64);

	fill_all(fixture);
	for (unsigned i = 0; i < num; i++) {
		struct ucm_copy_job *job = &jobs[i];
		uint32_t layers = layout->geometry.num_layers;

		job->group = group;
		job->page = i;
		job->first_layer = below(layers);
		job->end_layer =
			job->first_layer + 1 + below(layers - job->first_layer);
		job->staging = staging;
		job->next = i + 1 < num ? job + 1 : NULL;
		staging += ucm_layout_layer_bytes(layout) *
				   (job->end_layer - job->first_layer) +
			   below(20);
		must(staging <= fixture->staging + STAGING_BYTES);
		if (!below(3))
			use_addresses(layout, job, addresses[i]);
		each_run(layout, job, naive_run, &naive);
	}
	(gather ? ucm_copy_cuda.gather : ucm_copy_cuda.scatter)(fixture->copy,
								jobs);
	ck_assert_int_eq(cuda_fixture_wait(fixture, num), 0);
	cuda_fixture_download(fixture, fixture->got);
	must(!memcmp(fixture->got, fixture->want, PAGES_BYTES));
	must(!memcmp(fixture->staging, fixture->want_staging, STAGING_BYTES));
}
