/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold.c - what holds a block, and claims on it.
 *
 * The lock of an entry's shard of the index decides. Under it an open counts
 * itself, and a claim looks at the opens and sets LEAVING: so each of them sees
 * all that came before it. An open takes that lock in any case, to count the use.
 *
 * Opens are counted where they are known without a search: each open file has
 * its number with whoever opened it. Only a claim has to find it, by a chain of
 * the files with that reference; a file is put into its chain when it is opened
 * and taken out when it is closed. A number may fall at any time without a lock: a
 * claim that sees it too high is refused, as if it had come a moment before.
 *
 * Who unlinks a block by its name asks nobody, and a block may leave a place
 * where it is not read while an older reader still has it open there. What the file
 * takes until it is closed, the free space of the file system shows.
 *
 * Memory is taken by blocks that are open or expected, and by no others.
 */
#include <config.h>

#include "fs/store/find/hold.h"

#include <assert.h>
#include <errno.h>

#include "fs/store/find/find.h"

void ucm_holds_init(struct ucm_holds *holds)
{
	ucm_expected_init(&holds->expected);
	for (unsigned i = 0; i < UCM_OPEN_LOCKS; i++)
		pthread_mutex_init(&holds->locks[i], NULL);
}

void ucm_holds_fini(struct ucm_holds *holds)
{
	ucm_expected_fini(&holds->expected);
	for (unsigned i = 0; i < UCM_OPEN_LOCKS; i++)
		pthread_mutex_destroy(&holds->locks[i]);
}

/* ---- chains of open files ---- */

static unsigned hold_head(ucm_ref ref)
{
	return (unsigned)(ref * UINT64_C(0x9e3779b97f4a7c15) >> 52);
}
_Static_assert(UCM_OPEN_HEADS == 1u << 12, "as many as 12 bits number");

static pthread_mutex_t *hold_lock(struct ucm_holds *holds, unsigned head)
{
	return &holds->locks[head % UCM_OPEN_LOCKS];
}

static void hold_link(struct ucm_holds *holds, struct ucm_open *open,
		      ucm_ref ref)
{
	unsigned head = hold_head(ref);

	pthread_mutex_lock(hold_lock(holds, head));
	open->ref = ref;
	open->next = holds->heads[head];
	holds->heads[head] = open;
	pthread_mutex_unlock(hold_lock(holds, head));
}

static void hold_unlink(struct ucm_holds *holds, struct ucm_open *open)
{
	unsigned head = hold_head(open->ref);
	struct ucm_open **link = &holds->heads[head];

	pthread_mutex_lock(hold_lock(holds, head));
	while (*link != open)
		link = &(*link)->next;
	*link = open->next;
	open->ref = 0;
	pthread_mutex_unlock(hold_lock(holds, head));
}

static uint32_t hold_count_opens(struct ucm_holds *holds, ucm_ref ref)
{
	unsigned head = hold_head(ref);
	uint32_t num = 0;

	pthread_mutex_lock(hold_lock(holds, head));
	for (const struct ucm_open *open = holds->heads[head]; open;
	     open = open->next) {
		if (open->ref == ref)
			num += atomic_load_explicit(&open->num,
						    memory_order_acquire);
	}
	pthread_mutex_unlock(hold_lock(holds, head));
	return num;
}

/* ---- opens ---- */

struct hold_opening {
	struct ucm_store *store;
	struct ucm_open *open;
	bool is_use, refused;
};

static void edit_open(struct ucm_entry *entry, void *arg)
{
	struct hold_opening *opening = arg;

	opening->refused = entry->flags & UCM_ENTRY_LEAVING;
	if (opening->refused)
		return;
	atomic_fetch_add_explicit(&opening->open->num, 1, memory_order_relaxed);
	if (opening->is_use)
		ucm_store_use_entry(opening->store, entry);
}

int ucm_hold_open(struct ucm_store *store, struct ucm_open *open, ucm_ref ref,
		  bool is_use)
{
	struct hold_opening opening = {
	    .store = store, .open = open, .is_use = is_use};
	bool is_first = !open->ref;

	assert(is_first || open->ref == ref);
	if (is_first)
		hold_link(&store->holds, open, ref);
	if (ucm_index_edit(store->index, ref, edit_open, &opening) &&
	    !opening.refused)
		return 0;
	if (is_first)
		hold_unlink(&store->holds, open);
	return -ENOENT;
}

