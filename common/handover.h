/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handover.h - what one thread gives to another through the kernel.
 *
 * The kernel sends a request only after it has the reply to the one before, so
 * what the first has written the second may read without a lock: a handle that
 * one thread opens and another closes. The thread sanitizer does not see that
 * order; it is told here. Two requests that overlap it still takes for what they
 * are. Without the sanitizer this is nothing.
 */
#ifndef UCM_HANDOVER_H
#define UCM_HANDOVER_H

#ifndef __has_feature
#define __has_feature(x) 0
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
void __tsan_acquire(void *at);
void __tsan_release(void *at);
#define ucm_handover_take(at) __tsan_acquire(at)
#define ucm_handover_give(at) __tsan_release(at)
#else
#define ucm_handover_take(at) ((void)(at))
#define ucm_handover_give(at) ((void)(at))
#endif

#endif
