/* SPDX-License-Identifier: Apache-2.0 */
/*
 * why.h - a failure's cause in words, for the caller.
 */
#ifndef UCM_WHY_H
#define UCM_WHY_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* Write a line to why (may be NULL) and return err. */
__attribute__((format(printf, 4, 5))) static inline int
ucm_why(char *why, size_t why_len, int err, const char *format, ...)
{
	va_list args;

	if (why && why_len) {
		va_start(args, format);
		vsnprintf(why, why_len, format, args);
		va_end(args);
	}
	return err;
}

#endif
