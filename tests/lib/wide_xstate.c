/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wide_xstate.c - loaded into a user-mode kernel (LD_PRELOAD), which keeps 2696 bytes
 * for a process's vector registers. A CPU with tiles (AMX) has more, and takes them back
 * only whole: the rest is what the process has, and its tiles are empty.
 */
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define XSTATE_BV 512 /* where the parts are named that have been used */
#define XSTATE_KEPT 0x2ff /* those within the 2696 bytes */

static char area[1 << 16]; /* a kernel of one thread, with small stacks */

static long whole_area(int request, long pid, size_t *len)
{
	struct iovec iov = { area, *len };
	long ret = syscall(SYS_ptrace, request, pid, NT_X86_XSTATE, &iov);

	*len = iov.iov_len;
	return ret;
}

static long get_part(long pid, struct iovec *iov)
{
	size_t len = sizeof(area);
	long ret = whole_area(PTRACE_GETREGSET, pid, &len);

	if (ret)
		return ret;
	if (iov->iov_len > len)
		iov->iov_len = len;
	memcpy(iov->iov_base, area, iov->iov_len);
	return 0;
}

static long set_part(long pid, const struct iovec *iov)
{
	size_t len = sizeof(area);
	long ret = whole_area(PTRACE_GETREGSET, pid, &len);
	uint64_t parts;

	if (ret)
		return ret;
	memcpy(area, iov->iov_base, iov->iov_len < len ? iov->iov_len : len);
	memcpy(&parts, area + XSTATE_BV, sizeof(parts));
	parts &= XSTATE_KEPT;
	memcpy(area + XSTATE_BV, &parts, sizeof(parts));
	return whole_area(PTRACE_SETREGSET, pid, &len);
}

long ptrace(enum __ptrace_request request, ...)
{
	long (*next)(enum __ptrace_request, ...) = dlsym(RTLD_NEXT, "ptrace");
	va_list args;
	long pid, kind;
	void *data;

	va_start(args, request);
	pid = va_arg(args, int);
	kind = (long)va_arg(args, void *);
	data = va_arg(args, void *);
	va_end(args);
	if (request == PTRACE_GETREGSET && kind == NT_X86_XSTATE)
		return get_part(pid, data);
	if (request == PTRACE_SETREGSET && kind == NT_X86_XSTATE)
		return set_part(pid, data);
	return next(request, pid, (void *)kind, data);
}
