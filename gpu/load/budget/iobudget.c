/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iobudget.c - how many bytes a loader may begin, and have in flight.
 *
 * There are three limits: the rate of the node, which all loaders on the mount keep
 * together; a rate of the loader; and the bytes that the loader has in flight.
 *
 * The node's rate is a clock (gcra.h) in memory that the daemon passes to every
 * loader. A loader reserves time on it, one slice of UCM_IOBUDGET_SLICE_NS at a time:
 *
 *	none --- reserve ---> queued --- the slice's time has come ---> credit
 *
 * A loader that has credit may begin a piece. If the piece costs more than the
 * credit, the loader pays the rest slice by slice before it begins the next one;
 * also while it has nothing to begin, so that its next load need not wait for that. So
 * loaders are served in the order in which they ask, busy ones get equal parts
 * whatever the size of their pieces, and a loader that owes nothing waits for one
 * slice of each of the others. With whole pieces in place of slices a small load
 * would wait for 4 MiB of each, 20 ms at 200 MB/s, and the bound beyond which a clock
 * is garbage would depend on the largest piece and the number of loaders.
 *
 * A killed process needs no cleaning up: its slice passes unused, and what it owed
 * is never paid, which is one piece more than the rate gives.
 *
 * Everyone whom the daemon serves can write to the memory. A clock that is kept in
 * the past lifts the limit; one that is kept ahead makes each slice wait for
 * UCM_GCRA_AHEAD_NS, which leaves a loader a thousandth of the rate. Both last as long
 * as the writer goes on, and twice UCM_GCRA_AHEAD_NS after it at most (what is
 * reserved passes, then what was written). The limits themselves
 * are not in the memory: the daemon states them in its hello. A loader in another
 * time namespace has another CLOCK_MONOTONIC and is such a writer to the others, so
 * the loaders of a node must be in the same one.
 *
 * When the daemon has ended, which is seen without a call, its memory stays and the
 * loaders go on with it. While a loader is busy, an engine then has a thread for
 * calls look for the next daemon; there is no other thread.
 *
 * Bytes in flight are not counted in shared memory, where those of a killed process
 * would stay: the daemon's inflight is a limit of each loader.
 *
 * Order within the loader: what a caller waits for comes first. Loads beforehand and
 * saves are owed a part of its bytes, and a turn after a time (share.h), as in the
 * engines, which know their own pieces alone. A refused caller asks again within a
 * few milliseconds; one that does not is no longer waited for.
 *
 * The lock guards all of it.
 */
#include <config.h>

#include "gpu/load/budget/iobudget.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/log.h"
#include "fs/index/budget_layout.h"
#include "fs/reader/reader.h"
#include "gpu/load/budget/gcra.h"
#include "gpu/load/budget/share.h"

#define MS INT64_C(1000000)
#define ASK_NS (10 * MS)   /* a refused caller is to ask again within this time, */
#define WAITS_NS (50 * MS) /* and counts as waiting for so long */
#define AGAIN_NS (2 * MS)  /* another comes first, or has to end */
#define LOOK_NS (200 * MS) /* between two looks for a daemon */

/* Of a class that is not the first. */
static const struct {
	unsigned part; /* a byte for so many of the others */
	int64_t age_ns;
} terms[UCM_IOBUDGET_CLASSES] = {
	[UCM_IOBUDGET_LOW] = { UCM_LOW_PART, UCM_LOW_AGE_NS },
	[UCM_IOBUDGET_SAVE] = { UCM_SAVE_PART, UCM_SAVE_AGE_NS },
};

struct ucm_iobudget {
	pthread_mutex_t lock;
	struct ucm_limits own;
	_Atomic int64_t own_tat_ns; /* the clock of its own rate */
	uint64_t in_flight;
	struct {
		struct ucm_share owed;
		uint64_t bytes; /* that it was refused, */
		int64_t at_ns;  /* and when */
	} waits[UCM_IOBUDGET_CLASSES];
	/* Of the node. */
	struct ucm_node_budget node; /* as the last daemon had it */
	_Atomic int64_t alone_tat_ns; /* the clock if no memory can be shared */
	int64_t credit_ns;            /* below 0: a debt */
	bool queued;                  /* a slice is reserved, for this time: */
	int64_t slice_ns;
	char *mount; /* NULL: no node */
	bool looking;
	int64_t looked_ns;
};

