/* SPDX-License-Identifier: Apache-2.0 */
/*
 * osguard.c - threads that may get stuck, so that nobody else does.
 *
 * A guard has a crew (crew.h) for each kind of call. A call belongs to its
 * caller and to the thread that makes it: whoever lets go of it last frees it.
 * The guard belongs to its owner and to all calls that are out.
 *
 * A kind is up, or down. It goes down when a call of it has not ended at the
 * deadline, whether it hangs or waited all the time for a thread, because the
 * others hang. While it is down,
 *
 *   hung    calls were given up and have not returned
 *   trying  one call at a time is let through, TRY_MS after the last
 *   answers of those that were let through have been answered in a row
 *
 * and it comes up when the last of the hung calls returns (the server is back),
 * or when as many have been answered as it needs (the hung ones were lost). It
 * needs more each time that it goes down again soon: a server that answers some
 * calls and lets others hang is not asked to prove itself by the same luck.
 */
#include <config.h>

#include "common/osguard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"

#define MAX_FDS (1 << 20)
#define TRY_MS 5000
#define ASK_MS 100 /* how often the caller is looked for */
#define NEEDS_FIRST 2
#define NEEDS_MOST 64
#define SOON_MS 600000

/* Threads that may hang at a time. */
static const unsigned most_threads[UCM_CALL_KINDS] = {
	[UCM_CALL_READS] = 16,
	[UCM_CALL_WRITES] = 8,
	[UCM_CALL_SYNCS] = 4,
	[UCM_CALL_CLOSES] = 2,
};

static const char *const kind_names[UCM_CALL_KINDS] = {
	"reads", "writes", "syncs", "closes",
};

/* Under the guard's lock, except for down, which may be read without. */
struct guard_kind {
	struct ucm_crew *crew;
	_Atomic bool down;
	bool trying;
	unsigned hung, answers, needs;
	int64_t try_ms;	 /* no try before */
	int64_t down_ms; /* when it went down last */
};

struct ucm_guard {
	char *name;
	unsigned deadline_ms;
	bool asks_before_close;
	pthread_mutex_t lock;
	unsigned refs; /* the owner, and calls that are out */
	struct guard_kind kinds[UCM_CALL_KINDS];
};

/* By descriptor; untouched pages of it cost nothing. */
static struct ucm_guard *_Atomic guards[MAX_FDS];
static _Atomic int guards_end; /* one past the highest that ever had one */

/* ---- who is under guard ---- */

static void guard_note(int fd, struct ucm_guard *guard)
{
	int end = atomic_load(&guards_end);

	atomic_store(&guards[fd], guard);
	while (fd >= end &&
	       !atomic_compare_exchange_weak(&guards_end, &end, fd + 1))
		;
}

struct ucm_guard *ucm_guard_of(int fd)
{
	return fd >= 0 && fd < MAX_FDS
		       ? atomic_load_explicit(&guards[fd], memory_order_acquire)
		       : NULL;
}

void ucm_guard_forget(int fd)
{
	if (ucm_guard_of(fd))
		guard_note(fd, NULL);
}

void ucm_guard_inherit(int fd, int dirfd)
{
	struct ucm_guard *guard = ucm_guard_of(dirfd);

	/* a number that was another's before loses that one's guard */
	if (fd < MAX_FDS && (guard || ucm_guard_of(fd)))
		guard_note(fd, guard);
}

int ucm_guard_set(struct ucm_guard *guard, int fd)
{
	if (fd < 0 || fd >= MAX_FDS)
		return -EMFILE;
	guard_note(fd, guard);
	return 0;
}

/* ---- begin and end ---- */

static void guard_free(struct ucm_guard *guard)
{
	pthread_mutex_destroy(&guard->lock);
	free(guard->name);
	free(guard);
}

/* Without the lock. */
static void guard_put(struct ucm_guard *guard)
{
	bool last;

	pthread_mutex_lock(&guard->lock);
	last = --guard->refs == 0;
	pthread_mutex_unlock(&guard->lock);
	if (last)
		guard_free(guard);
}

/* A child that runs another program closes our descriptors with execve(2), and
 * would wait for the server. Left open they are closed by its end, which waits
 * for nobody. */
static void guard_leave_open(const struct ucm_guard *guard)
{
	for (int fd = 0; fd < atomic_load(&guards_end); fd++) {
		if (ucm_guard_of(fd) == guard)
			fcntl(fd, F_SETFD, 0);
	}
}

/* The threads that held calls are not there. */
static void guard_forked(void *arg)
{
	struct ucm_guard *guard = arg;

	if (guard->asks_before_close)
		guard_leave_open(guard);
	pthread_mutex_init(&guard->lock, NULL);
	guard->refs = 1;
	for (unsigned i = 0; i < UCM_CALL_KINDS; i++) {
		guard->kinds[i].hung = 0;
		guard->kinds[i].trying = false;
	}
}

