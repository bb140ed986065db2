/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iobudget.c - how many bytes a loader may begin, and have under way.
 *
 * Two limits of each kind: the loader's own options, and its share of the node's
 * budget. A share is worked out by a thread (ucm_iobudget_follow()) while the
 * loader does anything, from what all sharers want (sharers.h); nobody who reads
 * or writes waits for others of the node, or for the mount. When the mount's daemon
 * goes its memory stays, and the sharers go on sharing it, until a new one is
 * found.
 *
 * What is wanted is told as it is: all there is, while something had to wait for
 * it not long ago; else what was used of late, and the others have the rest.
 *
 * The mount is asked by another thread (node_watch.c), which may hang with the
 * daemon, so that the others hear of this loader meanwhile. Where there is
 * no memory to be had from it, it is asked again and again.
 *
 * Order within the loader: what somebody waits for first. Loads beforehand and
 * saves are owed a part of its bytes, and a turn after a time (share.h), as in
 * the engines, which know their own pieces alone. Who was refused asks again
 * after a few milliseconds; who does not has given up.
 *
 * The lock guards everything but what is the thread's: region, sharers.
 */
#include <config.h>

#include "gpu/load/iobudget.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "gpu/load/fair.h"
#include "gpu/load/node_watch.h"
#include "gpu/load/share.h"

#define MS INT64_C(1000000)
#define STEP_NS (10 * MS)      /* of the thread */
#define LOOK_NS (200 * MS)     /* for a new mount, */
#define IDLE_LOOK_NS (500 * MS) /* if nothing is shared */
#define AGAIN_NS (2 * MS)      /* somebody is to come first, or to end */
#define WAITS_NS (50 * MS)     /* who was refused, and has not asked since */
#define SHORT_NS (100 * MS)    /* since something had to wait */
#define SMOOTH_NS (200 * MS)   /* over which use is averaged */
#define SAVE_PART 7u
#define LOW_PART 15u
#define SAVE_AGE_NS (100 * MS)
#define LOW_AGE_NS (500 * MS)

/* Of a class that is not the first. */
static const struct {
	unsigned part; /* a byte for so many of the others */
	int64_t age_ns;
} terms[UCM_IOBUDGET_CLASSES] = {
	[UCM_IOBUDGET_LOW] = { LOW_PART, LOW_AGE_NS },
	[UCM_IOBUDGET_SAVE] = { SAVE_PART, SAVE_AGE_NS },
};

