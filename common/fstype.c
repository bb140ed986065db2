/* SPDX-License-Identifier: Apache-2.0 */
/* fstype.c - the local ones, and their disks; see fstype.h. */
#include <config.h>

#include "common/fstype.h"

#include <linux/magic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/sysmacros.h>

bool ucm_fstype_is_local(uint32_t type)
{
	static const uint32_t local[] = {
		EXT4_SUPER_MAGIC, /* and ext2, ext3 */
		XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
		0x2fc12fc1, /* ZFS */
		0xca451a4e, /* bcachefs */
		TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC,
		OVERLAYFS_SUPER_MAGIC, ECRYPTFS_SUPER_MAGIC,
		0x61756673, /* aufs */
		0x3153464a, /* JFS */
		REISERFS_SUPER_MAGIC, NILFS_SUPER_MAGIC,
		MSDOS_SUPER_MAGIC, /* and vfat */
		EXFAT_SUPER_MAGIC,
		0x7366746e, /* ntfs3 */
		0x482b,     /* HFS+ */
		0x24051905, /* UBIFS */
		0x5a4f4653, /* zonefs */
		/* that are only read */
		ISOFS_SUPER_MAGIC, SQUASHFS_MAGIC, EROFS_SUPER_MAGIC_V1,
		0x15013346, /* UDF */
	};

	for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++) {
		if (type == local[i])
			return true;
	}
	return false;
}

bool ucm_fstype_has_ctime(uint32_t type)
{
	return type != MSDOS_SUPER_MAGIC && type != EXFAT_SUPER_MAGIC;
}

const char *const ucm_fskind_names[UCM_FS_KINDS] = {
	[UCM_FS_MEMORY] = "memory",
	[UCM_FS_SOLID] = "solid",
	[UCM_FS_DISK] = "disk",
	[UCM_FS_NETWORK] = "network",
};

/* What the kernel says of a disk; a partition has what its disk has. */
static bool rotates(dev_t dev)
{
	static const char *const places[] = { "", "/.." };
	char path[96];
	FILE *file = NULL;
	int says = '0';

	for (size_t i = 0; i < 2 && !file; i++) {
		snprintf(path, sizeof(path),
			 "/sys/dev/block/%u:%u%s/queue/rotational", major(dev),
			 minor(dev), places[i]);
		file = fopen(path, "re");
	}
	if (file) {
		says = fgetc(file);
		fclose(file);
	}
	return says == '1';
}

enum ucm_fskind ucm_fskind_of(uint32_t type, dev_t dev)
{
	if (type == TMPFS_MAGIC || type == RAMFS_MAGIC ||
	    type == HUGETLBFS_MAGIC)
		return UCM_FS_MEMORY;
	if (!ucm_fstype_is_local(type))
		return UCM_FS_NETWORK;
	return rotates(dev) ? UCM_FS_DISK : UCM_FS_SOLID;
}
