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

/* A set of bits of /proc/PID/status; 0: it is not known. */
static unsigned long long status_bits(const char *path, const char *name)
{
	FILE *file = fopen(path, "re");
	unsigned long long bits = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file)) {
		if (!strncmp(line, name, strlen(name)))
			bits = strtoull(line + strlen(name), NULL, 16);
	}
	if (file)
		fclose(file);
	return bits;
}

bool ucm_has_sys_admin(void)
{
	return status_bits("/proc/self/status", "CapEff:") >>
		       CAP_SYS_ADMIN_BIT & 1;
}

/* A signal that ends a process is a SIGKILL for each of its threads. */
bool ucm_process_is_killed(int tid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	return status_bits(path, "SigPnd:") >> (SIGKILL - 1) & 1;
}
