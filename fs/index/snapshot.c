/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.c - the file that snapshot.h describes: written in one go, read
 * section by section, checked before anything of it is seen.
 */
#include <config.h>

#include "fs/index/snapshot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/clock.h"

#define ROOM (256u << 10) /* of a writer */

int64_t ucm_snapshot_grain_ns = 2 * INT64_C(1000000000);

/* ---- reading ---- */

static bool all_zero(const uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (bytes[i])
			return false;
	}
	return true;
}

static uint32_t head_crc(const struct ucm_snapshot_head *head)
{
	return ucm_crc32c(0, head, offsetof(struct ucm_snapshot_head, crc));
}

/* What is wrong with it, or NULL. */
static const char *check_head(const struct ucm_snapshot_head *head,
			      const uint8_t uuid[16], uint64_t number,
			      uint64_t file_bytes)
{
	if (memcmp(head->magic, UCM_SNAPSHOT_MAGIC, sizeof(head->magic)))
		return "not a snapshot";
	if (head->version != UCM_SNAPSHOT_VERSION)
		return "of another version";
	if (head->crc != head_crc(head))
		return "checksum of the head differs";
	if (memcmp(head->uuid, uuid, sizeof(head->uuid)))
		return "of another directory";
	if (!number || head->number != number)
		return "not of the last clean end";
	if (head->file_bytes != file_bytes ||
	    file_bytes < UCM_SNAPSHOT_HEAD_BYTES)
		return "of another length";
	if (head->head_bytes != UCM_SNAPSHOT_HEAD_BYTES ||
	    head->record_bytes != sizeof(struct ucm_snapshot_record) ||
	    !all_zero(head->zero, sizeof(head->zero)))
		return "a field of the head is wrong";
	return NULL;
}

/* Where a section begins, or (of one too many) the spaces. */
static uint64_t section_at(const struct ucm_snapshot *snapshot, unsigned section)
{
	uint64_t at = UCM_SNAPSHOT_HEAD_BYTES;

	for (unsigned i = 0; i < section; i++)
		at += snapshot->sections[i].num *
		      sizeof(struct ucm_snapshot_record);
	return at;
}

static const char *check_sections(const struct ucm_snapshot *snapshot)
{
	uint64_t left = (snapshot->head.file_bytes - UCM_SNAPSHOT_HEAD_BYTES) /
			sizeof(struct ucm_snapshot_record);

	if (ucm_crc32c(0, snapshot->sections, sizeof(snapshot->sections)) !=
	    snapshot->head.sections_crc)
		return "checksum of the sections differs";
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++) {
		if (snapshot->sections[i].num > left ||
		    snapshot->sections[i].zero)
			return "a section is wrong";
		left -= snapshot->sections[i].num;
	}
	return NULL;
}

static unsigned num_buckets(const struct ucm_snapshot_space *space)
{
	unsigned num = 0;

	for (unsigned i = 0; i < 4; i++)
		num += (unsigned)__builtin_popcountll(space->buckets[i]);
	return num;
}

static size_t space_bytes(const struct ucm_snapshot_space *space)
{
	return sizeof(*space) +
	       num_buckets(space) * sizeof(struct ucm_snapshot_stamp);
}

static const char *split_area(struct ucm_snapshot *snapshot, size_t len)
{
	const char *at = snapshot->area, *end = at + len;

	for (uint32_t i = 0; i < snapshot->head.num_spaces; i++) {
		const struct ucm_snapshot_space *space = (const void *)at;
		size_t left = (size_t)(end - at);

		if (left < sizeof(*space) || left < space_bytes(space) ||
		    space->name[sizeof(space->name) - 1] ||
		    !all_zero(space->zero, sizeof(space->zero)))
			return "a space is wrong";
		snapshot->spaces[i] = space;
		at += space_bytes(space);
	}
	return at == end ? NULL : "there is more than spaces";
}

static int read_all(const struct ucm_bytes *file, void *out, size_t len,
		    uint64_t at, const char **why)
{
	ssize_t got = file->read(file, out, len, at);

	*why = got < 0 ? strerror((int)-got) : "cut short";
	if (got < 0)
		return (int)got;
	return (size_t)got == len ? 0 : -EINVAL;
}

