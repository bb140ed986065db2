/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_cuda_bench.c - are copies between staging and pages as fast as the bus?
 *
 * Beside the scatter of a staging area of blocks, timed from the call to the
 * poll that returns the last job: one cuMemcpyAsync of the same pinned bytes.
 * The gather likewise. Rounds are interleaved; medians are printed, and the
 * median of the rounds' ratios, which is to be 0.95 or more. What was scattered
 * is gathered again and compared, before any figure is believed.
 *
 * UNTESTED: on a device, as there was none where it was written.
 */
#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/parse.h"
#include "gpu/copy/copy.h"
#include "gpu/copy/cuda_api.h"

#define ME "load_cuda_bench"
#define GOAL 0.95
#define DEFAULT_CTAS 8
#define MAX_ROUNDS 1000
#define SKIPPED 77

struct shape {
	const char *name;
	uint32_t layers, fragments; /* of a layer */
	uint32_t run_bytes;
};

static const struct shape shapes[] = {
	{ "2 MiB blocks, 64 runs of 32 KiB", 32, 2, 32768 },
	{ "512 KiB shards, 64 runs of 8 KiB", 32, 2, 8192 },
	{ "8.6 MiB MLA blocks, 61 runs of 144 KiB", 61, 1, 147456 },
	{ "2 MiB blocks, 8192 runs of 256 bytes", 32, 256, 256 },
};

/* Forced by UCM_CUDA_RUN_BYTES; ctas 0: the copy engine. */
static const unsigned ctas_tried[] = { 1, 2, 4, 8, 16, 32, 0 };

struct bench {
	const struct ucm_cuda *cuda;
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUevent event;
	int number; /* of the device */
	uint64_t bytes, rounds;
	/* Of a shape: */
	uint8_t *staging;
	size_t len;
	CUdeviceptr pages;
	struct ucm_layout *layout;
	struct ucm_copy *copy;
	struct ucm_copy_job *jobs;
	unsigned num_jobs;
};

static void die(const char *what)
{
	fprintf(stderr, ME ": %s\n", what);
	exit(1);
}

static void ok(const struct bench *bench, CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return;
	ucm_cuda_failed(bench->cuda, result, what);
	exit(1);
}

static void *get(size_t num, size_t size)
{
	void *room = calloc(num, size);

	if (!room)
		die("no memory");
	return room;
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, size_t num)
{
	qsort(values, num, sizeof(*values), by_value);
	return values[num / 2];
}

/* ---- a shape ---- */

/* Pages of a layer in a row, as in an engine's tensor; K and V, or the runs of
 * a layer that are not contiguous, each in one of their own. */
static void make_layout(struct bench *bench, const struct shape *shape)
{
	uint32_t layer_bytes = shape->fragments * shape->run_bytes;
	struct ucm_geometry geometry = { .num_layers = shape->layers,
					 .k_bytes = layer_bytes };
	uint64_t tensor = (uint64_t)shape->run_bytes * bench->num_jobs;
	struct ucm_error error = { "" };
	int err;

	err = ucm_layout_new(&geometry, bench->num_jobs, &bench->layout,
			     &error);
	for (uint32_t layer = 0; layer < shape->layers && !err; layer++) {
		struct ucm_region region = {
			.base = bench->pages +
				layer * tensor * shape->fragments,
			.page_stride = shape->run_bytes,
			.run_bytes = shape->run_bytes,
			.n0 = shape->fragments,
			.n1 = 1,
			.s0 = (int64_t)tensor,
			.offset = (uint64_t)layer * layer_bytes,
			.layer = layer,
		};

		err = ucm_layout_add_region(bench->layout, &region, &error);
	}
	if (!err)
		err = ucm_layout_seal(bench->layout, &error);
	if (err)
		die(error.text);
}

/* Blocks lie in staging in a row; pages are taken from the last one down, so
 * that neighbours in one are none in the other. */
