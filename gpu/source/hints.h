/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hints.h - hints to a daemon about its blocks.
 *
 * By touch (ucm-serve(7)) a daemon learns which ones were found and will be read
 * soon, by warm, which ones are better copied up before that, and by verified, which
 * ones need not be verified again. Hints, no more: what cannot be sent soon is
 * forgotten, and nobody waits for it. That a file is damaged is not forgotten.
 */
#ifndef UCM_HINTS_H
#define UCM_HINTS_H

#include <stddef.h>

#include <ucm/block.h>
#include <ucm/error.h>

enum ucm_hint {
	UCM_HINT_EXPECTED, /* it was found, and will be read soon */
	UCM_HINT_WANTED,   /* it is to be in the fastest tier */
	UCM_HINT_VERIFIED, /* its file has passed all checksums */
	UCM_HINTS
};

struct ucm_hints;

/* With the first hint it has a thread. Connects to the daemon; -errno. */
int ucm_hints_open(const char *mount, struct ucm_hints **out,
		   struct ucm_error *error);

/* Tells what it still has, unless the daemon does not answer. NULL is
 * harmless. */
void ucm_hints_close(struct ucm_hints *hints);

/* From any thread; hints may be NULL. Not of UCM_HINT_VERIFIED. The blocks are sent
 * together, as far as there is room. */
void ucm_hints_add(struct ucm_hints *hints, enum ucm_hint kind,
		   const char *space, const struct ucm_id *ids, size_t num);

/* stamp: of the file. */
void ucm_hints_add_verified(struct ucm_hints *hints, const char *space,
			    const struct ucm_id *id, uint64_t stamp);
/* Its checksums differ: sent at once, after what was verified before. */
void ucm_hints_deny(struct ucm_hints *hints, const char *space,
		    const struct ucm_id *id);

#endif