static int read_spaces(struct ucm_snapshot *snapshot, const char **why)
{
	uint64_t at = section_at(snapshot, UCM_SNAPSHOT_SECTIONS);
	size_t len = (size_t)(snapshot->head.file_bytes - at);
	uint32_t num = snapshot->head.num_spaces;
	int err;

	*why = "a number is wrong";
	if (num > len / sizeof(struct ucm_snapshot_space))
		return -EINVAL;
	*why = strerror(ENOMEM);
	snapshot->area = malloc(len + 1);
	snapshot->spaces = calloc((size_t)num + 1, sizeof(*snapshot->spaces));
	if (!snapshot->area || !snapshot->spaces)
		return -ENOMEM;
	err = read_all(&snapshot->file, snapshot->area, len, at, why);
	if (err)
		return err;
	*why = "checksum of the spaces differs";
	if (ucm_crc32c(0, snapshot->area, len) != snapshot->head.spaces_crc)
		return -EINVAL;
	*why = split_area(snapshot, len);
	return *why ? -EINVAL : 0;
}

static int read_head(struct ucm_snapshot *snapshot, uint64_t size,
		     const uint8_t uuid[16], uint64_t number, const char **why)
{
	int err = read_all(&snapshot->file, &snapshot->head,
			   sizeof(snapshot->head), 0, why);

	if (err)
		return err;
	*why = check_head(&snapshot->head, uuid, number, size);
	if (*why)
		return -EINVAL;
	err = read_all(&snapshot->file, snapshot->sections,
		       sizeof(snapshot->sections), sizeof(snapshot->head), why);
	if (err)
		return err;
	*why = check_sections(snapshot);
	return *why ? -EINVAL : 0;
}

int ucm_snapshot_open(const struct ucm_bytes *file, uint64_t size,
		      const uint8_t uuid[16], uint64_t number,
		      struct ucm_snapshot *out, const char **why_out)
{
	int err;

	*out = (struct ucm_snapshot){ .file = *file };
	err = read_head(out, size, uuid, number, why_out);
	if (!err)
		err = read_spaces(out, why_out);
	if (err)
		ucm_snapshot_close(out);
	return err;
}

void ucm_snapshot_close(struct ucm_snapshot *snapshot)
{
	free(snapshot->area);
	free(snapshot->spaces);
	*snapshot = (struct ucm_snapshot){ 0 };
}

static bool has_stray_parent(const struct ucm_snapshot_record *record)
{
	return !(record->flags & UCM_SNAPSHOT_PARENT) &&
	       !all_zero(record->parent.bytes, sizeof(record->parent.bytes));
}

static const char *check_records(const struct ucm_snapshot *snapshot,
				 unsigned section,
				 const struct ucm_snapshot_record *records)
{
	for (uint64_t i = 0; i < snapshot->sections[section].num; i++) {
		if (records[i].id.bytes[0] != section || records[i].zero ||
		    records[i].space >= snapshot->head.num_spaces ||
		    has_stray_parent(&records[i]))
			return "a record is wrong";
		if (records[i].flags & ~UCM_SNAPSHOT_FLAGS)
			return "a record of another version";
	}
	return NULL;
}

int ucm_snapshot_read(const struct ucm_snapshot *snapshot, unsigned section,
		      struct ucm_snapshot_record **out, uint64_t *num_out,
		      const char **why_out)
{
	size_t len = snapshot->sections[section].num * sizeof(**out);
	struct ucm_snapshot_record *records;
	int err;

	*out = NULL;
	*num_out = 0;
	if (!len)
		return 0;
	records = malloc(len);
	*why_out = strerror(ENOMEM);
	if (!records)
		return -ENOMEM;
	err = read_all(&snapshot->file, records, len,
		       section_at(snapshot, section), why_out);
	if (!err) {
		*why_out = "checksum of a section differs";
		if (ucm_crc32c(0, records, len) ==
		    snapshot->sections[section].crc)
			*why_out = check_records(snapshot, section, records);
		err = *why_out ? -EINVAL : 0;
	}
	if (err) {
		free(records);
		return err;
	}
	*out = records;
	*num_out = snapshot->sections[section].num;
	return 0;
}

const struct ucm_snapshot_stamp *
ucm_snapshot_bucket(const struct ucm_snapshot_space *space, unsigned bucket)
{
	const struct ucm_snapshot_stamp *stamps = (const void *)(space + 1);
	uint64_t below = (UINT64_C(1) << bucket % 64) - 1;
	unsigned word = bucket / 64, number;

	if (!(space->buckets[word] >> bucket % 64 & 1))
		return NULL;
	number = (unsigned)__builtin_popcountll(space->buckets[word] & below);
	for (unsigned i = 0; i < word; i++)
		number += (unsigned)__builtin_popcountll(space->buckets[i]);
	return &stamps[number];
}

/* ---- writing ---- */