struct ucm_iobudget {
	pthread_mutex_t lock;
	struct ucm_limits own, node, share; /* share: ours of the node's */
	struct ucm_bucket own_bucket, node_bucket;
	uint64_t in_flight, bytes; /* bytes: begun, ever */
	struct {
		struct ucm_share owed;
		uint64_t bytes; /* that it was refused, */
		int64_t at_ns;  /* and when */
	} waits[UCM_IOBUDGET_CLASSES];
	int64_t short_rate_ns, short_flight_ns; /* of the node's */
	int64_t used_ns;
	double rate; /* of late */
	uint64_t rate_bytes;
	int64_t rate_ns;
	/* the thread's */
	bool shared; /* there are sharers */
	struct ucm_sharers sharers;
	struct ucm_node_budget region;
	char *mount;
	struct ucm_node_watch *watch;
	int64_t looked_ns;
	pthread_t thread;
	pthread_cond_t wake;
	bool running, follows, stopping;
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

/* When there will be some, 0: now. */
static int64_t until_rate(struct ucm_iobudget *budget, int64_t now_ns)
{
	int64_t own = 0, node = 0;

	if (budget->own.rate) {
		ucm_bucket_fill(&budget->own_bucket, budget->own.rate, now_ns);
		own = ucm_bucket_until(&budget->own_bucket, budget->own.rate);
	}
	if (budget->node.rate) {
		ucm_bucket_fill(&budget->node_bucket, budget->share.rate,
				now_ns);
		node = ucm_bucket_until(&budget->node_bucket,
					budget->share.rate);
	}
	if (node)
		budget->short_rate_ns = now_ns;
	return own > node ? own : node;
}

/* What is longer than a limit goes alone. */
static bool fits(uint64_t in_flight, uint64_t bytes, uint64_t limit)
{
	return !in_flight ||
	       (in_flight <= limit && bytes <= limit - in_flight);
}

static bool has_room(struct ucm_iobudget *budget, uint64_t bytes,
		     int64_t now_ns)
{
	bool node = !budget->node.in_flight ||
		    fits(budget->in_flight, bytes, budget->share.in_flight);

	if (!node)
		budget->short_flight_ns = now_ns;
	return node && (!budget->own.in_flight ||
			fits(budget->in_flight, bytes,
			     budget->own.in_flight));
}

/* 0: it may be begun. */
static int64_t until_begin(struct ucm_iobudget *budget,
			   enum ucm_iobudget_class class, uint64_t bytes,
			   int64_t now_ns)
{
	int64_t until = until_rate(budget, now_ns);

	if (until || (has_turn(budget, class, now_ns) &&
		      has_room(budget, bytes, now_ns)))
		return until;
	return AGAIN_NS;
}

/* ---- taking ---- */

static void use(struct ucm_iobudget *budget, int64_t now_ns)
{
	budget->used_ns = now_ns;
	if (budget->running && !budget->follows) {
		budget->follows = true;
		pthread_cond_signal(&budget->wake);
	}
}

static void refuse(struct ucm_iobudget *budget, enum ucm_iobudget_class class,
		   uint64_t bytes, int64_t now_ns)
{
	is_due(budget, class, now_ns); /* it may have given up meanwhile */
	budget->waits[class].bytes = bytes;
	budget->waits[class].at_ns = now_ns;
	ucm_share_wait(&budget->waits[class].owed,
		       class != UCM_IOBUDGET_DEMAND, now_ns);
}

static void charge(struct ucm_iobudget *budget, uint64_t bytes)
{
	budget->bytes += bytes;
	ucm_bucket_take(&budget->own_bucket, bytes);
	ucm_bucket_take(&budget->node_bucket, bytes);
}

bool ucm_iobudget_take(struct ucm_iobudget *budget,
		       enum ucm_iobudget_class class, uint64_t bytes,
		       int64_t now_ns, int64_t *until_ns)
{
	int64_t until;

	if (!budget || !bytes)
		return true;
	pthread_mutex_lock(&budget->lock);
	use(budget, now_ns);
	until = until_begin(budget, class, bytes, now_ns);
	if (until) {
		refuse(budget, class, bytes, now_ns);
		/* a share may grow meanwhile */
		*until_ns = now_ns + (until < STEP_NS ? until : STEP_NS);
	} else {
		charge(budget, bytes);
	}
	pthread_mutex_unlock(&budget->lock);
	return !until;
}

void ucm_iobudget_begin(struct ucm_iobudget *budget,
			enum ucm_iobudget_class class, uint64_t bytes,
			int64_t now_ns)
{
	if (!budget || !bytes)
		return;
	pthread_mutex_lock(&budget->lock);
	count_turn(budget, class, bytes, now_ns);
	pthread_mutex_unlock(&budget->lock);
}

void ucm_iobudget_give_back(struct ucm_iobudget *budget, uint64_t bytes)
{
	if (!budget)
		return;
	pthread_mutex_lock(&budget->lock);
	budget->bytes -= bytes;
	ucm_bucket_give(&budget->own_bucket, bytes);
	ucm_bucket_give(&budget->node_bucket, bytes);
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
	if (!budget)
		return;
	pthread_mutex_lock(&budget->lock);
	budget->in_flight -= bytes;
	pthread_mutex_unlock(&budget->lock);
}

/* ---- the others of the node ---- */

static void average(struct ucm_iobudget *budget, int64_t now_ns)
{
	double passed = (double)(now_ns - budget->rate_ns);
	/* less than nothing, if more were given back than begun */
	int64_t bytes = (int64_t)(budget->bytes - budget->rate_bytes);
	double now;

	if (passed <= 0)
		return;
	now = (double)bytes / passed * 1e9;
	budget->rate += (now - budget->rate) * passed /
			(passed + (double)SMOOTH_NS);
	budget->rate_bytes = budget->bytes;
	budget->rate_ns = now_ns;
}

static uint64_t rate_of_late(const struct ucm_iobudget *budget)
{
	if (budget->rate <= 0)
		return 0;
	return budget->rate < 0x1p63 ? (uint64_t)budget->rate : UCM_FAIR_ALL;
}

/* Under the lock; false: nothing. */
static bool find_wants(struct ucm_iobudget *budget, int64_t now_ns,
		       struct ucm_wants *out)
{
	average(budget, now_ns);
	*out = (struct ucm_wants){
		.rate = now_ns - budget->short_rate_ns < SHORT_NS
				? UCM_FAIR_ALL
				: rate_of_late(budget),
		.in_flight = now_ns - budget->short_flight_ns < SHORT_NS
				     ? UCM_FAIR_ALL
				     : budget->in_flight,
		.bytes = budget->bytes,
	};
	return budget->in_flight || now_ns - budget->used_ns < 2 * SMOOTH_NS;
}

static struct ucm_limits share_of(struct ucm_iobudget *budget, int64_t now_ns)
{
	struct ucm_limits share = budget->node;