void ucm_hold_end(struct ucm_store *store, struct ucm_open *open)
{
	if (!open->ref)
		return;
	hold_unlink(&store->holds, open);
	atomic_store_explicit(&open->num, 0, memory_order_relaxed);
}

/* ---- the question ---- */

struct hold_question {
	struct ucm_holds *holds;
	ucm_ref ref;
	bool claim, leaf;
	int err;
	struct ucm_hold hold;
};

static int hold_verdict(const struct ucm_hold *hold)
{
	if (hold->leaving)
		return -ENOENT;
	if (hold->pinned)
		return -EPERM;
	return hold->opens || hold->being_written ? -EBUSY : 0;
}

static void edit_ask(struct ucm_entry *entry, void *arg)
{
	struct hold_question *question = arg;
	struct ucm_hold *hold = &question->hold;

	hold->opens = hold_count_opens(question->holds, question->ref);
	hold->pinned = entry->flags & UCM_ENTRY_PINNED;
	hold->being_written = entry->flags & UCM_ENTRY_WRITABLE;
	hold->leaving = entry->flags & UCM_ENTRY_LEAVING;
	question->err = hold_verdict(hold);
	if (!question->err && question->leaf && entry->children)
		question->err = -EBUSY;
	if (question->claim && !question->err)
		entry->flags |= UCM_ENTRY_LEAVING;
}

static bool hold_ask(struct ucm_store *store, ucm_ref ref,
		     struct hold_question *question)
{
	question->holds = &store->holds;
	question->ref = ref;
	return ucm_index_edit(store->index, ref, edit_ask, question);
}

int ucm_store_holds(struct ucm_store *store, ucm_ref ref, struct ucm_hold *out)
{
	struct hold_question question = {.claim = false};

	if (!hold_ask(store, ref, &question))
		return -ENOENT;
	*out = question.hold;
	return 0;
}

int ucm_store_claim(struct ucm_store *store, ucm_ref ref, bool leaf,
		    struct ucm_hold *out)
{
	struct hold_question question = {.claim = true, .leaf = leaf};

	if (!hold_ask(store, ref, &question))
		return -ENOENT;
	if (out && question.err != -ENOENT)
		*out = question.hold;
	return question.err;
}

void ucm_store_unclaim(struct ucm_store *store, ucm_ref ref)
{
	ucm_index_flag(store->index, ref, UCM_ENTRY_LEAVING, false);
}

/* ---- leaving one of two places ---- */

struct hold_leaving {
	struct hold_question question;
	struct ucm_store *store;
	unsigned dir;
};

/* What is said of the first file is not known of the other. */
#define UNSURE (UCM_ENTRY_DOUBT | UCM_ENTRY_UNREAD)

static int leave_verdict(const struct ucm_entry *entry,
			 const struct ucm_hold *hold, unsigned dir)
{
	bool is_first = dir == entry->dir;

	if (hold->leaving)
		return -ENOENT;
	if (!entry->copy || !ucm_entry_has_place(entry, dir))
		return -ESTALE;
	if (entry->flags & UNSURE || hold->being_written)
		return -EBUSY;
	return is_first && hold->opens ? -EBUSY : 0;
}

static void edit_leave(struct ucm_entry *entry, void *arg)
{
	struct hold_leaving *leaving = arg;
	struct hold_question *question = &leaving->question;

	edit_ask(entry, question);
	question->err = leave_verdict(entry, &question->hold, leaving->dir);
	if (!question->err)
		ucm_store_leave_entry(leaving->store, entry, leaving->dir);
}

int ucm_store_leave_place(struct ucm_store *store, ucm_ref ref, unsigned dir)
{
	struct hold_leaving leaving = {
	    .question = {.holds = &store->holds, .ref = ref},
	    .store = store,
	    .dir = dir,
	};

	if (!ucm_index_edit(store->index, ref, edit_leave, &leaving))
		return -ENOENT;
	return leaving.question.err;
}

/* ---- figures ---- */

static uint64_t hold_count_head(struct ucm_holds *holds, unsigned head)
{
	uint64_t num = 0;

	pthread_mutex_lock(hold_lock(holds, head));
	for (const struct ucm_open *open = holds->heads[head]; open;
	     open = open->next)
		num += atomic_load(&open->num) > 0;
	pthread_mutex_unlock(hold_lock(holds, head));
	return num;
}

uint64_t ucm_store_count_open(struct ucm_store *store)
{
	uint64_t num = 0;

	for (unsigned head = 0; head < UCM_OPEN_HEADS; head++)
		num += hold_count_head(&store->holds, head);
	return num;
}
