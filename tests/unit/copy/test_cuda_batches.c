/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_batches.c - many copies at a time of the CUDA back end, and memory
 * for their descriptors.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "gpu/copy/cuda.h"
#include "tests/unit/copy/driver_fixture.h"

/* ---- many at a time ---- */

#define MANY 400

UNIT_TEST(what_has_no_room_waits_and_each_job_comes_back_once, .rows = 2)
{
	const struct ucm_layout *layout;
	struct ucm_copy_job *jobs;
	uint64_t addresses[MAX_REGIONS];

	open_with(_i ? ENGINE : KERNELS, UCM_STREAM_OWN);
	layout = cuda_fixture_group(&fixture);
	for (size_t i = 0; i < layout->num_regions; i++)
		addresses[i] = layout->regions[i].base;
	jobs = many_jobs(layout, MANY, addresses);
	fake->hold = true;
	for (unsigned i = 0; i < MANY / 2; i++) /* batches of one */
		(i % 3 ? ucm_copy_cuda.scatter
		       : ucm_copy_cuda.gather)(fixture.copy, &jobs[i]);
	ck_assert_uint_eq(fixture.copy->num_batches, UCM_BATCHES);
	ck_assert_ptr_null(ucm_copy_cuda.poll(fixture.copy));
	for (unsigned i = MANY / 2; i + 1 < MANY; i++)
		jobs[i].next = &jobs[i + 1];
	ucm_copy_cuda.scatter(fixture.copy, &jobs[MANY / 2]);
	fake->hold = false;
	ck_assert_int_eq(cuda_fixture_wait(&fixture, MANY), 0);
	close_clean();
	free(jobs);
}

/* Pages of 16 bytes, in four regions: more descriptors than the ring holds. */
#define TINY 40000

static void add_tiny_group(void)
{
	static uint32_t first[2];
	static struct ucm_region regions[4];
	static struct ucm_layout layout = {
		.geometry = { .num_layers = 1, .k_bytes = 16 },
		.num_pages = TINY,
		.regions = regions,
		.num_regions = 4,
	};

	for (unsigned i = 0; i < 4; i++)
		regions[i] = (struct ucm_region){
			.base = fixture.pages + 4 * (3 - i),
			.page_stride = 16,
			.run_bytes = 4,
			.n0 = 1,
			.n1 = 1,
		};
	seal(&layout, first);
	must(!ucm_copy_cuda.add_group(fixture.copy, 0, &layout));
}

static struct ucm_copy_job *tiny_jobs(uint64_t addresses[][4])
{
	struct ucm_copy_job *jobs = calloc(TINY, sizeof(*jobs));

	for (uint32_t i = 0; i < TINY; i++) {
		for (uint32_t k = 0; k < 4; k++)
			addresses[i][k] = fixture.pages + 16 * i + 4 * (3 - k);
		jobs[i] = (struct ucm_copy_job){
			.end_layer = 1,
			.page = i,
			.staging = fixture.staging + 16 * i,
			.addresses = i % 3 ? addresses[i] : NULL,
		};
	}
	return jobs;
}

/* Lists of many lengths, of which some end, so that the ring is full and its
 * ends are anywhere. */
static void send_all(struct ucm_copy_job *jobs, bool gather)
{
	unsigned in_flight = 0;

	fake->hold = true;
	for (unsigned sent = 0, num; sent < TINY; sent += num) {
		num = 1 + below(2000);
		num = num < TINY - sent ? num : TINY - sent;
		for (unsigned i = 0; i < num; i++)
			jobs[sent + i].next =
				i + 1 < num ? &jobs[sent + i + 1] : NULL;
		(gather ? ucm_copy_cuda.gather
			: ucm_copy_cuda.scatter)(fixture.copy, &jobs[sent]);
		if (fixture.copy->waiting[gather].first)
			fake->release = 1 + below(3);
		in_flight += num;
		for (struct ucm_copy_job *job =
			     ucm_copy_cuda.poll(fixture.copy);
		     job; job = job->next)
			in_flight--;
	}
	fake->hold = false;
	ck_assert_int_eq(cuda_fixture_wait(&fixture, in_flight), 0);
}

UNIT_TEST(descriptors_lie_in_a_ring)
{
	uint64_t(*addresses)[4] = calloc(TINY, sizeof(*addresses));
	uint32_t *staging;
	struct ucm_copy_job *jobs;

	open_with(KERNELS, UCM_STREAM_OWN);
	add_tiny_group();
	jobs = tiny_jobs(addresses);
	staging = (uint32_t *)(void *)fixture.staging;
	for (uint32_t i = 0; i < 4 * TINY; i++)
		staging[i] = i;
	send_all(jobs, false);
	cuda_fixture_download(&fixture, fixture.got);
	for (uint32_t i = 0; i < 4 * TINY; i++)
		must(((uint32_t *)(void *)fixture.got)[i] == (i ^ 3));
	memset(fixture.staging, 0, STAGING_BYTES);
	send_all(jobs, true);
	for (uint32_t i = 0; i < 4 * TINY; i++)
		must(staging[i] == i);
	close_clean();
	free(jobs);
	free(addresses);
}

UNIT_TEST(close_waits_for_what_is_under_way)
{
	struct ucm_copy_job job = { .end_layer = 1 };

	open_with(KERNELS, UCM_STREAM_OWN);
	cuda_fixture_group(&fixture);
	job.staging = fixture.staging;
	fake->hold = true;
	ucm_copy_cuda.scatter(fixture.copy, &job);
	ck_assert_uint_gt(fake->queued, 0);
	close_clean(); /* memory that is in use is not freed: a mistake */
}
