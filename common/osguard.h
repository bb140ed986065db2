/* SPDX-License-Identifier: Apache-2.0 */
/*
 * osguard.h - deadlines for system calls that may never return.
 *
 * A call on a dead file server sleeps where no signal reaches it, and so would
 * the program that asked us. A directory that is put under guard has all calls
 * of osfile.h on it, and on what is opened below it, made by worker threads:
 * the caller waits until the deadline and gets -ETIMEDOUT; the worker is left
 * to its fate and its late result is thrown away. After a time-out the guard
 * is tripped: calls fail at once, and one every few seconds tries again.
 */
#ifndef UCM_OSGUARD_H
#define UCM_OSGUARD_H

#include <stdbool.h>

struct ucm_guard;

/* Guard a directory's descriptor (and descriptors opened below it with
 * ucm_os_open). name is for the log. -ENOMEM; -EMFILE: descriptor too high. */
int ucm_guard_open(int dirfd, const char *name, unsigned deadline_ms,
		   struct ucm_guard **out);

/* No call on its descriptors may be in use. Calls that never came back keep
 * what they need for themselves. NULL is harmless. */
void ucm_guard_close(struct ucm_guard *guard);

/* ---- for osfile.c ---- */

/* One call: run() is made by a worker and sets result; discard()
 * undoes a result that came too late (closes a descriptor). The struct
 * that it is embedded in is allocated with malloc, and free() ends it. */
struct ucm_call {
	void (*run)(struct ucm_call *call);
	void (*discard)(struct ucm_call *call);
	long result;
	struct ucm_call *next;
	int refs;  /* caller and worker */
	bool done, abandoned;
};

/* The guard of a descriptor, or NULL. */
struct ucm_guard *ucm_guard_of(int fd);

/* A new descriptor has the guard of the directory that it was opened below. */
void ucm_guard_inherit(int fd, int dirfd);

/* Make the call under guard: true if it has ended, false on a time-out. In
 * both cases ucm_guard_put() must follow. */
bool ucm_guard_call(struct ucm_guard *guard, struct ucm_call *call);
void ucm_guard_put(struct ucm_call *call);

#endif