static void guard_close_crews(struct ucm_guard *guard)
{
	if (guard->kinds[0].crew)
		ucm_crew_on_fork(guard->kinds[0].crew, NULL, NULL);
	for (unsigned i = 0; i < UCM_CALL_KINDS; i++) {
		ucm_crew_close(guard->kinds[i].crew, 0);
		guard->kinds[i].crew = NULL;
	}
}

static int guard_open_crews(struct ucm_guard *guard)
{
	int err = 0;

	for (unsigned i = 0; i < UCM_CALL_KINDS && !err; i++) {
		char name[16];

		guard->kinds[i].needs = NEEDS_FIRST;
		snprintf(name, sizeof(name), "ucm-%s", kind_names[i]);
		err = ucm_crew_open(name, most_threads[i],
				    &guard->kinds[i].crew);
	}
	if (!err)
		ucm_crew_on_fork(guard->kinds[0].crew, guard_forked, guard);
	return err;
}

int ucm_guard_new(const char *name, unsigned deadline_ms,
		  struct ucm_guard **out)
{
	struct ucm_guard *guard = calloc(1, sizeof(*guard));
	int err;

	if (!guard)
		return -ENOMEM;
	pthread_mutex_init(&guard->lock, NULL);
	guard->refs = 1;
	guard->deadline_ms = deadline_ms;
	guard->name = strdup(name);
	err = guard->name ? guard_open_crews(guard) : -ENOMEM;
	if (err) {
		guard_close_crews(guard);
		guard_free(guard);
		return err;
	}
	*out = guard;
	return 0;
}

void ucm_guard_close(struct ucm_guard *guard)
{
	if (!guard)
		return;
	for (int fd = 0; fd < atomic_load(&guards_end); fd++) {
		if (atomic_load_explicit(&guards[fd], memory_order_relaxed) ==
		    guard)
			atomic_store(&guards[fd], NULL);
	}
	guard_close_crews(guard);
	guard_put(guard);
}

void ucm_guard_ask_before_close(struct ucm_guard *guard)
{
	guard->asks_before_close = true;
}

bool ucm_guard_asks_before_close(const struct ucm_guard *guard)
{
	return guard->asks_before_close;
}

/* ---- health; under the guard's lock ---- */

bool ucm_guard_is_down(struct ucm_guard *guard, enum ucm_call_kind kind)
{
	return guard && atomic_load(&guard->kinds[kind].down);
}

static void kind_come_up(struct ucm_guard *guard, struct guard_kind *kind)
{
	atomic_store(&kind->down, false);
	kind->trying = false;
	ucm_info("%s: answers %s again", guard->name,
		 kind_names[kind - guard->kinds]);
}

static void kind_go_down(struct ucm_guard *guard, struct guard_kind *kind,
			 unsigned deadline_ms)
{
	int64_t now = ucm_monotonic_ms();

	kind->answers = 0;
	kind->try_ms = now + TRY_MS;
	if (atomic_load(&kind->down))
		return;
	if (kind->down_ms && now - kind->down_ms < SOON_MS)
		kind->needs = kind->needs < NEEDS_MOST / 2 ? 2 * kind->needs
							   : NEEDS_MOST;
	else
		kind->needs = NEEDS_FIRST;
	kind->down_ms = now;
	atomic_store(&kind->down, true);
	ucm_error("%s: no answer in %u ms: taken as gone for %s until it "
		  "answers",
		  guard->name, deadline_ms, kind_names[kind - guard->kinds]);
}

/* May a call be made now? */
static bool kind_admit(struct guard_kind *kind, struct ucm_call *call)
{
	if (!atomic_load(&kind->down))
		return true;
	if (kind->trying || ucm_monotonic_ms() < kind->try_ms)
		return false;
	kind->trying = call->tries = true;
	return true;
}

/* A call has ended in time. */
static void kind_answered(struct ucm_guard *guard, struct guard_kind *kind,
			  const struct ucm_call *call)
{
	if (!call->tries || !atomic_load(&kind->down))
		return;
	kind->trying = false;
	kind->try_ms = ucm_monotonic_ms() + TRY_MS;
	if (!kind->hung || ++kind->answers >= kind->needs)
		kind_come_up(guard, kind);
}

/* One that was given up has returned. */
static void kind_returned(struct ucm_guard *guard, struct guard_kind *kind,
			  const struct ucm_call *call)
{
	kind->hung--;
	if (call->tries)
		kind->trying = false;
	if (!kind->hung && atomic_load(&kind->down))
		kind_come_up(guard, kind);
}

/* ---- calls ---- */