	if (!budget->shared)
		return share;
	ucm_sharers_share(&budget->sharers, now_ns, &share.rate,
			  &share.in_flight);
	share.rate = share.rate ? share.rate : 1;
	return share;
}

bool ucm_iobudget_follow(struct ucm_iobudget *budget, int64_t now_ns)
{
	struct ucm_limits share;
	struct ucm_wants wants;
	bool active;

	/* a place first, so that what is said can be heard */
	share = share_of(budget, now_ns);
	pthread_mutex_lock(&budget->lock);
	active = find_wants(budget, now_ns, &wants);
	if (budget->node.rate) /* at the rate that was */
		ucm_bucket_fill(&budget->node_bucket, budget->share.rate,
				now_ns);
	budget->share = share;
	budget->follows = active;
	pthread_mutex_unlock(&budget->lock);
	if (budget->shared)
		ucm_sharers_say(&budget->sharers, active ? &wants : NULL);
	return active;
}

/* ---- the mount ---- */

static uint64_t random_id(void)
{
	uint64_t id = 0;

	if (getrandom(&id, sizeof(id), GRND_NONBLOCK) != sizeof(id) || !id)
		id = (uint64_t)ucm_monotonic_ns() | 1;
	return id;
}

static void set_node(struct ucm_iobudget *budget, const struct ucm_limits *node,
		     int64_t now_ns)
{
	pthread_mutex_lock(&budget->lock);
	budget->node = budget->share = *node;
	ucm_bucket_init(&budget->node_bucket, node->rate, now_ns);
	pthread_mutex_unlock(&budget->lock);
}

/* The region is the budget's from now on. */
static void join(struct ucm_iobudget *budget, struct ucm_node_budget *region,
		 int64_t now_ns)
{
	if (region->memory)
		ucm_sharers_init(&budget->sharers, region->memory, random_id(),
				 now_ns);
	if (region->why)
		ucm_warning("%s: the node's budget cannot be shared: %s; until "
			    "it can this loader takes all of it for itself",
			    budget->mount, strerror(-region->why));
	budget->shared = region->memory;
	budget->region = *region;
	set_node(budget, &region->limits, now_ns);
}

static void leave_mount(struct ucm_iobudget *budget)
{
	if (budget->shared)
		ucm_sharers_leave(&budget->sharers);
	budget->shared = false;
	ucm_node_budget_close(&budget->region);
}

/* Is it another budget, and none that is worse than what we have? Of one that
 * cannot be shared just now the old memory, which others share, is better. */
static bool is_news(const struct ucm_iobudget *budget,
		    const struct ucm_node_budget *found)
{
	if (found->index)
		return ucm_node_budget_lives(found);
	if (budget->shared)
		return !found->why;
	return found->limits.rate != budget->node.rate ||
	       found->limits.in_flight != budget->node.in_flight;
}

/* The daemon has gone, or there is no index that would say so: what is there
 * now? The old memory is shared until then. */
static void look_for_mount(struct ucm_iobudget *budget, int64_t now_ns)
{
	struct ucm_node_budget found;

	if (ucm_node_budget_lives(&budget->region))
		return;
	if (ucm_node_watch_take(budget->watch, &found)) {
		if (is_news(budget, &found)) {
			leave_mount(budget);
			join(budget, &found, now_ns);
		} else {
			ucm_node_budget_close(&found);
		}
	} else if (now_ns - budget->looked_ns >=
		   (budget->shared ? LOOK_NS : IDLE_LOOK_NS)) {
		budget->looked_ns = now_ns;
		ucm_node_watch_ask(budget->watch);
	}
}

static void sleep_for(struct ucm_iobudget *budget, int64_t ns)
{
	int64_t end_ns = ucm_monotonic_ns() + ns;
	const struct timespec end = { .tv_sec = end_ns / 1000000000,
				      .tv_nsec = end_ns % 1000000000 };

	pthread_cond_timedwait(&budget->wake, &budget->lock, &end);
}

static void *budget_main(void *arg)
{
	struct ucm_iobudget *budget = arg;

	pthread_mutex_lock(&budget->lock);
	while (!budget->stopping) {
		if (!budget->follows) {
			pthread_cond_wait(&budget->wake, &budget->lock);
			continue;
		}
		pthread_mutex_unlock(&budget->lock);
		look_for_mount(budget, ucm_monotonic_ns());
		ucm_iobudget_follow(budget, ucm_monotonic_ns());
		pthread_mutex_lock(&budget->lock);
		if (!budget->stopping && budget->follows)
			sleep_for(budget, budget->shared ? STEP_NS : LOOK_NS);
	}
	pthread_mutex_unlock(&budget->lock);
	return NULL;
}

/* ---- open ---- */

static struct ucm_iobudget *budget_new(const struct ucm_limits *own,
				     int64_t now_ns)
{
	struct ucm_iobudget *budget = calloc(1, sizeof(*budget));

	if (!budget)
		return NULL;
	budget->own = *own;
	ucm_bucket_init(&budget->own_bucket, own->rate, now_ns);
	budget->rate_ns = now_ns;
	budget->used_ns = now_ns - 2 * SMOOTH_NS;
	budget->short_rate_ns = budget->short_flight_ns = now_ns - SHORT_NS;
	pthread_mutex_init(&budget->lock, NULL);
	ucm_cond_init_monotonic(&budget->wake);
	return budget;
}

struct ucm_iobudget *ucm_iobudget_of(const struct ucm_limits *own,
				 const struct ucm_limits *node,
				 struct ucm_sharers_memory *memory,
				 int64_t now_ns)
{
	struct ucm_iobudget *budget = budget_new(own, now_ns);

	if (!budget)
		return NULL;
	set_node(budget, node, now_ns);
	if (memory)
		ucm_sharers_init(&budget->sharers, memory, random_id(), now_ns);
	budget->shared = memory;
	return budget;
}

/* Signals are the program's business, not this thread's. */
static int start_thread(struct ucm_iobudget *budget)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&budget->thread, NULL, budget_main, budget);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	budget->running = !err;
	return -err;
}

