/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.c - what both kinds of sources ask of a directory; and which blocks a source
 * has: what its index says and, where that cannot say, a look at each.
 */
#include <config.h>

#include "gpu/source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "common/deadmount.h"

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

/* ---- which blocks there are ---- */

bool ucm_is_lost(int err)
{
	return ucm_mount_is_dead(-err) || err == -ENODEV || err == -ESTALE;
}

/* 1, 0, or -errno. */
static int look(const struct ucm_source_ops *ops, struct ucm_source *source,
		const char *space, const struct ucm_id *id)
{
	int result = ops->look(source, space, id);

	if (ucm_is_lost(result) && ops->lost(source))
		result = ops->look(source, space, id);
	return result;
}

int ucm_source_lookup(const struct ucm_source_ops *ops,
		      struct ucm_source *source, const char *space,
		      const struct ucm_id *ids, size_t num, uint8_t *found)
{
	if (!ops->lookup || ops->lookup(source, space, ids, num, found))
		memset(found, UCM_FOUND_UNKNOWN, num);
	for (size_t i = 0; i < num; i++) {
		int result;

		if (found[i] != UCM_FOUND_UNKNOWN)
			continue;
		result = look(ops, source, space, &ids[i]);
		if (result < 0) {
			memset(found, 0, num);
			return result;
		}
		found[i] = (uint8_t)result;
	}
	return 0;
}

int ucm_source_prefix(const struct ucm_source_ops *ops,
		      struct ucm_source *source, const char *space,
		      const struct ucm_id *ids, size_t num, size_t *count_out)
{
	bool has_index = ops->prefix;
	size_t count = 0;

	while (count < num) {
		bool unknown = true;
		size_t some = 0;
		int result;

		if (has_index && ops->prefix(source, space, ids + count,
					     num - count, &some, &unknown))
			has_index = false; /* not asked for each of the rest */
		count += some;
		if (count == num || !unknown)
			break;
		result = look(ops, source, space, &ids[count]);
		if (result < 0)
			return result;
		if (!result)
			break;
		count++;
	}
	*count_out = count;
	return 0;
}