static void guard_drop_ref(struct ucm_call *call, bool last)
{
	struct ucm_guard *guard = call->guard;

	if (!last)
		return;
	pthread_cond_destroy(&call->ended);
	free(call);
	if (guard)
		guard_put(guard);
}

void ucm_guard_put(struct ucm_call *call)
{
	bool last;

	if (!call->guard) { /* it was never made */
		guard_drop_ref(call, true);
		return;
	}
	pthread_mutex_lock(&call->guard->lock);
	last = --call->refs == 0;
	pthread_mutex_unlock(&call->guard->lock);
	guard_drop_ref(call, last);
}

static void guard_make_call(struct ucm_job *job)
{
	struct ucm_call *call = (struct ucm_call *)job;
	struct ucm_guard *guard = call->guard;
	struct guard_kind *kind = &guard->kinds[call->kind];
	bool late;

	call->run(call);
	pthread_mutex_lock(&guard->lock);
	call->done = true;
	late = call->abandoned;
	if (late)
		kind_returned(guard, kind, call);
	else
		kind_answered(guard, kind, call);
	pthread_cond_signal(&call->ended);
	pthread_mutex_unlock(&guard->lock);
	if (late)
		call->discard(call);
	ucm_guard_put(call);
}

/* Under the lock. */
static void guard_take_out(struct ucm_guard *guard, struct ucm_call *call,
			   enum ucm_call_kind kind, int refs)
{
	call->job.run = guard_make_call;
	call->guard = guard;
	call->kind = kind;
	call->refs = refs;
	guard->refs++;
}

/* Has its caller gone? What changes something is waited for nevertheless. */
static bool is_gone(struct ucm_call *call)
{
	call->gone = call->kind == UCM_CALL_READS && ucm_caller_is_gone &&
		     ucm_caller_is_gone(ucm_caller);
	return call->gone;
}

static bool guard_has_ended(struct ucm_guard *guard, struct ucm_call *call,
			    unsigned deadline_ms)
{
	int64_t end_ms = ucm_monotonic_ms() + deadline_ms, left_ms = deadline_ms;

	while (!call->done && left_ms > 0 && !is_gone(call)) {
		const struct timespec until = ucm_monotonic_in_ms(
			left_ms < ASK_MS ? (unsigned)left_ms : ASK_MS);

		pthread_cond_timedwait(&call->ended, &guard->lock, &until);
		left_ms = end_ms - ucm_monotonic_ms();
	}
	return call->done;
}

/* Under the lock. Nobody waits for it any more: it hangs in a thread, or no
 * thread had time for it. */
static void guard_give_up(struct ucm_guard *guard, struct guard_kind *kind,
			  struct ucm_call *call, bool added,
			  unsigned deadline_ms)
{
	if (!added || ucm_crew_take_back(kind->crew, &call->job)) {
		call->refs--; /* the thread's, which there will be none of */
		if (call->tries)
			kind->trying = false;
	} else {
		call->abandoned = true;
		kind->hung++;
	}
	if (!call->gone)
		kind_go_down(guard, kind, deadline_ms);
}

bool ucm_guard_call(struct ucm_guard *guard, enum ucm_call_kind which,
		    struct ucm_call *call)
{
	struct guard_kind *kind = &guard->kinds[which];
	unsigned ms = which == UCM_CALL_SYNCS
			      ? guard->deadline_ms * UCM_SYNC_DEADLINES
			      : guard->deadline_ms;
	bool added, done = false;

	ucm_cond_init_monotonic(&call->ended);
	pthread_mutex_lock(&guard->lock);
	if (kind_admit(kind, call)) {
		guard_take_out(guard, call, which, 2);
		added = ucm_crew_add(kind->crew, &call->job);
		done = added && guard_has_ended(guard, call, ms);
		if (!done)
			guard_give_up(guard, kind, call, added, ms);
	}
	pthread_mutex_unlock(&guard->lock);
	return done;
}

bool ucm_guard_send(struct ucm_guard *guard, struct ucm_call *call)
{
	bool sent;

	ucm_cond_init_monotonic(&call->ended);
	pthread_mutex_lock(&guard->lock);
	guard_take_out(guard, call, UCM_CALL_CLOSES, 1);
	sent = ucm_crew_add(guard->kinds[UCM_CALL_CLOSES].crew, &call->job);
	if (!sent) {
		guard->refs--;
		call->guard = NULL;
	}
	pthread_mutex_unlock(&guard->lock);
	return sent;
}

/* ---- threads that must not wait ---- */

_Thread_local bool ucm_must_not_wait;
_Thread_local bool (*ucm_caller_is_gone)(void *caller);
_Thread_local void *ucm_caller;

void ucm_guard_report_wait(const char *call)
{
	ucm_error("%s: made by a thread that serves all requests, and may wait "
		  "(a defect of ucmfs)",
		  call);
}
