/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - writing what was wrong, for whoever called.
 */
#include <config.h>

#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>

int ucm_error_set(struct ucm_error *error, int err, const char *format, ...)
{
	struct ucm_error line;
	va_list args;

	if (!error)
		return err;
	va_start(args, format);
	vsnprintf(line.text, sizeof(line.text), format, args);
	va_end(args);
	for (char *at = line.text; *at; at++) {
		if ((unsigned char)*at < ' ' || *at == '\x7f')
			*at = '?';
	}
	*error = line;
	return err;
}