/* ---- whose turn it is ---- */

static bool waits_now(const struct ucm_iobudget *budget,
		      enum ucm_iobudget_class class, int64_t now_ns)
{
	return budget->waits[class].bytes &&
	       now_ns - budget->waits[class].at_ns < WAITS_NS;
}

static bool is_due(struct ucm_iobudget *budget, enum ucm_iobudget_class class,
		   int64_t now_ns)
{
	struct ucm_share *owed = &budget->waits[class].owed;

	ucm_share_wait(owed, waits_now(budget, class, now_ns), now_ns);
	return ucm_share_is_due(owed, budget->waits[class].bytes,
				terms[class].age_ns, now_ns);
}

static bool has_turn(struct ucm_iobudget *budget, enum ucm_iobudget_class class,
		     int64_t now_ns)
{
	bool low = is_due(budget, UCM_IOBUDGET_LOW, now_ns);
	bool save = is_due(budget, UCM_IOBUDGET_SAVE, now_ns);

	switch (class) {
	case UCM_IOBUDGET_DEMAND: return !low && !save;
	case UCM_IOBUDGET_LOW:
		return low || !waits_now(budget, UCM_IOBUDGET_DEMAND, now_ns);
	case UCM_IOBUDGET_SAVE:
		return save || !waits_now(budget, UCM_IOBUDGET_DEMAND, now_ns);
	}
	return true;
}

static void count_turn(struct ucm_iobudget *budget,
		       enum ucm_iobudget_class class, uint64_t bytes,
		       int64_t now_ns)
{
	for (unsigned i = UCM_IOBUDGET_LOW; i < UCM_IOBUDGET_CLASSES; i++) {
		if (i != class)
			ucm_share_owe(&budget->waits[i].owed, bytes,
				      terms[i].part);
	}
	if (class == UCM_IOBUDGET_DEMAND)
		return; /* others of it may wait */
	ucm_share_take(&budget->waits[class].owed, bytes, now_ns);
	budget->waits[class].bytes = 0;
}

/* ---- what there is ---- */

/* When its own rate gives some, 0: now. */
static int64_t until_own(const struct ucm_iobudget *budget, int64_t now_ns)
{
	int64_t tat_ns = atomic_load(&budget->own_tat_ns);

	return budget->own.rate && tat_ns > now_ns ? tat_ns - now_ns : 0;
}

static _Atomic int64_t *node_clock(struct ucm_iobudget *budget)
{
	return budget->node.memory ? &budget->node.memory->tat_ns
				   : &budget->alone_tat_ns;
}

/* When there is credit, or it is known when there will be, 0: now. */
static int64_t until_credit(struct ucm_iobudget *budget, int64_t now_ns)
{
	while (budget->node.limits.rate && budget->credit_ns <= 0) {
		if (!budget->queued)
			budget->slice_ns = ucm_gcra_reserve(
				node_clock(budget), UCM_IOBUDGET_SLICE_NS,
				now_ns);
		budget->queued = budget->slice_ns > now_ns;
		if (budget->queued)
			return budget->slice_ns - now_ns;
		budget->credit_ns += UCM_IOBUDGET_SLICE_NS;
	}
	return 0;
}

static int64_t until_rate(struct ucm_iobudget *budget, int64_t now_ns)
{
	int64_t own = until_own(budget, now_ns);

	return own ? own : until_credit(budget, now_ns);
}

/* What is longer than a limit goes alone. */
static bool fits(uint64_t in_flight, uint64_t bytes, uint64_t limit)
{
	return !limit || !in_flight ||
	       (in_flight <= limit && bytes <= limit - in_flight);
}

