/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor_dir.c - a directory that is to hold blocks.
 *
 * What it can do is tried with a small file of our own, which no daemon looks
 * at, and which is removed at once.
 */
#include <config.h>

#include "tools/check/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/medium/dir/owner.h"
#include "fs/medium/shared/hosts.h"
#include "hashing/tree.h"
#include "tools/lib/text.h"

#define PAGE 4096
#define SKEW_MOST_S 2
#define HOSTS_MOST 1024

/* A directory under examination. */
struct patient {
	const char *path;
	int dirfd;
	int fd;        /* of the file that is tried with */
	char name[40]; /* below dirfd */
};

#define SAY(patient, verdict, mend, ...) \
	ucm_doctor_say(verdict, (patient)->path, mend, __VA_ARGS__)

/* ---- what needs no file ---- */

static void check_space(const struct patient *patient)
{
	struct statvfs st;
	uint64_t total, available;

	if (fstatvfs(patient->dirfd, &st)) {
		SAY(patient, UCM_FAIL, "df, and the file system's own check",
		    "statvfs: %s", strerror(errno));
		return;
	}
	total = (uint64_t)st.f_blocks * st.f_frsize;
	available = (uint64_t)st.f_bavail * st.f_frsize;
	if (!available || (st.f_files && !st.f_favail))
		SAY(patient, UCM_FAIL, "ucm evict, or rm what is not needed",
		    "no %s left", available ? "inodes" : "space");
	else if (available < total / 20)
		SAY(patient, UCM_WARN, "-o limit=TIER:90%, or ucm evict",
		    "only %s of %s free", ucm_text_size(available, false).text,
		    ucm_text_size(total, false).text);
	else
		SAY(patient, UCM_OK, NULL, "%s of %s free",
		    ucm_text_size(available, false).text,
		    ucm_text_size(total, false).text);
}

static void check_disk(const struct patient *patient)
{
	struct stat st;

	if (!fstat(patient->dirfd, &st))
		ucm_doctor_disk(patient->path, st.st_dev);
}

static void check_mode(const struct patient *patient)
{
	struct stat st;

	if (fstat(patient->dirfd, &st))
		SAY(patient, UCM_FAIL, "ls -ld it", "fstat: %s",
		    strerror(errno));
	else if (st.st_mode & S_IWOTH && !(st.st_mode & S_ISVTX))
		SAY(patient, UCM_WARN, "chmod o-w it",
		    "everyone may put blocks into it and remove them");
	else
		SAY(patient, UCM_OK, NULL, "mode %04o, of user %u",
		    (unsigned)(st.st_mode & 07777), (unsigned)st.st_uid);
}

