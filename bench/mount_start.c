/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_start.c - how long a daemon takes to answer, and what it weighs.
 *
 * The daemon is started and stopped twice a round, with the page cache dropped
 * before: without the snapshot of the last clean end, and with it. Its memory is
 * compared with that of one that serves an empty directory.
 */
#include <config.h>

#include "bench/mount_bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_S 120

static void exec_daemon(const struct bench *bench, const char *tier, int ready)
{
	char options[512];

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	fcntl(ready, F_SETFD, 0);
	snprintf(options, sizeof(options), "ready-fd=%d,log_level=warning%s%s",
		 ready, bench->options ? "," : "",
		 bench->options ? bench->options : "");
	execl(bench->daemon, bench->daemon, tier, bench->mnt, "-f", "-o",
	      options, (char *)NULL);
	complain(bench->daemon, "exec");
	_exit(127);
}

static int wait_ready(int fd)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN };
	char text[16];

	if (poll(&poller, 1, PATIENCE_S * 1000) == 1 &&
	    read(fd, text, sizeof(text)) > 0)
		return 0;
	fprintf(stderr, ME ": the daemon did not start\n");
	return -EIO;
}

static int start_daemon(const struct bench *bench, const char *tier,
			pid_t *out)
{
	int ready[2], err;
	pid_t pid;

	if (pipe2(ready, O_CLOEXEC))
		return complain("pipe", "open");
	pid = fork();
	if (pid == 0)
		exec_daemon(bench, tier, ready[1]);
	close(ready[1]);
	err = pid < 0 ? complain("daemon", "fork") : wait_ready(ready[0]);
	close(ready[0]);
	*out = pid;
	return err;
}

static int stop_daemon(pid_t pid)
{
	int status = 0;

	kill(pid, SIGTERM);
	if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
	    WEXITSTATUS(status) == 0)
		return 0;
	fprintf(stderr, ME ": the daemon ended badly\n");
	return -EIO;
}

/* A number after a key, in a file of /proc or in JSON. */
static int read_number(const char *path, const char *key, double *out)
{
	char text[16384] = "";
	const char *at;
	FILE *file = fopen(path, "re");
	size_t len;

	if (!file)
		return complain(path, "open");
	len = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[len] = '\0';
	at = strstr(text, key);
	if (!at || sscanf(at + strlen(key), "%*[^0-9]%lf", out) != 1) {
		fprintf(stderr, ME ": %s: no %s\n", path, key);
		return -EIO;
	}
	return 0;
}

static bool is_complete(const char *path)
{
	char text[16384] = "";
	FILE *file = fopen(path, "re");
	size_t len = file ? fread(text, 1, sizeof(text) - 1, file) : 0;

	if (file)
		fclose(file);
	text[len] = '\0';
	return strstr(text, "\"complete\": true");
}

static int wait_complete(const struct bench *bench, const char *path)
{
	(void)bench;
	for (unsigned i = 0; i < PATIENCE_S * 500; i++) {
		if (is_complete(path))
			return 0;
		usleep(2000);
	}
	fprintf(stderr, ME ": the index does not get complete\n");
	return -EIO;
}

static int stat_in_mount(const struct bench *bench, const struct name *name)
{
	char path[512];
	struct stat st;

	snprintf(path, sizeof(path), "%s/" UCM_TREE_BLOCKS "/%s", bench->mnt,
		 name->path);
	return stat(path, &st) ? complain(path, "stat") : 0;
}

/* As ls -l does. */
static int list_last_bucket(const struct bench *bench)
{
	struct dirent *entry;
	char path[512];
	struct stat st;
	DIR *dir;
	int err = 0;

	snprintf(path, sizeof(path), "%s/" UCM_TREE_BLOCKS "/ff", bench->mnt);
	dir = opendir(path);
	if (!dir)
		return complain(path, "opendir");
	while (!err && (entry = readdir(dir))) {
		if (entry->d_name[0] != '.' &&
		    fstatat(dirfd(dir), entry->d_name, &st, 0))
			err = complain(entry->d_name, "stat");
	}
	closedir(dir);
	return err;
}

enum {
	READY, FIRST_LOOKUP, FIRST_LIST, ANEW, COMPLETE, STOP, RSS, INDEX,
	NUM_READINGS
};

static void keep(struct reading *reading, double value)
{
	reading->values[reading->num++] = value;
}

static int weigh(const struct bench *bench, pid_t pid, double *rss_bytes,
		 double *index_bytes)
{
	char path[512];
	int err;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	err = read_number(path, "VmRSS:", rss_bytes);
	*rss_bytes *= 1024;
	if (err)
		return err;
	snprintf(path, sizeof(path), "%s/" UCM_TREE_STATS, bench->mnt);
	return read_number(path, "\"memory_bytes\":", index_bytes);
}

