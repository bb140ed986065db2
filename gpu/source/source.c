/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.c - what both kinds of sources ask of a directory.
 */
#include <config.h>

#include "gpu/source/source.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define DEFAULT_ALIGN 4096u
#define MOST_ALIGN 65536u

void ucm_dir_init(struct ucm_dir *dir, int fd)
{
	struct statfs fs;

	dir->memory = !fstatfs(fd, &fs) && fs.f_type == TMPFS_MAGIC;
	atomic_init(&dir->no_direct, false);
	atomic_init(&dir->align, 0);
	atomic_init(&dir->answered, false);
}

uint32_t ucm_direct_align(int fd)
{
	uint32_t align = DEFAULT_ALIGN;
	struct statx stx;

#ifdef STATX_DIOALIGN
	if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) &&
	    (stx.stx_mask & STATX_DIOALIGN)) {
		uint32_t wanted = stx.stx_dio_offset_align >
						  stx.stx_dio_mem_align
					  ? stx.stx_dio_offset_align
					  : stx.stx_dio_mem_align;

		/* 512 would do for many disks: whole pages cost nothing more */
		if (wanted > align && wanted <= MOST_ALIGN &&
		    !(wanted & (wanted - 1)))
			align = wanted;
	}
#else
	(void)fd;
	(void)stx;
#endif
	return align;
}

uint32_t ucm_dir_align(struct ucm_dir *dir, int fd)
{
	uint32_t align = atomic_load(&dir->align);

	if (!align) {
		align = ucm_direct_align(fd);
		atomic_store(&dir->align, align);
	}
	return align;
}
