/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_snapshot_wrong.c - snapshots that do not hold: nothing is trusted that
 * is not so, and no block is served unseen.
 */
#include <config.h>

#include "fs/index/snapshot.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/index/snapshot_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

/* ---- when it does not hold ---- */

static void crash(void *arg)
{
	(void)arg;
	fx_open();
	fx_start();
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(after_a_crash_all_is_read)
{
	prepare();
	take(PATH);
	fx_in_child(crash, NULL);
	ck_assert(!fx_exists(fx_path(PATH)));
	fx_put(fx_path(PATH), bytes, len); /* not even if it comes back */
	count_opens();
	start();
	ck_assert_uint_ge(fx_calls(), NUM);
	all_are_served();
}

static void write_back(void)
{
	fx_put(fx_path(PATH), bytes, len);
}

static void truncate_it(void)
{
	fx_put(fx_path(PATH), bytes, len / 2);
}

static void cut_head(void)
{
	fx_put(fx_path(PATH), bytes, 100);
}

static void empty_it(void)
{
	fx_put(fx_path(PATH), bytes, 0);
}

static void lengthen(void)
{
	fx_put(fx_path(PATH), bytes, len + 1);
}

static void remove_it(void)
{
	ck_assert_int_eq(fx_unlink(fx_path(PATH)), 0);
}

static void take_foreign(void)
{
	take("$/b/.ucmfs/" UCM_SNAPSHOT_NAME);
	write_back();
}

static void take_stale(void)
{
	start();
	fx_close();
	write_back();
}

static void flip_record(void)
{
	bytes[UCM_SNAPSHOT_HEAD_BYTES + 40] ^= 1;
	write_back();
}

static void make_newer(void)
{
	bytes[offsetof(struct ucm_snapshot_head, version)]++;
	write_back();
}

static void make_folder(void)
{
	remove_it();
	fx_mkdirs(fx_path(PATH));
}

static const struct {
	void (*spoil)(void);
	const char *said;
} spoilt[] = {
	{ truncate_it, "of another length" },
	{ cut_head, "cut short" },
	{ empty_it, "cut short" },
	{ lengthen, "of another length" },
	{ remove_it, "No such file" },
	{ take_foreign, "of another directory" },
	{ take_stale, "not of the last clean end" },
	{ flip_record, "checksum of a section differs" },
	{ make_newer, "of another version" },
	{ make_folder, "No such device" },
};

UNIT_TEST(a_wrong_one_is_told_of_and_not_used, .rows = NUM_ROWS(spoilt))
{
	prepare();
	take(PATH);
	spoilt[_i].spoil();
	fx_clear_log();
	start();
	ck_assert_msg(fx_logged(spoilt[_i].said), "%s", spoilt[_i].said);
	ck_assert(fx_logged("not used"));
	all_are_served();
}

static const struct {
	const char *call, *part; /* "": the bucket of block 0 */
	unsigned nth;
} failures[] = {
	{ "open", "snapshot", 1 },
	{ "write", NULL, 2 }, /* the first says "ending" in the lock */
	{ "fsync", NULL, 1 },
	{ "rename", "snapshot", 1 },
	{ "list", "blocks", 1 },
	{ "stat", "", 1 },
};

/* A failure in writing it fails nothing else. */
UNIT_TEST(one_that_cannot_be_written_is_not_there, .rows = NUM_ROWS(failures))
{
	char part[3];

	single = true;
	prepare();
	start();
	snprintf(part, sizeof(part), "%.2s", fx_name(&files[0]));
	/* not once: threads in the background may look at a folder before */
	if (failures[_i].part)
		fx_fail_on(failures[_i].call,
			   *failures[_i].part ? failures[_i].part : part,
			   failures[_i].nth, -ENOSPC, false);
	else
		fx_fail(failures[_i].call, failures[_i].nth, -ENOSPC, true);
	fx_close();
	ck_assert_ptr_nonnull(fx_failed_call());
	ck_assert(!fx_exists(fx_path(PATH)));
	ck_assert(!fx_exists(fx_path(PATH ".new")));
	fx_fail(NULL, 0, 0, false);
	fx_clear_log();
	start();
	ck_assert(!fx_set->dirs.at[0]->recovery.unclean);
	ck_assert(!fx_logged("not used"));
	all_are_served();
}

/* ---- the file ---- */

/* 0: it holds, and can be read to its end. */
static int parse(const uint8_t uuid[16], uint64_t number)
{
	struct ucm_snapshot_record *records;
	struct ucm_snapshot snapshot;
	const char *why = NULL;
	uint64_t num;
	int err = ucm_snapshot_open(&taken, len, uuid, number, &snapshot, &why);

	if (err) {
		must(why);
		return err;
	}
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS && !err; i++) {
		err = ucm_snapshot_read(&snapshot, i, &records, &num, &why);
		if (!err)
			free(records);
	}
	ucm_snapshot_close(&snapshot);
	return err;
}

