/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw.h - which block of a directory, or of a space, may leave it next.
 *
 * Candidates are drawn at random from the members, and the policy says what each is
 * worth; a pool remembers the least.
 */
#ifndef UCM_DRAW_H
#define UCM_DRAW_H

#include "fs/store/motion/batch.h"
#include "fs/store/motion/motion.h"

/* Draws of which none may go, before it is said that nothing may. */
#define UCM_DRAW_VAIN 64u

struct ucm_drawing {
	struct ucm_store *store;
	struct ucm_victims *victims;
	unsigned dir;
	struct ucm_quota *quota; /* of its space, not of a directory; or NULL */
	bool is_lowest;
	bool leaves; /* no other is a candidate */
	bool spares; /* what is expected is none */
	bool in_slice; /* nor what other daemons evict (shared/hosts.h) */
	ucm_ref vain[UCM_DRAW_VAIN]; /* held, as was seen: not to be tried again */
	unsigned num_vain;
	unsigned num_learnt; /* of which another daemon was found to have used them */
	struct ucm_batch *batch; /* of blocks that go to a lower tier, or NULL */
};

struct ucm_drawing ucm_draw_from(struct ucm_store *store, unsigned dir,
				 enum ucm_eviction how);
/* What is evicted for a quota is lost, as in the lowest tier. */
struct ucm_drawing ucm_draw_from_space(struct ucm_store *store,
				       struct ucm_quota *quota);
/* Of the directory or space, for people. */
const char *ucm_draw_name(const struct ucm_drawing *drawing);

/* The block that goes next; it is no longer in the pool. peek: it stays. False: none
 * may go. */
bool ucm_draw_pick(struct ucm_drawing *drawing, bool peek, ucm_ref *ref_out,
		   double *worth_out);
/* The last child of a block may have gone. */
void ucm_draw_offer_parent(struct ucm_drawing *drawing,
			   const struct ucm_entry *child);

#endif
