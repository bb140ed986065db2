/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_fio.c - fio's turns: the same files, each in one read or write.
 *
 * The time is the job's own: io_uring until the last completion, with opening
 * the files, without fio's start. So is the CPU time of reads, as fio reports
 * it; but that leaves out the kernel's workers for its ring, which is where
 * writes are made. Of writes it is that of the whole process, less what a fio
 * with two files takes; so it has some of fio's own in it.
 *
 * fio's own buffers are small pages, which the kernel pins for each read; a
 * large read then has many segments, and disks like few. With huge pages that
 * are registered it has what the loader has.
 */
#include <config.h>

#include "bench/load_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_ARGS 24

extern char **environ;

/* fio takes no long list of names, but numbers files: "bench.0.17". */
static void link_path(const struct bench *bench, size_t i, char path[512])
{
	snprintf(path, 512, "%s/bench.0.%zu", bench->work, i);
}

static int link_files(struct bench *bench)
{
	char path[512], target[512];

	while (bench->num_links < bench->num_files) {
		size_t i = bench->num_links;

		link_path(bench, i, path);
		snprintf(target, sizeof(target),
			 "%s/" UCM_TREE_BLOCKS "/%s", bench->tiers,
			 bench->files[i].path);
		if (symlink(target, path))
			return complain(path, "symlink");
		bench->num_links++;
	}
	return 0;
}

void fio_close(struct bench *bench)
{
	char path[512];

	while (bench->num_links) {
		link_path(bench, --bench->num_links, path);
		unlink(path);
	}
}

/* cpu: seconds of all its processes and threads */
static int run_fio(char *const *args, double *cpu_out)
{
	posix_spawn_file_actions_t actions;
	struct rusage usage;
	int status, err;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, 2, 1);
	err = posix_spawnp(&pid, "fio", &actions, NULL, args, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (err) {
		errno = err;
		return complain("fio", "start");
	}
	if (wait4(pid, &status, 0, &usage) != pid)
		return complain("fio", "wait");
	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, ME ": fio failed\n");
		return -EIO;
	}
	*cpu_out = seconds_of(&usage);
	return 0;
}

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

/* out->cpu: the job's own */
static int take_result(const char *path, const char *direction, double want,
		       struct figure *out)
{
	json_error_t error;
	json_t *root = json_load_file(path, 0, &error), *job, *data;
	int err = 0;

	if (!root) {
		fprintf(stderr, ME ": fio: %s: %s\n", path, error.text);
		return -EIO;
	}
	job = json_array_get(json_object_get(root, "jobs"), 0);
	data = json_object_get(job, direction);
	if (number(data, "io_bytes") != want || number(job, "error") != 0) {
		fprintf(stderr, ME ": fio moved %.0f of %.0f bytes\n",
			number(data, "io_bytes"), want);
		err = -EIO;
	} else {
		out->seconds = number(data, "runtime") / 1e3;
		out->cpu = (number(job, "usr_cpu") + number(job, "sys_cpu")) /
			   100 * number(job, "job_runtime") / 1e3;
	}
	json_decref(root);
	return err;
}

__attribute__((format(printf, 3, 4))) static void
put(char *args[MAX_ARGS + 1], unsigned *num, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	if (*num == MAX_ARGS || vasprintf(&args[*num], format, list) < 0)
		abort();
	va_end(list);
	(*num)++;
}

static int remove_written(struct bench *bench, size_t num)
{
	char path[512];

	for (size_t i = 0; i < num; i++) {
		int err;

		snprintf(path, sizeof(path), "%s/bench.0.%zu", bench->plain, i);
		err = bury(bench, path);
		if (err)
			return err;
		unlink(path);
	}
	return 0;
}

static int run_job(struct bench *bench, const struct side *side, bool is_write,
		   size_t num_files, struct figure *out)
{
	char *args[MAX_ARGS + 1] = { NULL }, result[512];
	unsigned num = 0;
	double cpu = 0;
	int err;

	snprintf(result, sizeof(result), "%s/fio.json", bench->work);
	put(args, &num, "fio");
	put(args, &num, "--name=bench");
	put(args, &num, "--ioengine=io_uring");
	put(args, &num, "--direct=1");
	put(args, &num, "--output-format=json");
	put(args, &num, "--output=%s", result);
	put(args, &num, "--directory=%s",
	    is_write ? bench->plain : bench->work);
	put(args, &num, "--nrfiles=%zu", num_files);
	put(args, &num, "--bs=%" PRIu64, bench->file_size);
	put(args, &num, "--filesize=%" PRIu64, bench->file_size);
	put(args, &num, "--iodepth=%u", side->depth);
	if (side->huge) {
		put(args, &num, "--fixedbufs=1");
		put(args, &num, "--mem=mmaphuge");
		put(args, &num, "--hugepage-size=2m");
	}
	if (is_write) {
		put(args, &num, "--rw=write");
		put(args, &num, "--create_on_open=1");
		put(args, &num, "--fallocate=none");
	} else {
		put(args, &num, "--rw=randread");
		put(args, &num, "--allow_file_create=0");
	}
	err = run_fio(args, &cpu);
	if (!err)
		err = take_result(result, is_write ? "write" : "read",
				  (double)(num_files * bench->file_size),
				  out);
	if (!err && is_write) {
		out->cpu = cpu;
		err = remove_written(bench, num_files);
	}
	unlink(result);
	for (unsigned i = 0; i < num; i++)
		free(args[i]);
	return err;
}

/* What fio takes for itself. */
static int measure_start(struct bench *bench, const struct side *side)
{
	double values[3];

	for (unsigned i = 0; i < 3; i++) {
		struct figure figure = { 0 };
		int err = run_job(bench, side, true, 2, &figure);

		if (err)
			return err;
		values[i] = figure.cpu;
	}
	bench->fio_cpu = quantile(values, 3, 0.5);
	return 0;
}

int run_fio_read(struct bench *bench, struct side *side, struct figure *out)
{
	int err = link_files(bench);

	return err ? err : run_job(bench, side, false, bench->num_files, out);
}

int run_fio_write(struct bench *bench, struct side *side, struct figure *out)
{
	int err = bench->fio_cpu > 0 ? 0 : measure_start(bench, side);

	if (!err)
		err = run_job(bench, side, true, bench->num_files, out);
	out->cpu -= bench->fio_cpu;
	return err;
}
