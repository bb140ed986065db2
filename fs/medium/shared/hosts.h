/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts.h - the daemons, on any hosts, that use one medium at the same time.
 *
 * A medium is shared once it has the folder .ucmfs/hosts: then no daemon locks it or
 * owns it. Each has a file in there, its heart, named after its host, boot and start,
 * and sets its mtime again and again. A heart that has stood still while ours beat
 * for UCM_HOSTS_DEAD_NS is removed: by the server's times alone, seen at two looks.
 *
 * The buckets are shared out among the hearts that live (rendezvous hashing), and
 * each daemon evicts in its slice alone. Nothing but too much or too little room
 * depends on that: whatever two daemons do to one block at the same time, its name
 * leads to its whole file or to none.
 *
 * Nothing on a shared medium is suspect after a crash, as each file is on disk before
 * it gets its name. So there is no state file, no snapshot and no checkpoint.
 */
#ifndef UCM_HOSTS_H
#define UCM_HOSTS_H

#include "fs/medium/medium.h"

#define UCM_HOSTS UCM_TREE_OWN "/hosts"
#define UCM_HOSTS_DEAD_NS INT64_C(12000000000) /* six beats */

/* One other heart. */
struct ucm_host {
	char name[UCM_TEMP_NAME_MAX];
	int64_t beat_ns; /* its last beat that was seen, */
	int64_t at_ns;   /* and ours when it was seen first */
};

struct ucm_hosts {
	char path[UCM_TEMP_PATH_MAX]; /* of our heart; "": we only read */
	const char *name;	      /* its end */
	_Atomic int64_t due_ms;	      /* the next beat; one thread at a time: */
	int64_t look_due_ms;
	struct ucm_host *others; /* that live */
	unsigned num;
	_Atomic unsigned living;   /* with us */
	_Atomic int64_t beat_ns;   /* our last beat: the server's time */
	_Atomic uint64_t slice[4]; /* a bit for each bucket that is ours */
};

/* Its heart beats from now on; the folder is there. A medium that is only read has
 * none. The medium frees hosts with its own memory. */
int ucm_hosts_join(struct ucm_medium *medium);
void ucm_hosts_leave(struct ucm_medium *medium);

/* UCM_BEAT_CHECK: -EROFS, we were taken for dead, and have no slice until the next
 * beat. */
int ucm_hosts_beat(struct ucm_medium *medium, enum ucm_beat what);

/* So old is what the server had at that time. */
int64_t ucm_hosts_age_s(const struct ucm_medium *medium,
			const struct timespec *time);

/* A medium that no other daemon uses, or none did so far, becomes shared. -EBUSY:
 * something in it may be torn; error has more. */
int ucm_medium_share(struct ucm_medium *medium, struct ucm_error *error);

/* Does this daemon evict there? */
static inline bool ucm_hosts_is_ours(const struct ucm_medium *medium,
				     unsigned bucket)
{
	return !medium->hosts ||
	       atomic_load(&medium->hosts->slice[bucket / 64]) >> bucket % 64 & 1;
}

/* Daemons that evict there, by turns. */
static inline unsigned ucm_hosts_living(const struct ucm_medium *medium)
{
	return medium->hosts ? atomic_load(&medium->hosts->living) : 1;
}

#endif
