/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_tool.c - messages of the subcommands of ucm(1). */
#include <config.h>

#include "tools/ucm_tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

const char *ucm_tool_command = "";

int ucm_tool_complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "ucm %s: ", ucm_tool_command);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	return -EINVAL;
}