static struct ucm_snapshot_head head;

static void take_parsed(void)
{
	prepare();
	take(PATH);
	memcpy(&head, bytes, sizeof(head));
	ck_assert_int_eq(parse(head.uuid, head.number), 0);
}

UNIT_TEST(a_flipped_bit_anywhere_is_noticed)
{
	take_parsed();
	for (size_t i = 0; i < len; i++) {
		bytes[i] ^= 1 << i % 8;
		ck_assert_msg(parse(head.uuid, head.number) < 0, "byte %zu", i);
		bytes[i] ^= 1 << i % 8;
	}
}

UNIT_TEST(a_missing_end_is_noticed)
{
	take_parsed();
	while (len--)
		must(parse(head.uuid, head.number) < 0);
}

UNIT_TEST(another_directory_or_number_is_noticed)
{
	uint8_t uuid[16];

	take_parsed();
	memcpy(uuid, head.uuid, sizeof(uuid));
	uuid[15] ^= 1;
	ck_assert_int_eq(parse(uuid, head.number), -EINVAL);
	ck_assert_int_eq(parse(head.uuid, head.number ^ 1), -EINVAL);
	ck_assert_int_eq(parse(head.uuid, 0), -EINVAL);
}

/* All checksums as what they cover asks for. */
static void seal(void)
{
	struct ucm_snapshot_section *sections =
		(void *)(bytes + sizeof(struct ucm_snapshot_head));
	struct ucm_snapshot_head *sealed = (void *)bytes;
	size_t at = UCM_SNAPSHOT_HEAD_BYTES;

	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++) {
		size_t size = sections[i].num * 64;

		if (size > len - at)
			break;
		sections[i].crc = ucm_crc32c(0, bytes + at, size);
		at += size;
	}
	sealed->sections_crc = ucm_crc32c(0, sections, sizeof(*sections) *
					  UCM_SNAPSHOT_SECTIONS);
	sealed->spaces_crc = ucm_crc32c(0, bytes + at, len - at);
	sealed->crc = ucm_crc32c(0, sealed, offsetof(struct ucm_snapshot_head,
						     crc));
}

static size_t in_head(size_t at)
{
	return at;
}

static size_t in_sections(size_t at)
{
	return sizeof(struct ucm_snapshot_head) + at;
}

static size_t in_record(size_t at)
{
	return UCM_SNAPSHOT_HEAD_BYTES + at;
}

static size_t in_space(size_t at)
{
	const struct ucm_snapshot_section *sections =
		(const void *)(bytes + sizeof(struct ucm_snapshot_head));
	size_t begin = UCM_SNAPSHOT_HEAD_BYTES;

	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++)
		begin += sections[i].num * 64;
	return begin + at;
}

#define HEAD(field) in_head, offsetof(struct ucm_snapshot_head, field), #field
#define SECTION(field) \
	in_sections, offsetof(struct ucm_snapshot_section, field), #field
#define RECORD(field) \
	in_record, offsetof(struct ucm_snapshot_record, field), #field
#define SPACE(field) \
	in_space, offsetof(struct ucm_snapshot_space, field), #field

/* What no checksum tells. */
static const struct {
	size_t (*where)(size_t at);
	size_t at;
	const char *field;
	unsigned char bits;
} fields[] = {
	{ HEAD(magic), 1 }, { HEAD(version), 3 }, { HEAD(head_bytes), 1 },
	{ HEAD(uuid), 1 }, { HEAD(number), 1 }, { HEAD(file_bytes), 1 },
	{ HEAD(num_spaces), 1 }, { HEAD(num_spaces) , 0x80 },
	{ HEAD(record_bytes), 1 }, { HEAD(zero), 1 }, { HEAD(zero[51]), 1 },
	{ SECTION(num), 0x80 }, { SECTION(num) , 1 }, { SECTION(zero), 1 },
	{ RECORD(id), 1 }, { RECORD(space), 0x80 }, { RECORD(flags), 4 },
	{ RECORD(parent), 1 },
	{ RECORD(flags), 0x80 }, { RECORD(zero), 1 },
	{ SPACE(name[135]), 'x' }, { SPACE(buckets[3]), 0xff },
	{ SPACE(zero[23]), 1 },
};

UNIT_TEST(a_wrong_field_with_right_checksums_is_noticed,
	  .rows = NUM_ROWS(fields))
{
	size_t at;

	take_parsed();
	at = fields[_i].where(fields[_i].at);
	bytes[at] ^= fields[_i].bits;
	seal();
	ck_assert_msg(parse(head.uuid, head.number) < 0, "%s",
		      fields[_i].field);
	bytes[at] ^= fields[_i].bits;
	seal();
	ck_assert_int_eq(parse(head.uuid, head.number), 0);
}