static void make_shape(struct bench *bench, const struct shape *shape)
{
	uint64_t block = (uint64_t)shape->layers * shape->fragments *
			 shape->run_bytes;

	bench->num_jobs = (unsigned)(bench->bytes / block);
	if (!bench->num_jobs)
		die("--bytes is less than a block");
	bench->len = bench->num_jobs * block;
	bench->staging = mmap(NULL, bench->len, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bench->staging == MAP_FAILED)
		die("no memory");
	madvise(bench->staging, bench->len, MADV_HUGEPAGE);
	for (size_t i = 0; i < bench->len / 8; i++)
		((uint64_t *)(void *)bench->staging)[i] =
			i * UINT64_C(0x9e3779b97f4a7c15);
	ok(bench, bench->cuda->MemAlloc(&bench->pages, bench->len),
	   "cuMemAlloc");
	ok(bench,
	   bench->cuda->MemHostRegister(bench->staging, bench->len,
					CU_MEMHOSTREGISTER_DEVICEMAP |
						CU_MEMHOSTREGISTER_PORTABLE),
	   "cuMemHostRegister");
	make_layout(bench, shape);
	bench->jobs = get(bench->num_jobs, sizeof(*bench->jobs));
	for (unsigned i = 0; i < bench->num_jobs; i++) {
		bench->jobs[i].end_layer = shape->layers;
		bench->jobs[i].staging = bench->staging + i * block;
		bench->jobs[i].page = bench->num_jobs - 1 - i;
	}
}

static void drop_shape(struct bench *bench)
{
	free(bench->jobs);
	ucm_layout_free(bench->layout);
	bench->cuda->MemHostUnregister(bench->staging);
	bench->cuda->MemFree(bench->pages);
	munmap(bench->staging, bench->len);
}

static void open_copy(struct bench *bench, unsigned ctas)
{
	struct ucm_copy_options options = { .device = bench->number,
					    .stream = UCM_STREAM_OWN,
					    .ctas = ctas };
	struct ucm_error error;

	setenv("UCM_CUDA_RUN_BYTES", ctas ? "1T" : "0", 1);
	if (ucm_copy_cuda.open(&options, &bench->copy, &error))
		die(error.text);
	if (ucm_copy_cuda.register_staging(bench->copy, bench->staging,
					   bench->len) ||
	    ucm_copy_cuda.add_group(bench->copy, 0, bench->layout))
		exit(1); /* logged */
}

/* ---- what is timed ---- */

static double time_ours(struct bench *bench, bool gather)
{
	unsigned left = bench->num_jobs;
	double start;

	for (unsigned i = 0; i < bench->num_jobs; i++)
		bench->jobs[i].next = i + 1 < bench->num_jobs
					      ? &bench->jobs[i + 1]
					      : NULL;
	start = now_s();
	(gather ? ucm_copy_cuda.gather : ucm_copy_cuda.scatter)(bench->copy,
								bench->jobs);
	while (left) {
		struct ucm_copy_job *job = ucm_copy_cuda.poll(bench->copy);

		for (; job; job = job->next, left--) {
			if (job->err)
				exit(1); /* logged */
		}
	}
	return now_s() - start;
}

static double time_plain(struct bench *bench, bool gather)
{
	CUdeviceptr host = (uintptr_t)bench->staging;
	double start = now_s();
	CUresult result;

	ok(bench,
	   bench->cuda->MemcpyAsync(gather ? host : bench->pages,
				    gather ? bench->pages : host, bench->len,
				    bench->stream),
	   "cuMemcpyAsync");
	ok(bench, bench->cuda->EventRecord(bench->event, bench->stream),
	   "cuEventRecord");
	do {
		result = bench->cuda->EventQuery(bench->event);
	} while (result == CUDA_ERROR_NOT_READY);
	ok(bench, result, "cuEventQuery");
	return now_s() - start;
}

/* Both ways, and the same bytes come back. Pages are filled with others
 * first. */
static void check(struct bench *bench)
{
	uint8_t *before = get(1, bench->len);

	memcpy(before, bench->staging, bench->len);
	memset(bench->staging, 0, bench->len);
	time_plain(bench, false);
	memcpy(bench->staging, before, bench->len);
	time_ours(bench, false);
	memset(bench->staging, 0, bench->len);
	time_ours(bench, true);
	if (memcmp(bench->staging, before, bench->len) != 0)
		die("other bytes came back");
	free(before);
}

