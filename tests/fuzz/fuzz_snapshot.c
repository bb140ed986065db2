/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_snapshot.c - a snapshot of any bytes: refused with a reason, or records
 * of spaces and buckets that it has.
 *
 * The first byte of the input says whether lengths and checksums are made right
 * first; the directory and the number are those that the bytes name.
 */
#include <config.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/index/snapshot.h"
#include "tests/fuzz/require.h"

static void seal(uint8_t *bytes, size_t len)
{
	struct ucm_snapshot_section sections[UCM_SNAPSHOT_SECTIONS];
	size_t at = UCM_SNAPSHOT_HEAD_BYTES;
	struct ucm_snapshot_head head;

	memcpy(&head, bytes, sizeof(head));
	memcpy(sections, bytes + sizeof(head), sizeof(sections));
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++) {
		uint64_t num = sections[i].num;

		if (num > (len - at) / sizeof(struct ucm_snapshot_record))
			continue;
		num *= sizeof(struct ucm_snapshot_record);
		sections[i].crc = ucm_crc32c(0, bytes + at, num);
		at += num;
	}
	head.file_bytes = len;
	head.sections_crc = ucm_crc32c(0, sections, sizeof(sections));
	head.spaces_crc = ucm_crc32c(0, bytes + at, len - at);
	head.crc = ucm_crc32c(0, &head, offsetof(struct ucm_snapshot_head, crc));
	memcpy(bytes, &head, sizeof(head));
	memcpy(bytes + sizeof(head), sections, sizeof(sections));
}

static int new_file(const uint8_t *bytes, size_t len)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	REQUIRE(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
	return fd;
}

static void read_section(const struct ucm_snapshot *snapshot, unsigned section)
{
	struct ucm_snapshot_record *records;
	const char *why = NULL;
	uint64_t num;

	if (ucm_snapshot_read(snapshot, section, &records, &num, &why)) {
		REQUIRE(why && *why);
		return;
	}
	for (uint64_t i = 0; i < num; i++) {
		REQUIRE(records[i].id.bytes[0] == section);
		REQUIRE(records[i].space < snapshot->head.num_spaces);
	}
	free(records);
}

static void read_stamps(const struct ucm_snapshot_space *space)
{
	volatile uint64_t sum = 0;

	REQUIRE(strnlen(space->name, sizeof(space->name)) <
		sizeof(space->name));
	for (unsigned bucket = 0; bucket < UCM_SNAPSHOT_SECTIONS; bucket++) {
		const struct ucm_snapshot_stamp *stamp =
			ucm_snapshot_bucket(space, bucket);

		if (stamp)
			sum += stamp->ino + (uint64_t)stamp->ctime_ns;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t bytes[1 << 20];
	struct ucm_snapshot_head head = { .number = 1 };
	struct ucm_snapshot snapshot;
	struct ucm_bytes file;
	const char *why = NULL;
	int fd, err;

	if (size < 1 || size > sizeof(bytes))
		return 0;
	memcpy(bytes, data + 1, --size);
	if (data[0] & 1 && size >= UCM_SNAPSHOT_HEAD_BYTES)
		seal(bytes, size);
	if (size >= sizeof(head))
		memcpy(&head, bytes, sizeof(head));
	fd = new_file(bytes, size);
	file = ucm_bytes_of_fd(fd);
	err = ucm_snapshot_open(&file, size, head.uuid, head.number, &snapshot,
				&why);
	if (err) {
		REQUIRE(why && *why);
		close(fd);
		return 0;
	}
	for (unsigned i = 0; i < UCM_SNAPSHOT_SECTIONS; i++)
		read_section(&snapshot, i);
	for (uint32_t i = 0; i < snapshot.head.num_spaces; i++)
		read_stamps(snapshot.spaces[i]);
	ucm_snapshot_close(&snapshot);
	close(fd);
	return 0;
}
