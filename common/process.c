/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.c - asks the kernel, and reads /proc.
 *
 * A process that was killed closes its files like one that calls close(2): the
 * kernel does it, in its name. They differ in a flag that the kernel
 * sets before it closes the first one (PF_EXITING; proc_pid_stat(5), "flags").
 */
#include <config.h>

#include "common/process.h"

#include <fcntl.h>
#include <linux/ioprio.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cleanup.h"

#define CAP_SYS_ADMIN_BIT 21
#define PF_EXITING 0x4u

/* The C library registers a list of each thread's robust futexes, which the
 * kernel takes away when the thread begins to end, before it closes files. One
 * that is there says "it keeps running" for a tenth of the time that /proc
 * takes. */
static bool has_robust_list(pid_t pid)
{
	void *head = NULL;
	size_t len;

	return !syscall(SYS_get_robust_list, pid, &head, &len) && head;
}

bool ucm_process_goes_on(pid_t pid)
{
	_cleanup_fd_ int fd = -1;
	char path[32], text[512];
	const char *after_name;
	unsigned flags;
	ssize_t len;

	if (pid <= 0)
		return false;
	if (has_robust_list(pid))
		return true;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	len = read(fd, text, sizeof(text) - 1);
	if (len <= 0)
		return false;
	text[len] = '\0';
	after_name = strrchr(text, ')'); /* the name may hold anything */
	return after_name &&
	       sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
	       !(flags & PF_EXITING);
}

#define NICE 19 /* a share of one or two percent beside one who wants all */

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

bool ucm_has_sys_admin(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	unsigned long long caps = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "CapEff: %llx", &caps) == 1)
			break;
	}
	if (file)
		fclose(file);
	return caps >> CAP_SYS_ADMIN_BIT & 1;
}