static bool has_room(const struct ucm_iobudget *budget, uint64_t bytes)
{
	return fits(budget->in_flight, bytes, budget->own.in_flight) &&
	       fits(budget->in_flight, bytes, budget->node.limits.in_flight);
}

/* 0: it may be begun. */
static int64_t until_begin(struct ucm_iobudget *budget,
			   enum ucm_iobudget_class class, uint64_t bytes,
			   int64_t now_ns)
{
	int64_t until = until_rate(budget, now_ns);

	if (until || (has_turn(budget, class, now_ns) &&
		      has_room(budget, bytes)))
		return until;
	return AGAIN_NS;
}

/* ---- taking ---- */

static void refuse(struct ucm_iobudget *budget, enum ucm_iobudget_class class,
		   uint64_t bytes, int64_t now_ns)
{
	is_due(budget, class, now_ns); /* it may have given up meanwhile */
	budget->waits[class].bytes = bytes;
	budget->waits[class].at_ns = now_ns;
	ucm_share_wait(&budget->waits[class].owed,
		       class != UCM_IOBUDGET_DEMAND, now_ns);
}

static void charge(struct ucm_iobudget *budget, uint64_t bytes, int64_t now_ns)
{
	const uint64_t own = budget->own.rate, node = budget->node.limits.rate;

	if (own)
		ucm_gcra_reserve(&budget->own_tat_ns,
				 ucm_gcra_cost(bytes, own), now_ns);
	if (node)
		budget->credit_ns -= ucm_gcra_cost(bytes, node);
}

bool ucm_iobudget_take(struct ucm_iobudget *budget,
		       enum ucm_iobudget_class class, uint64_t bytes,
		       int64_t now_ns, int64_t *until_ns)
{
	int64_t until;

	if (!budget || !bytes)
		return true;
	pthread_mutex_lock(&budget->lock);
	until = until_begin(budget, class, bytes, now_ns);
	if (until) {
		refuse(budget, class, bytes, now_ns);
		*until_ns = now_ns + (until < ASK_NS ? until : ASK_NS);
	} else {
		charge(budget, bytes, now_ns);
	}
	pthread_mutex_unlock(&budget->lock);
	return !until;
}

int64_t ucm_iobudget_pay(struct ucm_iobudget *budget, int64_t now_ns)
{
	int64_t until;

	if (!budget)
		return 0;
	pthread_mutex_lock(&budget->lock);
	until = until_credit(budget, now_ns);
	pthread_mutex_unlock(&budget->lock);
	return until ? now_ns + until : 0;
}

void ucm_iobudget_begin(struct ucm_iobudget *budget,
			enum ucm_iobudget_class class, uint64_t bytes,
			int64_t now_ns)
{
	if (!budget || !bytes)
		return;
	pthread_mutex_lock(&budget->lock);
	count_turn(budget, class, bytes, now_ns);
	if (budget->node.memory)
		atomic_fetch_add_explicit(&budget->node.memory->bytes, bytes,
					  memory_order_relaxed);
	pthread_mutex_unlock(&budget->lock);
}

/* Credit is saved up no longer than unused time is. */
static void give_credit(struct ucm_iobudget *budget, int64_t ns)
{
	budget->credit_ns += ns;
	if (budget->credit_ns > UCM_GCRA_BURST_NS)
		budget->credit_ns = UCM_GCRA_BURST_NS;
}

void ucm_iobudget_give_back(struct ucm_iobudget *budget, uint64_t bytes)
{
	if (!budget)
		return;
	pthread_mutex_lock(&budget->lock);
	if (budget->own.rate)
		atomic_fetch_sub(&budget->own_tat_ns,
				 ucm_gcra_cost(bytes, budget->own.rate));
	if (budget->node.limits.rate)
		give_credit(budget,
			    ucm_gcra_cost(bytes, budget->node.limits.rate));
	pthread_mutex_unlock(&budget->lock);
}