/* Of a directory that other machines may use, too. */
static void check_owner(const struct patient *patient)
{
	_cleanup_fd_ int ctlfd = openat(patient->dirfd, UCM_TREE_OWN,
					O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct ucm_owner owner;

	if (ctlfd >= 0 && !ucm_owner_read(ctlfd, &owner))
		SAY(patient, UCM_OK, NULL, "its daemon: %s",
		    ucm_owner_describe(&owner).text);
}

/* Of a shared one: each sets the time of its file there every 2 s. Only these times
 * are compared, which are all the server's. */
static void check_hosts(const struct patient *patient)
{
	int fd = openat(patient->dirfd, UCM_HOSTS,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *hosts = fd < 0 ? NULL : fdopendir(fd);
	int64_t beats[HOSTS_MOST], last = 0;
	unsigned num = 0, living = 0;
	struct dirent *heart;
	struct stat st;

	if (!hosts)
		return;
	while (num < HOSTS_MOST && (heart = readdir(hosts))) {
		if (*heart->d_name == '.' ||
		    fstatat(fd, heart->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;
		beats[num] = ucm_time_ns(&st.st_mtim);
		last = beats[num] > last ? beats[num] : last;
		num++;
	}
	closedir(hosts);
	for (unsigned i = 0; i < num; i++)
		living += last - beats[i] < UCM_HOSTS_DEAD_NS;
	SAY(patient, UCM_OK, NULL,
	    "it is shared: %u daemons there at the last look, %u more gone",
	    living, num - living);
}

static void check_nfs(const struct patient *patient)
{
	FILE *mounts = fopen("/proc/self/mountinfo", "re");
	_cleanup_free_ char *line = NULL;
	const char *options = NULL;
	struct ucm_nfs_advice advice;
	struct stat st;
	size_t size = 0;

	if (!mounts)
		return;
	if (!fstat(patient->dirfd, &st)) {
		while (!options && getline(&line, &size, mounts) > 0)
			options = ucm_nfs_options(line, st.st_dev);
	}
	fclose(mounts);
	if (!options)
		return;
	ucm_nfs_advise(options, !fstatat(patient->dirfd, UCM_HOSTS, &st, 0),
		       &advice);
	if (*advice.text)
		SAY(patient, UCM_WARN, advice.mend, "%s", advice.text);
	else
		SAY(patient, UCM_OK, NULL, "its NFS options are good");
	ucm_doctor_network(patient->path, options);
}

/* ---- what is tried with a file ---- */

static bool make_file(struct patient *patient)
{
	snprintf(patient->name, sizeof(patient->name), ".ucm-doctor-%ld",
		 (long)getpid());
	patient->fd = openat(patient->dirfd, patient->name,
			     O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (patient->fd >= 0)
		return true;
	if (errno == EROFS)
		SAY(patient, UCM_WARN, "mount with -o readonly=TIER",
		    "its file system is read-only");
	else
		SAY(patient, UCM_FAIL,
		    errno == ENOSPC ? "rm what is not needed"
				    : "chown it to the daemon's user",
		    "no file can be made: %s", strerror(errno));
	return false;
}

static void check_skew(const struct patient *patient)
{
	struct timespec now;
	struct stat st;
	int64_t skew_s;

	clock_gettime(CLOCK_REALTIME, &now);
	if (fstat(patient->fd, &st))
		return; /* the next checks report it */
	skew_s = (ucm_time_ns(&st.st_mtim) - ucm_time_ns(&now)) / 1000000000;
	if (skew_s > SKEW_MOST_S || skew_s < -SKEW_MOST_S)
		SAY(patient, UCM_WARN, "timedatectl set-ntp true on both",
		    "its clock is %" PRId64 " s %s ours",
		    skew_s < 0 ? -skew_s : skew_s,
		    skew_s < 0 ? "behind" : "ahead of");
}

static void check_link(const struct patient *patient)
{
	char other[48];

	snprintf(other, sizeof(other), "%s.link", patient->name);
	if (linkat(patient->dirfd, patient->name, patient->dirfd, other, 0)) {
		SAY(patient, UCM_FAIL, "use a file system with hard links",
		    "link(2), which commits a block: %s", strerror(errno));
		return;
	}
	unlinkat(patient->dirfd, other, 0);
	SAY(patient, UCM_OK, NULL, "link(2) works");
}

static void check_xattr(const struct patient *patient)
{
	if (fsetxattr(patient->fd, "user.ucm.doctor", "1", 1, 0))
		SAY(patient, UCM_WARN, "mount it with user_xattr",
		    "no user extended attributes: %s; copies made with "
		    "cp -a and rsync -X lose those of the mount",
		    strerror(errno));
	else
		SAY(patient, UCM_OK, NULL, "user extended attributes work");
}

/* 0: it does not say. */
static unsigned direct_alignment(int fd)
{
#if defined(STATX_DIOALIGN) && defined(SYS_statx)
	struct statx st = { 0 };

	if (!syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) &&
	    st.stx_mask & STATX_DIOALIGN)
		return st.stx_dio_offset_align;
#else
	(void)fd;
#endif
	return 0;
}

/* One page, written and read past the page cache. */
static int try_direct(const struct patient *patient)
{
	_cleanup_free_ char *page = aligned_alloc(PAGE, PAGE);
	_cleanup_fd_ int fd = -1;

	if (!page)
		return -ENOMEM;
	memset(page, 'd', PAGE);
	fd = openat(patient->dirfd, patient->name,
		    O_RDWR | O_DIRECT | O_CLOEXEC);
	if (fd < 0 || pwrite(fd, page, PAGE, 0) < 0)
		return -errno;
	memset(page, 0, PAGE);
	if (pread(fd, page, PAGE, 0) != PAGE)
		return errno ? -errno : -EIO;
	return page[0] == 'd' && page[PAGE - 1] == 'd' ? 0 : -EIO;
}

static void check_direct(const struct patient *patient)
{
	unsigned align = direct_alignment(patient->fd);
	int err;

	errno = 0;
	err = try_direct(patient);
	if (err)
		SAY(patient, UCM_WARN, "use ext4, xfs or another local one",
		    "no direct I/O of a page: %s; loads go through the page "
		    "cache", strerror(-err));
	else if (align > PAGE)
		SAY(patient, UCM_WARN, "use a file system with pages of 4096",
		    "direct I/O must be aligned to %u, more than blocks are",
		    align);
	else if (align)
		SAY(patient, UCM_OK, NULL, "direct I/O works, aligned to %u",
		    align);
	else
		SAY(patient, UCM_OK, NULL, "direct I/O works");
}

static void try_with_file(struct patient *patient)
{
	if (!make_file(patient))
		return;
	check_skew(patient);
	check_link(patient);
	check_xattr(patient);
	check_direct(patient);
	unlinkat(patient->dirfd, patient->name, 0);
	close(patient->fd);
}

void ucm_doctor_directory(const char *path, bool readonly)
{
	struct patient patient = { .path = path };
	int err = ucm_doctor_ask(path);

	if (err) {
		SAY(&patient, UCM_FAIL,
		    err == ENOENT ? "mkdir it" : "mount its file system again",
		    "%s", strerror(err));
		return;
	}
	patient.dirfd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (patient.dirfd < 0) {
		SAY(&patient, UCM_FAIL, "chown it to the daemon's user", "%s",
		    strerror(errno));
		return;
	}
	check_mode(&patient);
	check_space(&patient);
	check_owner(&patient);
	check_hosts(&patient);
	check_nfs(&patient);
	check_disk(&patient);
	if (!readonly)
		try_with_file(&patient);
	close(patient.dirfd);
}
