/* SPDX-License-Identifier: Apache-2.0 */
/*
 * osguard.h - deadlines for system calls that may never return.
 *
 * A call on a dead file server sleeps where no signal reaches it, and so would
 * the program that asked us. A directory that is put under guard has all calls
 * of osfile.h on it, and on what is opened below it, made by threads of the
 * guard's own: the caller waits until the deadline and gets -ETIMEDOUT; the
 * thread is left to its fate and its late result is thrown away.
 *
 * A server may answer reads where it does not answer writes, so each kind of
 * call has threads and health of its own. When a call has timed out, its kind
 * is down: further calls of that kind fail at once, except one at a time that
 * tries, every few seconds. It is up again when all that hung has returned, or
 * when several that tried in a row were answered. So one lucky call
 * does not bring back a server that lets others hang, and a server that hangs
 * costs no more threads than its kinds may have.
 */
#ifndef UCM_OSGUARD_H
#define UCM_OSGUARD_H

#include <pthread.h>
#include <stdbool.h>

#include "common/crew.h"

struct ucm_guard;

enum ucm_call_kind {
	UCM_CALL_READS,  /* what changes nothing, opening for reading too */
	UCM_CALL_WRITES, /* and what a close would report */
	UCM_CALL_SYNCS,  /* they may take UCM_SYNC_DEADLINES times as long */
	UCM_CALL_CLOSES, /* nobody waits for them, and none is given up */
	UCM_CALL_KINDS
};
#define UCM_SYNC_DEADLINES 4

/* A guard of its own, which guards nothing yet. name is for the log, and for
 * the threads. -ENOMEM. */
int ucm_guard_new(const char *name, unsigned deadline_ms,
		  struct ucm_guard **out);

/* A descriptor is under guard from now on, and so are those that are opened
 * below it with ucm_os_open. -EMFILE: descriptor too high. */
int ucm_guard_set(struct ucm_guard *guard, int fd);

/* The kernel's close(2) of a file there waits for the server in a way that no
 * signal ends (a FUSE server's FLUSH): before one is made, the server is asked
 * something else, for which a process can be killed. */
void ucm_guard_ask_before_close(struct ucm_guard *guard);
bool ucm_guard_asks_before_close(const struct ucm_guard *guard);

/* No call on its descriptors may be in use. Calls that never came back keep
 * what they need for themselves. NULL is harmless. */
void ucm_guard_close(struct ucm_guard *guard);

/* Does a kind of call fail at once? NULL: never. */
bool ucm_guard_is_down(struct ucm_guard *guard, enum ucm_call_kind kind);

/* ---- threads that must not wait ---- */

/*
 * While it is true, this thread serves somebody else's requests too, and must
 * not make calls that may wait: those under guard, and syncs. One that it makes
 * nevertheless is reported in the log, once for each name of a call: it is a
 * defect of ours.
 */
extern _Thread_local bool ucm_must_not_wait;

/* ---- for whom a thread makes calls ---- */

/*
 * Is the caller gone, whom this thread serves? NULL: there is none. It is asked
 * while a call under guard that changes nothing waits: then the call ends before the
 * deadline, with -EINTR, which says nothing of the server.
 */
extern _Thread_local bool (*ucm_caller_is_gone)(void *caller);
extern _Thread_local void *ucm_caller;

/* ---- for osfile.c ---- */

/* One call: run() is made by a thread of the guard and sets result; discard()
 * undoes a result that came too late (closes a descriptor). The struct
 * that it is embedded in is allocated with malloc, and free() ends it. */
struct ucm_call {
	struct ucm_job job;
	void (*run)(struct ucm_call *call);
	void (*discard)(struct ucm_call *call);
	long result;
	struct ucm_guard *guard;
	enum ucm_call_kind kind;
	pthread_cond_t ended;
	int refs; /* caller and thread */
	bool done, abandoned, tries, gone;
};

/* The guard of a descriptor, or NULL. */
struct ucm_guard *ucm_guard_of(int fd);

/* A new descriptor has the guard of the directory that it was opened below. */
void ucm_guard_inherit(int fd, int dirfd);
/* It is about to be closed, and its number may be another's. */
void ucm_guard_forget(int fd);

/* Make the call under guard: true if it has ended, false on a time-out, or if the
 * caller is gone, as call->gone then says. In all cases ucm_guard_put() must follow. */
bool ucm_guard_call(struct ucm_guard *guard, enum ucm_call_kind kind,
		    struct ucm_call *call);
void ucm_guard_put(struct ucm_call *call);

/* Have the call made some time, for nobody. False: it cannot be, and is
 * the caller's. */
bool ucm_guard_send(struct ucm_guard *guard, struct ucm_call *call);

/* A call of that name waits in a thread that must not. */
void ucm_guard_report_wait(const char *call);

#endif
