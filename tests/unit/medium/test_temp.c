/* SPDX-License-Identifier: Apache-2.0 */
/* test_temp.c - who may still be writing a temporary file; which file systems
 * are local. */
#include <config.h>

#include "fs/medium/temp.h"

#include <linux/magic.h>
#include <stdio.h>
#include <string.h>

#include "common/fstype.h"
#include "tests/unit/dir_fixture.h"

/* Host 1, in its boot 2, which began 1000 s ago. */
static const struct ucm_temp_maker self = { .host = 1, .boot = 2,
					    .up_s = 1000 };
#define DAY UCM_TEMP_OLD_S

static const struct { const char *name; int64_t age_s; bool over; } files[] = {
	/* of this boot: another daemon's, perhaps */
	{ "00000001-00000002-00000003-4", 2000, false },
	{ "00000001-00000002-00000003-4", DAY, true },
	/* of an earlier one */
	{ "00000001-00000009-00000003-4", 2000, true },
	{ "00000001-00000009-00000003-4", 1000, false }, /* a twin's */
	{ "00000001-00000000-00000003-4", 2000, false }, /* which? */
	/* of another machine */
	{ "00000008-00000009-00000003-4", 2000, false },
	{ "00000008-00000002-00000003-4", DAY - 1, false },
	{ "00000008-00000009-00000003-4", DAY, true },
	/* of an older version, and what is none of ours */
	{ "00000001-4", 2000, false },
	{ "00000001-4", DAY, true },
	{ "", 2000, false },
	{ "x", DAY, true },
	{ "00000001-00000009-00000003-4", -5, false }, /* clocks */
};

UNIT_TEST(only_what_nobody_can_be_writing_is_over, .rows = NUM_ROWS(files))
{
	ck_assert_int_eq(ucm_temp_is_over(&self, files[_i].name,
					  files[_i].age_s), files[_i].over);
}

UNIT_TEST(who_does_not_know_his_boot_knows_no_earlier_one)
{
	const struct ucm_temp_maker nobody = { .host = 1, .up_s = 1000 };

	ck_assert(!ucm_temp_is_over(&nobody, "00000001-00000009-00000003-4",
				    2000));
}

UNIT_TEST(a_name_says_who_made_it)
{
	struct ucm_temp_maker me, again;
	char name[UCM_TEMP_NAME_MAX], want[UCM_TEMP_NAME_MAX];

	ucm_temp_whoami(&me);
	ucm_temp_whoami(&again);
	ck_assert_uint_eq(me.host, again.host);
	ck_assert_uint_eq(me.boot, again.boot);
	ck_assert_int_gt(me.up_s, 0);
	me = self;
	me.instance = 3;
	ucm_temp_name(&me, 4, name);
	ck_assert_str_eq(name, "00000001-00000002-00000003-04");
	me = (struct ucm_temp_maker){ .host = UINT32_MAX, .boot = UINT32_MAX,
				      .instance = UINT32_MAX };
	ucm_temp_name(&me, UINT64_MAX, name);
	snprintf(want, sizeof(want), "ffffffff-ffffffff-ffffffff-%s",
		 "ffffffffffffffff");
	ck_assert_str_eq(name, want);
}

static const struct { uint32_t type; bool local; } types[] = {
	{ EXT4_SUPER_MAGIC, true },  { XFS_SUPER_MAGIC, true },
	{ BTRFS_SUPER_MAGIC, true }, { TMPFS_MAGIC, true },
	{ HUGETLBFS_MAGIC, true },   { OVERLAYFS_SUPER_MAGIC, true },
	{ 0x2fc12fc1, true },        { NFS_SUPER_MAGIC, false },
	{ SMB2_SUPER_MAGIC, false }, { CIFS_SUPER_MAGIC, false },
	{ CEPH_SUPER_MAGIC, false }, { FUSE_SUPER_MAGIC, false },
	{ V9FS_MAGIC, false },       { AFS_SUPER_MAGIC, false },
	{ 0x0bd00bd0, false }, /* Lustre */
	{ 0x47504653, false }, /* GPFS */
	{ 0x19830326, false }, /* BeeGFS */
	{ 0x7461636f, false }, /* OCFS2 */
	{ 0x01161970, false }, /* GFS2 */
	{ 0x786f4256, false }, /* shared by a virtual machine */
	{ 0, false },
};

UNIT_TEST(only_known_file_systems_are_local, .rows = NUM_ROWS(types))
{
	ck_assert_int_eq(ucm_fstype_is_local(types[_i].type), types[_i].local);
}