static double ms_since(uint64_t began)
{
	return (double)(now_ns() - began) / 1e6;
}

static int use_daemon(struct bench *bench, uint64_t began, pid_t pid,
		      const double empty[2], struct reading *readings)
{
	double num = (double)bench->num_names, rss, memory;
	char path[512];
	uint64_t listing;
	int err;

	keep(&readings[READY], ms_since(began));
	err = stat_in_mount(bench,
			    &bench->names[next_random(bench) %
					  bench->num_names]);
	keep(&readings[FIRST_LOOKUP], ms_since(began));
	listing = now_ns();
	if (!err)
		err = list_last_bucket(bench);
	keep(&readings[FIRST_LIST], ms_since(listing));
	snprintf(path, sizeof(path), "%s/" UCM_TREE_STATS, bench->mnt);
	if (!err)
		err = wait_complete(bench, path);
	keep(&readings[COMPLETE], ms_since(began));
	if (!err)
		err = weigh(bench, pid, &rss, &memory);
	if (err)
		return err;
	keep(&readings[RSS], (rss - empty[0]) / num);
	keep(&readings[INDEX], (memory - empty[1]) / num);
	return 0;
}

static int one_life(struct bench *bench, const double empty[2],
		    struct reading *readings)
{
	uint64_t began;
	pid_t pid = -1;
	int err = drop_caches("3"), end;

	if (err)
		return err;
	began = now_ns();
	err = start_daemon(bench, bench->tier, &pid);
	if (!err)
		err = use_daemon(bench, began, pid, empty, readings);
	began = now_ns();
	end = pid > 0 ? stop_daemon(pid) : 0;
	keep(&readings[STOP], ms_since(began));
	return err ? err : end;
}

/* As after a crash, but that nothing is in doubt. */
static int start_anew(struct bench *bench, struct reading *reading)
{
	char path[512];
	uint64_t began;
	pid_t pid = -1;
	int err, end;

	snprintf(path, sizeof(path), "%s/" UCM_TREE_OWN "/snapshot",
		 bench->tier);
	if (unlink(path) && errno != ENOENT)
		return complain(path, "unlink");
	err = drop_caches("3");
	if (err)
		return err;
	began = now_ns();
	err = start_daemon(bench, bench->tier, &pid);
	snprintf(path, sizeof(path), "%s/" UCM_TREE_STATS, bench->mnt);
	if (!err)
		err = wait_complete(bench, path);
	keep(reading, ms_since(began));
	end = pid > 0 ? stop_daemon(pid) : 0;
	return err ? err : end;
}

static int weigh_empty(struct bench *bench, double empty[2])
{
	char path[512];
	pid_t pid = -1;
	int err = start_daemon(bench, bench->empty, &pid), end;

	snprintf(path, sizeof(path), "%s/" UCM_TREE_STATS, bench->mnt);
	if (!err)
		err = wait_complete(bench, path);
	if (!err)
		err = weigh(bench, pid, &empty[0], &empty[1]);
	end = pid > 0 ? stop_daemon(pid) : 0;
	return err ? err : end;
}

int measure_starts(struct bench *bench)
{
	struct reading readings[NUM_READINGS] = {
		[READY] = { "start", "start until ready", "ms", 0, { 0 }, 0 },
		[FIRST_LOOKUP] = { "start", "start until first lookup", "ms",
				   1000, { 0 }, 0 },
		[FIRST_LIST] = { "start", "first list (and stat) of a bucket",
				 "ms", 50, { 0 }, 0 },
		[ANEW] = { "start", "start anew until index complete", "ms", 0,
			   { 0 }, 0 },
		[COMPLETE] = { "start", "start until index complete", "ms", 0,
			       { 0 }, 0 },
		[STOP] = { "start", "stop", "ms", 0, { 0 }, 0 },
		[RSS] = { "start", "resident memory per block", "B", 0, { 0 },
			  0 },
		[INDEX] = { "start", "index per block (stats.json)", "B", 0,
			    { 0 }, 0 },
	};
	double empty[2];
	int err = weigh_empty(bench, empty);

	for (unsigned i = 0; i < bench->rounds && !err; i++) {
		err = start_anew(bench, &readings[ANEW]);
		if (!err)
			err = one_life(bench, empty, readings);
	}
	for (unsigned i = 0; i < NUM_READINGS && !err; i++)
		print_reading(bench, &readings[i]);
	return err;
}
