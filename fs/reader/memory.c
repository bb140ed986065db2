/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the files of a mount that are memory of its daemon: .ucmfs/index and
 * .ucmfs/budget.
 *
 * With passthrough they are opened as any file. Without it only a copy could be
 * mapped, and the mount refuses; then the daemon is asked where the memory is, and
 * it is opened in /proc, which the kernel allows to root and to the daemon's user.
 *
 * What the daemon says is not believed, for it may be somebody else's. In another
 * PID namespace its number is another process, too. So what is there is looked at
 * first, by O_PATH, which does nothing to it: it must be the very file, by device
 * and inode, and memory that cannot be made shorter, which would kill whoever has
 * mapped it.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <ucm/control.h>

#include "common/cleanup.h"

static int ask_daemon(int root, struct ucm_control_memory *memory)
{
	_cleanup_fd_ int fd = openat(root, UCM_TREE_CONTROL,
				     O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, UCM_CONTROL_MEMORY, memory))
		return -errno;
	return 0;
}

static bool is_it(int fd, const struct ucm_control_memory *memory)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISREG(st.st_mode) &&
	       st.st_dev == memory->device && st.st_ino == memory->inode;
}

int ucm_reader_memory_take(const struct ucm_control_memory *memory, int flags)
{
	_cleanup_fd_ int found = -1;
	char path[64];
	int fd, seals;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", memory->pid, memory->fd);
	found = open(path, O_PATH | O_CLOEXEC);
	if (found < 0)
		return -errno;
	if (!is_it(found, memory))
		return -ESTALE;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", found);
	fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	seals = fcntl(fd, F_GET_SEALS);
	if (seals >= 0 && seals & F_SEAL_SHRINK)
		return fd;
	close(fd);
	return -EPROTO;
}

static int open_past_mount(int root, const char *name, int flags)
{
	struct ucm_control_memory memory = {
		.version = UCM_CONTROL_VERSION,
		.what = strcmp(name, UCM_TREE_INDEX) ? UCM_MEMORY_BUDGET
						     : UCM_MEMORY_INDEX,
	};
	int err = ask_daemon(root, &memory);
	int fd = err ? err : ucm_reader_memory_take(&memory, flags);

	return fd < 0 ? -EOPNOTSUPP : fd;
}

int ucm_reader_memory_open(int root, const char *name, int flags)
{
	int fd = openat(root, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct statfs fs;
	int err;

	if (fd < 0)
		return errno == EOPNOTSUPP ? open_past_mount(root, name, flags)
					   : -errno;
	/* elsewhere a mapping shows what the file once was */
	err = fstatfs(fd, &fs) ? -errno : 0;
	if (!err && fs.f_type == FUSE_SUPER_MAGIC)
		return fd;
	close(fd);
	return err ? err : -EXDEV;
}

int ucm_reader_memory_map(int root, const char *name, int flags, size_t len,
			  void **out)
{
	int prot = PROT_READ | (flags == O_RDWR ? PROT_WRITE : 0);
	void *memory;
	char byte;
	_cleanup_fd_ int fd = ucm_reader_memory_open(root, name, flags);

	if (fd < 0)
		return fd == -EXDEV ? -EPROTO : fd;
	/* one that ends before is fatal */
	if (pread(fd, &byte, 1, (off_t)len - 1) != 1)
		return -EPROTO;
	memory = mmap(NULL, len, prot, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	*out = memory;
	return 0;
}