/* Returns the median ratio. */
static double compare(struct bench *bench, unsigned ctas, bool gather)
{
	double ours[MAX_ROUNDS], plain[MAX_ROUNDS], ratios[MAX_ROUNDS];
	double gb = (double)bench->len / 1e9, ratio;
	char label[16] = "engine";

	for (uint64_t i = 0; i < bench->rounds; i++) {
		plain[i] = gb / time_plain(bench, gather);
		ours[i] = gb / time_ours(bench, gather);
		ratios[i] = ours[i] / plain[i];
	}
	ratio = median(ratios, bench->rounds);
	if (ctas)
		snprintf(label, sizeof(label), "%u CTAs", ctas);
	printf("  %-8s %-8s %8.2f %8.2f %7.3f   %.3f .. %.3f\n",
	       gather ? "gather" : "scatter", label,
	       median(plain, bench->rounds), median(ours, bench->rounds), ratio,
	       ratios[0], ratios[bench->rounds - 1]);
	return ratio;
}

/* False: below the goal with the default number of CTAs. */
static bool run_shape(struct bench *bench, const struct shape *shape)
{
	bool good = true;

	make_shape(bench, shape);
	printf("%s, %u of them\n  %-8s %-8s %8s %8s %7s   %s\n", shape->name,
	       bench->num_jobs, "", "", "copy", "ours", "ratio", "range");
	for (size_t i = 0; i < sizeof(ctas_tried) / sizeof(*ctas_tried); i++) {
		unsigned ctas = ctas_tried[i];

		open_copy(bench, ctas);
		check(bench);
		for (int gather = 0; gather < 2; gather++) {
			double ratio = compare(bench, ctas, gather);

			if (ctas == DEFAULT_CTAS && ratio < GOAL)
				good = false;
		}
		ucm_copy_cuda.close(bench->copy);
	}
	drop_shape(bench);
	return good;
}

/* ---- */

static void open_device(struct bench *bench)
{
	struct ucm_error error;
	char name[128];

	if (ucm_cuda_get(&bench->cuda, &error)) {
		fprintf(stderr, ME ": SKIP: %s\n", error.text);
		exit(SKIPPED);
	}
	ok(bench, bench->cuda->DeviceGet(&bench->device, bench->number),
	   "cuDeviceGet");
	ok(bench, bench->cuda->DeviceGetName(name, sizeof(name), bench->device),
	   "cuDeviceGetName");
	ok(bench,
	   bench->cuda->DevicePrimaryCtxRetain(&bench->context, bench->device),
	   "cuDevicePrimaryCtxRetain");
	ok(bench, bench->cuda->CtxPushCurrent(bench->context),
	   "cuCtxPushCurrent");
	ok(bench,
	   bench->cuda->StreamCreate(&bench->stream, CU_STREAM_NON_BLOCKING),
	   "cuStreamCreate");
	ok(bench,
	   bench->cuda->EventCreate(&bench->event, CU_EVENT_DISABLE_TIMING),
	   "cuEventCreate");
	printf("%s; GB/s, medians of %" PRIu64 " rounds\n", name,
	       bench->rounds);
}

static void usage(void)
{
	fputs("usage: " ME " [--device N] [--bytes N] [--rounds N]\n", stderr);
	exit(2);
}

static void read_options(struct bench *bench, int argc, char **argv)
{
	for (int i = 1; i < argc; i += 2) {
		const char *name = argv[i], *text = argv[i + 1];
		uint64_t number = 0;

		if (!text)
			usage();
		if (!strcmp(name, "--bytes") &&
		    !ucm_parse_bytes(text, &bench->bytes))
			continue;
		if (!strcmp(name, "--rounds") &&
		    !ucm_parse_range(text, 1, MAX_ROUNDS, &bench->rounds))
			continue;
		if (strcmp(name, "--device") != 0 ||
		    ucm_parse_range(text, 0, 1023, &number))
			usage();
		bench->number = (int)number;
	}
}

int main(int argc, char **argv)
{
	struct bench bench = { .bytes = UINT64_C(256) << 20, .rounds = 15 };
	bool good = true;

	read_options(&bench, argc, argv);
	open_device(&bench);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		good = run_shape(&bench, &shapes[i]) && good;
	bench.cuda->EventDestroy(bench.event);
	bench.cuda->StreamDestroy(bench.stream);
	bench.cuda->CtxPopCurrent(&bench.context);
	bench.cuda->DevicePrimaryCtxRelease(bench.device);
	printf("goal (%.2f, %u CTAs): %s\n", GOAL, DEFAULT_CTAS,
	       good ? "met" : "missed");
	return good ? 0 : 1;
}
