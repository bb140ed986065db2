/* SPDX-License-Identifier: Apache-2.0 */
/* test_rows.c - blocks in order, and what the commands read from text. */
#include <config.h>

#include "tools/lib/list.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "tests/unit/unit.h"
#include "tools/check/doctor.h"
#include "tools/lib/ids.h"

static const struct ucm_row some[] = {
	{ { { 3 } }, { .size = 10, .mtime_ns = -1, .uses = 5, .atime_s = 9 } },
	{ { { 1 } }, { .size = 30, .mtime_ns = 7, .uses = 5, .atime_s = 8 } },
	{ { { 2 } }, { .size = 20, .mtime_ns = 9, .uses = 6, .atime_s = 7 } },
};

static const struct {
	enum ucm_list_order by;
	const char *order;
} orders[] = {
	{ UCM_ROWS_NAME, "123" }, { UCM_ROWS_SIZE, "123" },
	{ UCM_ROWS_AGE, "213" },  { UCM_ROWS_USES, "213" },
	{ UCM_ROWS_ATIME, "312" },
};

UNIT_TEST(rows_go_by_what_was_asked_for_and_then_by_name,
	  .rows = NUM_ROWS(orders))
{
	struct ucm_row copies[3];
	struct ucm_list rows = { .rows = copies, .num = 3 };

	for (unsigned i = 0; i < 3; i++)
		copies[i] = some[i];
	ucm_list_sort(&rows, orders[_i].by);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq('0' + copies[i].id.bytes[0],
				 orders[_i].order[i]);
}

#define HEX "0123456789abcdef0123456789abcdef"

static const struct {
	const char *text;
	bool good;
} prefixes[] = {
	{ "0", true }, { "3f", true }, { HEX, true },  { "", false },
	{ "3F", false }, { "g", false }, { HEX "0", false }, { "3f/", false },
};

UNIT_TEST(a_prefix_is_some_lowercase_hex_digits, .rows = NUM_ROWS(prefixes))
{
	const char *prefix;
	const struct ucm_arg arg = { .to = &prefix };
	char text[64];

	snprintf(text, sizeof(text), "%s", prefixes[_i].text);
	ck_assert(!ucm_list_prefix(&arg, text) == prefixes[_i].good);
}

UNIT_TEST(ids_are_taken_from_arguments)
{
	static char *const good[] = { HEX, HEX ".bin", "/m/blocks/01/" HEX
							".bin" };
	static char *const bad[] = { HEX, "x" };
	struct ucm_ids ids = { 0 };

	ck_assert_int_eq(ucm_ids_take(&ids, 3, good), 0);
	ck_assert_uint_eq(ids.num, 3);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_eq(ids.ids[i].bytes[15], 0xef);
	ck_assert_int_eq(ucm_ids_take(&ids, 2, bad), -EINVAL);
	ucm_ids_fini(&ids);
}

static const struct {
	const char *release;
	unsigned major, minor;
	bool is;
} releases[] = {
	{ "6.9.0", 6, 9, true },     { "6.8.12-x", 6, 9, false },
	{ "6.14", 6, 9, true },	     { "7.0-rc1", 6, 14, true },
	{ "5.15.0", 6, 9, false },   { "6.9", 6, 14, false },
	{ "unknown", 6, 9, false },  { "", 0, 0, false },
};

UNIT_TEST(releases_of_the_kernel_are_compared_as_numbers,
	  .rows = NUM_ROWS(releases))
{
	ck_assert(ucm_release_is(releases[_i].release, releases[_i].major,
				 releases[_i].minor) == releases[_i].is);
}

#define NFS "36 25 0:51 /kv /mnt/nfs rw,noatime shared:1 - nfs4 server:/kv "
#define GOOD \
	"rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp," \
	"timeo=600,retrans=2,sec=sys,local_lock=none"

/* As the kernel shows them. */
static const struct {
	const char *line;
	const char *text; /* how it begins; "": nothing; NULL: it is not that mount */
	const char *shared, *mend; /* text of a shared one, if that is not the same */
} nfs_mounts[] = {
	{ NFS GOOD "\n", "", NULL, NULL },
	{ NFS GOOD ",nolock,lookupcache=pos,acdirmax=10,noacl\n", "", NULL, NULL },
	{ NFS "rw,soft,timeo=600,retrans=2", "", NULL, NULL },
	{ NFS "rw,soft,timeo=30,retrans=2", "soft: a write fails after 9 s", NULL,
	  "mount it with hard" },
	{ NFS "rw,softerr,timeo=10,retrans=0", "soft: a write fails after 1 s", NULL,
	  NULL },
	{ NFS "rw,hard,timeo=10,retrans=0", "", NULL, NULL },
	{ NFS "rw,vers=3", "", "vers=3: two changes", "mount it with vers=4.2" },
	{ NFS "rw,vers=3,proto=udp", "proto=udp: ", "vers=3: ", NULL },
	{ NFS "rw,nocto", "", "nocto: removed", NULL },
	{ NFS "rw,acregmax=600,acdirmax=600,hard", "", "acdirmax=600: removed", NULL },
	{ NFS "rw,noac", "noac: each write", NULL, NULL },
	{ NFS "rw,sync,vers=4.2\n", "sync: each write", NULL, NULL },
	{ NFS "rw,lookupcache=none", "lookupcache=none: each open", NULL,
	  "mount it with lookupcache=all" },
	{ NFS "rw,rsize=32768,wsize=65536",
	  "rsize=32768: blocks are read in small pieces; "
	  "wsize=65536: blocks are written in small pieces", NULL,
	  "mount it with rsize=1048576,wsize=1048576" },
	{ "36 25 0:51 / /mnt rw - nfs server:/kv rw,noac\n", "noac: ", NULL, NULL },
	{ "36 25 0:52 / /mnt rw - nfs server:/kv rw,noac\n", NULL, NULL, NULL },
	{ "36 25 0:51 / /mnt rw - nfsd nfsd rw,noac\n", NULL, NULL, NULL },
	{ "36 25 0:51 / /mnt rw - ext4 /dev/sda1 rw,sync\n", NULL, NULL, NULL },
	{ "", NULL, NULL, NULL },
};