struct ucm_snapshot_stamp ucm_snapshot_stamp(const struct stat *st,
					     int64_t taken_ns)
{
	struct ucm_snapshot_stamp stamp = {
		.ino = st->st_ino,
		.ctime_ns = ucm_time_ns(&st->st_ctim),
		.mtime_ns = ucm_time_ns(&st->st_mtim),
	};

	/* the next change may bear the same time */
	if (stamp.ctime_ns >= taken_ns - ucm_snapshot_grain_ns ||
	    stamp.mtime_ns >= taken_ns - ucm_snapshot_grain_ns)
		stamp = (struct ucm_snapshot_stamp){ 0 };
	return stamp;
}

bool ucm_snapshot_stamp_equal(const struct ucm_snapshot_stamp *stamp,
			      const struct stat *st)
{
	return stamp->ino && stamp->ino == st->st_ino &&
	       stamp->ctime_ns == ucm_time_ns(&st->st_ctim) &&
	       stamp->mtime_ns == ucm_time_ns(&st->st_mtim);
}

static void flush(struct ucm_snapshot_writer *writer)
{
	if (!writer->err)
		writer->err = writer->write(writer->arg, writer->buffer,
					    writer->used, writer->at);
	writer->at += writer->used;
	writer->used = 0;
}

/* Pieces are smaller than the buffer. */
static void put(struct ucm_snapshot_writer *writer, const void *bytes,
		size_t len)
{
	if (len > ROOM - writer->used)
		flush(writer);
	memcpy(writer->buffer + writer->used, bytes, len);
	writer->used += len;
}

static int make_number(uint64_t *out)
{
	*out = 0;
	while (!*out) {
		if (getrandom(out, sizeof(*out), 0) != sizeof(*out))
			return -EIO;
	}
	return 0;
}

int ucm_snapshot_create(struct ucm_snapshot_writer *writer,
			int (*write)(void *arg, const void *bytes, size_t len,
				     uint64_t offset),
			void *arg, const uint8_t uuid[16], int64_t taken_ns)
{
	int err;

	*writer = (struct ucm_snapshot_writer){
		.write = write,
		.arg = arg,
		.at = UCM_SNAPSHOT_HEAD_BYTES,
		.head = {
			.magic = UCM_SNAPSHOT_MAGIC,
			.version = UCM_SNAPSHOT_VERSION,
			.head_bytes = UCM_SNAPSHOT_HEAD_BYTES,
			.taken_ns = taken_ns,
			.record_bytes = sizeof(struct ucm_snapshot_record),
		},
	};
	memcpy(writer->head.uuid, uuid, sizeof(writer->head.uuid));
	err = make_number(&writer->head.number);
	if (err)
		return err;
	writer->buffer = malloc(ROOM);
	return writer->buffer ? 0 : -ENOMEM;
}

void ucm_snapshot_put(struct ucm_snapshot_writer *writer, unsigned section,
		      const struct ucm_snapshot_record *record)
{
	struct ucm_snapshot_section *of = &writer->sections[section];

	of->num++;
	of->crc = ucm_crc32c(of->crc, record, sizeof(*record));
	put(writer, record, sizeof(*record));
}

void ucm_snapshot_put_space(struct ucm_snapshot_writer *writer,
			    const struct ucm_snapshot_space *space,
			    const struct ucm_snapshot_stamp *stamps,
			    unsigned num_stamps)
{
	struct ucm_snapshot_head *head = &writer->head;

	head->num_spaces++;
	head->spaces_crc = ucm_crc32c(head->spaces_crc, space, sizeof(*space));
	head->spaces_crc = ucm_crc32c(head->spaces_crc, stamps,
				      num_stamps * sizeof(*stamps));
	put(writer, space, sizeof(*space));
	put(writer, stamps, num_stamps * sizeof(*stamps));
}

/* The head last: without it the rest is nothing. */
static void put_head(struct ucm_snapshot_writer *writer)
{
	struct ucm_snapshot_head *head = &writer->head;

	head->file_bytes = writer->at;
	head->sections_crc = ucm_crc32c(0, writer->sections,
					sizeof(writer->sections));
	head->crc = head_crc(head);
	writer->at = 0;
	put(writer, head, sizeof(*head));
	put(writer, writer->sections, sizeof(writer->sections));
	flush(writer);
}

int ucm_snapshot_finish(struct ucm_snapshot_writer *writer,
			uint64_t *number_out)
{
	flush(writer);
	put_head(writer);
	free(writer->buffer);
	if (!writer->err)
		*number_out = writer->head.number;
	return writer->err;
}
