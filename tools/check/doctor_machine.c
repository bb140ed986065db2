/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_machine.c - kernel, /dev/fuse, limits, clock, and memory that was left. */
#include <config.h>

#include "tools/check/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/process.h"
#include "fs/medium/memory/memory.h"
#include "tools/lib/text.h"

#define FILES_ENOUGH 65536
#define LOCKED_ENOUGH ((uint64_t)1 << 30)
#define YEAR_2024 1704067200

/* ---- kernel ---- */

static void check_passthrough(const char *release)
{
	if (!ucm_release_is(release, 6, 9))
		ucm_doctor_warn("passthrough", "boot Linux 6.9 or newer",
				"Linux %s does not have it; data goes "
				"through the daemon", release);
	else if (!ucm_has_sys_admin())
		ucm_doctor_warn("passthrough", "mount as root", "Linux %s "
				"has it, but this user lacks CAP_SYS_ADMIN",
				release);
	else
		ucm_doctor_ok("passthrough", "Linux %s has it", release);
}

static void check_kernel(void)
{
	struct utsname name;

	uname(&name);
	check_passthrough(name.release);
}

static void check_device(void)
{
	_cleanup_fd_ int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		ucm_doctor_ok("/dev/fuse", "it can be opened");
	else if (errno == EACCES || errno == EPERM)
		ucm_doctor_fail("/dev/fuse",
				"chmod 666 /dev/fuse, or mount as root", "%s",
				strerror(errno));
	else
		ucm_doctor_fail("/dev/fuse", "modprobe fuse", "%s",
				strerror(errno));
}

/* ---- limits ---- */

/* The daemon raises its own soft limit to the hard one. */
static void check_files(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_max >= FILES_ENOUGH)
		ucm_doctor_ok("open files", "%" PRIu64 " at most",
			      (uint64_t)limit.rlim_max);
	else
		ucm_doctor_warn("open files",
				"ulimit -Hn 65536, or LimitNOFILE= of the unit",
				"%" PRIu64 " at most: each block that is open " "takes one",
				(uint64_t)limit.rlim_max);
}

static void check_locked(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur == RLIM_INFINITY)
		ucm_doctor_ok("locked memory", "no limit");
	else if (limit.rlim_cur >= LOCKED_ENOUGH)
		ucm_doctor_ok("locked memory", "%s at most",
			      ucm_text_size(limit.rlim_cur, false).text);
	else
		ucm_doctor_warn("locked memory", "ulimit -l unlimited, or "
				"LimitMEMLOCK= of the unit", "%s at most: a "
				"loader's staging buffers may not fit",
				ucm_text_size(limit.rlim_cur, false).text);
}

/* ---- clock ---- */

static void check_clock(void)
{
	struct timex timex = { .modes = 0 };
	int state = adjtimex(&timex);

	if (time(NULL) < YEAR_2024)
		ucm_doctor_fail("clock",
				"timedatectl set-time, or set-ntp true",
				"it says a time before 2024");
	else if (state == TIME_ERROR || timex.status & STA_UNSYNC)
		ucm_doctor_warn("clock", "timedatectl set-ntp true",
				"nothing keeps it: ages are wrong when it "
				"jumps");
	else
		ucm_doctor_ok("clock", "it is kept right");
}

/* ---- memory that a memory tier has left: its daemon was killed, or SOURCE is another ---- */

#define OPEN_FOLDERS 16

static uint64_t sum; /* nftw(3) has no argument to hand on */

static int add(const char *path, const struct stat *st, int kind,
	       struct FTW *where)
{
	(void)path, (void)where;
	if (kind == FTW_F)
		sum += (uint64_t)st->st_blocks * 512;
	return 0;
}

static void tell(void *arg, const char *path)
{
	char mend[600];

	(void)arg;
	sum = 0;
	nftw(path, add, OPEN_FOLDERS, FTW_PHYS);
	snprintf(mend, sizeof(mend),
		 "mount its store again, or rm -rf %s", path);
	ucm_doctor_warn(path, mend, "a memory tier that no store uses, of %s",
			ucm_text_size(sum, false).text);
}

void ucm_doctor_machine(void)
{
	check_kernel();
	check_device();
	check_files();
	check_locked();
	ucm_doctor_huge();
	check_clock();
	ucm_memory_each_left(tell, NULL);
}
