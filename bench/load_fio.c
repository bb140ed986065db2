/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_fio.c - fio's turns: the same files, each in one read or write.
 *
 * The time is the job's own (io_uring until the last completion, with opening
 * the files, without fio's start), and so is the CPU time: of its thread and of
 * the kernel's workers for its ring.
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
		snprintf(target, sizeof(target), "%s/blocks/%s", bench->tiers,
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

static int run_fio(char *const *args)
{
	posix_spawn_file_actions_t actions;
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
	if (waitpid(pid, &status, 0) != pid)
		return complain("fio", "wait");
	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, ME ": fio failed\n");
		return -EIO;
	}
	return 0;
}

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

static int take_result(const struct bench *bench, const char *path,
		       const char *direction, struct figure *out)
{
	json_error_t error;
	json_t *root = json_load_file(path, 0, &error), *job, *data;
	double want = (double)(bench->num_files * bench->file_size);
	int err = 0;

	if (!root) {
		fprintf(stderr, ME ": fio: %s: %s\n", path, error.text);
		return -EIO;
	}
	job = json_array_get(json_object_get(root, "jobs"), 0);
	data = json_object_get(job, direction);
	if (number(data, "io_bytes") != want || number(job, "error") != 0 ||
	    number(data, "runtime") <= 0) {
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

static int measure(struct bench *bench, const struct side *side, bool is_write,
		   struct figure *out)
{
	char *args[MAX_ARGS + 1] = { NULL }, result[512];
	unsigned num = 0;
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
	put(args, &num, "--nrfiles=%zu", bench->num_files);
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
		put(args, &num, "--unlink=1");
	} else {
		put(args, &num, "--rw=randread");
		put(args, &num, "--allow_file_create=0");
	}
	err = run_fio(args);
	if (!err)
		err = take_result(bench, result, is_write ? "write" : "read",
				  out);
	unlink(result);
	for (unsigned i = 0; i < num; i++)
		free(args[i]);
	return err;
}

int run_fio_read(struct bench *bench, struct side *side, struct figure *out)
{
	int err = link_files(bench);

	return err ? err : measure(bench, side, false, out);
}

int run_fio_write(struct bench *bench, struct side *side, struct figure *out)
{
	return measure(bench, side, true, out);
}
