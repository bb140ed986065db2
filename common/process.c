/* SPDX-License-Identifier: Apache-2.0 */
/* process.c - asks the kernel, and reads /proc. */
#include <config.h>

#include "common/process.h"

#include <linux/ioprio.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CAP_SYS_ADMIN_BIT 21
#define NICE 19 /* a share of one or two percent beside one who wants all */

int ucm_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}

void ucm_process_give_way(bool idle)
{
	int class = idle ? IOPRIO_CLASS_IDLE : IOPRIO_CLASS_BE;
	const struct sched_param none = { 0 };
	pid_t tid = (pid_t)syscall(SYS_gettid);

	/* where it is refused, or means nothing, all goes on as before. Not
	 * SCHED_IDLE: on a machine that is busy it would never run */
	(void)sched_setscheduler(0, SCHED_BATCH, &none);
	(void)setpriority(PRIO_PROCESS, (id_t)tid, idle ? NICE : 0);
	(void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0,
		      IOPRIO_PRIO_VALUE(class, 7));
}

void ucm_system_line(const char *path, char *line, size_t size)
{
	FILE *file = fopen(path, "re");

	if (!file || !fgets(line, (int)size, file))
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (file)
		fclose(file);
}

unsigned long long ucm_process_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

unsigned long long ucm_process_bits(const char *pid, const char *name,
				    int base, unsigned long long unknown)
{
	unsigned long long bits = unknown;
	char path[32], line[256];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%s/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (!strncmp(line, name, strlen(name)))
			bits = strtoull(line + strlen(name), NULL, base);
	}
	if (file)
		fclose(file);
	return bits;
}

bool ucm_has_sys_admin(void)
{
	return ucm_process_bits("self", "CapEff:", 16, 0) >>
		       CAP_SYS_ADMIN_BIT & 1;
}

/* A signal that ends a process is a SIGKILL for each of its threads. */
bool ucm_process_is_killed(int tid)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", tid);
	return ucm_process_bits(pid, "SigPnd:", 16, 0) >> (SIGKILL - 1) & 1;
}