static void advises(const char *options, bool shared, const char *text,
		    const char *mend)
{
	struct ucm_nfs_advice advice;

	ucm_nfs_advise(options, shared, &advice);
	ck_assert_msg(!strncmp(advice.text, text, strlen(text)) &&
			      !*advice.text == !*text,
		      "%s: %s", options, advice.text);
	if (mend && *text)
		ck_assert_str_eq(advice.mend, mend);
}

UNIT_TEST(what_options_of_nfs_do_to_blocks_is_known, .rows = NUM_ROWS(nfs_mounts))
{
	const char *text = nfs_mounts[_i].text;
	const char *shared = nfs_mounts[_i].shared;
	const char *options =
		ucm_nfs_options(nfs_mounts[_i].line, makedev(0, 51));

	ck_assert(!options == !text);
	if (!text)
		return;
	advises(options, false, text, nfs_mounts[_i].mend);
	advises(options, true, shared ? shared : text, nfs_mounts[_i].mend);
}

/* ---- SMART logs ---- */

static const struct {
	uint8_t warning, spare, least, wear;
	bool wrong;
	const char *text;
} logs[] = {
	{ 0, 100, 10, 3, false, "wear 3 %, spare blocks 100 %" },
	{ 0, 100, 10, 89, false, "wear 89 %, spare blocks 100 %" },
	{ 0, 100, 10, 90, true, "wear 90 %, spare blocks 100 %" },
	{ 0, 100, 10, 255, true, "wear 255 %, spare blocks 100 %" },
	{ 0, 9, 10, 3, true, "wear 3 %, spare blocks 9 %" },
	{ 9, 5, 10, 3, true, "wear 3 %, spare blocks 5 %, few spare blocks, read-only" },
	{ 0x80, 100, 10, 3, true, "wear 3 %, spare blocks 100 %" },
};

/* doctor.c is not linked here. */
void ucm_doctor_say(enum ucm_verdict verdict, const char *subject,
		    const char *mend, const char *format, ...)
{
	(void)verdict, (void)subject, (void)mend, (void)format;
}

UNIT_TEST(a_worn_disk_is_known, .rows = NUM_ROWS(logs))
{
	const uint8_t log[UCM_WEAR_LOG] = {
		logs[_i].warning, 0, 0, logs[_i].spare, logs[_i].least,
		logs[_i].wear,
	};
	char text[200];

	ck_assert_int_eq(ucm_wear_advise(log, text, sizeof(text)), logs[_i].wrong);
	ck_assert_str_eq(text, logs[_i].text);
}

static const struct {
	const char *options, *speed;
	int mbits;
} links[] = {
	{ "rw,vers=4.2,clientaddr=192.0.2.7,addr=127.0.0.1\n", "1000\n", 1000 },
	{ "addr=127.0.0.1,rw", "25000\n", 25000 },
	{ "rw,addr=127.0.0.1", "-1\n", -1 },
	{ "rw,addr=127.0.0.1", "", -1 },
	{ "rw,addr=server", "1000\n", -1 },
	{ "rw", "1000\n", -1 },
};

UNIT_TEST(how_fast_the_way_to_a_server_is_is_known, .rows = NUM_ROWS(links))
{
	char net[] = "/tmp/ucm-test-net.XXXXXX", lo[64], speed[80], name[IF_NAMESIZE];
	FILE *file;

	ck_assert_ptr_nonnull(mkdtemp(net));
	snprintf(lo, sizeof(lo), "%s/lo", net);
	snprintf(speed, sizeof(speed), "%s/speed", lo);
	ck_assert_int_eq(mkdir(lo, 0700), 0);
	file = fopen(speed, "w");
	ck_assert_ptr_nonnull(file);
	fputs(links[_i].speed, file);
	fclose(file);
	ck_assert_int_eq(ucm_nfs_mbits(links[_i].options, net, name),
			 links[_i].mbits);
	if (links[_i].mbits > 0)
		ck_assert_str_eq(name, "lo");
	unlink(speed);
	rmdir(lo);
	rmdir(net);
}
