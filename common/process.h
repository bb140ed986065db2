/* SPDX-License-Identifier: Apache-2.0 */
/* process.h - what the kernel says of a process, and does for it. */
#ifndef UCM_PROCESS_H
#define UCM_PROCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* The namespace of this process's id: 0: not known. */
unsigned long long ucm_process_namespace(void);

/* Has this process CAP_SYS_ADMIN: to mount without fusermount3, and for
 * passthrough? */
bool ucm_has_sys_admin(void);

/* Of /proc/PID/status, pid being a number or "self": what follows name, as a number to
 * that base; unknown, if it does not say. */
unsigned long long ucm_process_bits(const char *pid, const char *name,
				    int base, unsigned long long unknown);

/* Is a thread, by its number here, about to end by a signal? */
bool ucm_process_is_killed(int tid);

/* The first line of a file of the system's, such as one of /proc, without its end;
 * empty if it cannot be read. */
void ucm_system_line(const char *path, char *line, size_t size);

/* A thread that gets no signals: they are the program's business. 0 or -errno. */
int ucm_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* Of this thread: whoever wakes up does not wait for it. idle: it gets
 * the least share of processors, and the disk when nobody else wants it. */
void ucm_process_give_way(bool idle);

#endif
