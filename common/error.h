/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.h - writing what was wrong, for whoever called.
 *
 * Whoever sees a failure first says what it was; everyone above hands the
 * caller's struct ucm_error down, and returns the error.
 */
#ifndef UCM_COMMON_ERROR_H
#define UCM_COMMON_ERROR_H

#include <ucm/error.h>

/* Write a line to error (NULL: not wanted), and return err. Control characters,
 * which names may contain, become '?'. The arguments may point into *error. */
int ucm_error_set(struct ucm_error *error, int err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