static int join_mount(struct ucm_iobudget *budget, const char *mount)
{
	struct ucm_node_budget region;
	int err = ucm_node_watch_opens(mount, &region);

	if (err)
		return err;
	budget->mount = realpath(mount, NULL);
	err = -errno;
	if (budget->mount) {
		budget->watch = ucm_node_watch_open(budget->mount);
		err = -ENOMEM;
	}
	if (!budget->watch) {
		ucm_node_budget_close(&region);
		return err;
	}
	join(budget, &region, ucm_monotonic_ns());
	return start_thread(budget);
}

int ucm_iobudget_open(const struct ucm_limits *own, const char *mount,
		    struct ucm_iobudget **out, struct ucm_error *error)
{
	struct ucm_iobudget *budget;
	int err;

	*out = NULL;
	if (!mount && !own->rate && !own->in_flight)
		return 0;
	budget = budget_new(own, ucm_monotonic_ns());
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
	if (budget->running) {
		pthread_mutex_lock(&budget->lock);
		budget->stopping = true;
		pthread_cond_signal(&budget->wake);
		pthread_mutex_unlock(&budget->lock);
		pthread_join(budget->thread, NULL);
	}
	ucm_node_watch_close(budget->watch);
	leave_mount(budget);
	pthread_mutex_destroy(&budget->lock);
	pthread_cond_destroy(&budget->wake);
	free(budget->mount);
	free(budget);
}