void ucm_iobudget_enter(struct ucm_iobudget *budget, uint64_t bytes)
{
	if (!budget)
		return;
	pthread_mutex_lock(&budget->lock);
	budget->in_flight += bytes;
	pthread_mutex_unlock(&budget->lock);
}

void ucm_iobudget_leave(struct ucm_iobudget *budget, uint64_t bytes)
{
	ucm_iobudget_enter(budget, -bytes);
}

/* ---- the daemon ---- */

/* The budget is ours from now on. */
static void use_node(struct ucm_iobudget *budget,
		     const struct ucm_node_budget *node)
{
	if (node->why)
		ucm_warning("%s: the node's rate cannot be shared: %s; until "
			    "it can this loader takes all of it for itself",
			    budget->mount, strerror(-node->why));
	budget->node = *node;
	budget->credit_ns = 0;
	budget->queued = false;
}

/* Of one that cannot be shared just now the old memory, which others share, is
 * better; and if there is none, there is nothing new to say. */
static bool is_worse(const struct ucm_node_budget *found,
		     const struct ucm_node_budget *old)
{
	return found->why &&
	       (old->memory || (found->limits.rate == old->limits.rate &&
				found->limits.in_flight ==
					old->limits.in_flight));
}

bool ucm_iobudget_must_look(struct ucm_iobudget *budget, int64_t now_ns)
{
	bool must;

	if (!budget || !budget->mount)
		return false;
	pthread_mutex_lock(&budget->lock);
	must = !budget->looking && now_ns - budget->looked_ns >= LOOK_NS &&
	       !ucm_node_budget_lives(&budget->node);
	if (must) {
		budget->looking = true;
		budget->looked_ns = now_ns;
	}
	pthread_mutex_unlock(&budget->lock);
	return must;
}

void ucm_iobudget_look(struct ucm_iobudget *budget)
{
	struct ucm_node_budget found, unused;
	int err = ucm_node_budget_open(budget->mount, &found);

	pthread_mutex_lock(&budget->lock);
	budget->looking = false;
	if (err) {
		unused = (struct ucm_node_budget){ .memory = NULL };
	} else if (is_worse(&found, &budget->node)) {
		unused = found;
	} else {
		unused = budget->node;
		use_node(budget, &found);
	}
	pthread_mutex_unlock(&budget->lock);
	ucm_node_budget_close(&unused);
}

/* ---- open ---- */

static struct ucm_iobudget *budget_new(const struct ucm_limits *own)
{
	struct ucm_iobudget *budget = calloc(1, sizeof(*budget));

	if (!budget)
		return NULL;
	budget->own = *own;
	pthread_mutex_init(&budget->lock, NULL);
	return budget;
}

static int join_mount(struct ucm_iobudget *budget, const char *mount)
{
	struct ucm_node_budget node;
	int err = ucm_node_budget_open(mount, &node);

	if (err)
		return err;
	budget->mount = ucm_reader_absolute(mount);
	if (!budget->mount) {
		err = -errno;
		ucm_node_budget_close(&node);
		return err;
	}
	use_node(budget, &node);
	return 0;
}

int ucm_iobudget_open(const struct ucm_limits *own, const char *mount,
		    struct ucm_iobudget **out, struct ucm_error *error)
{
	struct ucm_iobudget *budget;
	int err;

	*out = NULL;
	if (!mount && !own->rate && !own->in_flight)
		return 0;
	budget = budget_new(own);
	err = budget ? 0 : -ENOMEM;
	if (!err && mount)
		err = join_mount(budget, mount);
	if (err) {
		ucm_iobudget_close(budget);
		return ucm_error_set(error, err, "%s: the node's budget: %s",
				     mount ? mount : "no mount",
				     strerror(-err));
	}
	*out = budget;
	return 0;
}

void ucm_iobudget_close(struct ucm_iobudget *budget)
{
	if (!budget)
		return;
	ucm_node_budget_close(&budget->node);
	pthread_mutex_destroy(&budget->lock);
	free(budget->mount);
	free(budget);
}
