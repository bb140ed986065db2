/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifeline.c - the kernel's list of robust futexes, with one futex in it.
 *
 * The list lies in shared anonymous memory: what reaps a process that the
 * kernel has killed for want of memory leaves that alone until the list has
 * been read.
 */
#include <config.h>

#include "common/lifeline.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(FUTEX_TID_MASK == 0x3fffffff, "what lives() compares");

struct ucm_lifeline_list {
	struct robust_list_head head;
	struct robust_list entry;
};

static struct ucm_lifeline_list *new_list(_Atomic uint32_t *word)
{
	struct ucm_lifeline_list *list =
		mmap(NULL, sizeof(*list), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (list == MAP_FAILED)
		return NULL;
	list->head.list.next = &list->entry;
	list->head.futex_offset = (char *)word - (char *)&list->entry;
	list->entry.next = &list->head.list;
	return list;
}

int ucm_lifeline_hold(struct ucm_lifeline *line, _Atomic uint32_t *word)
{
	struct ucm_lifeline_list *list = new_list(word);
	size_t len;
	void *before;

	if (!list)
		return -ENOMEM;
	if (syscall(SYS_get_robust_list, 0, &before, &len) ||
	    syscall(SYS_set_robust_list, &list->head, sizeof(list->head))) {
		int err = -errno;

		munmap(list, sizeof(*list));
		return err;
	}
	*line = (struct ucm_lifeline){
		.list = list, .word = word, .before = before,
	};
	atomic_store(word, (uint32_t)syscall(SYS_gettid));
	return 0;
}

void ucm_lifeline_release(struct ucm_lifeline *line)
{
	if (!line->list)
		return;
	atomic_store(line->word, 0);
	syscall(SYS_set_robust_list, line->before,
		sizeof(struct robust_list_head));
	munmap(line->list, sizeof(*line->list));
	*line = (struct ucm_lifeline){ 0 };
}
