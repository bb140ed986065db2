/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stat.c - ucm stat: all about one block; see ucm(1).
 *
 * Where it is stored is asked first, because reading its header counts as a use.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "hashing/tree.h"
#include "tools/lib/args.h"
#include "tools/lib/ids.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static struct ucm_common common;
static struct ucm_id id;

static const struct ucm_arg args[] = {
	UCM_ARGS_BLOCKS(common),
	{ 0 },
};

struct subject {
	struct ucm_target *target;
	struct ucm_control_place place;
	char path[4096];   /* "": not known */
	char opens[16]; /* before we open it; "": not known */
	char children[16], copy[64]; /* as the mount says; "": it does not */
	struct ucm_block block;
	uint8_t *head;     /* the file's first data_offset bytes */
};

/* ---- reading ---- */

static _Noreturn void fail(const char *why)
{
	ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", ucm_hex(&id).text, why);
}

static void require(int err)
{
	if (err)
		fail(err == -ENOENT ? "absent" : strerror(-err));
}

/* "": there is none. */
static void read_attr(const char *path, const char *name, char *value,
		      size_t size)
{
	ssize_t len = getxattr(path, name, value, size - 1);

	value[len < 0 ? 0 : len] = '\0';
}

/* The attributes are those of a mount; a socket alone has none. */
static int open_by_daemon(struct subject *subject)
{
	const struct ucm_target *target = subject->target;
	char folder[UCM_TREE_FOLDER_MAX], below[UCM_TREE_PATH_MAX];
	_cleanup_free_ char *path = NULL;
	int fd, err;

	ucm_tree_folder(common.space, folder);
	ucm_tree_block_path(folder, &id, below);
	path = ucm_tool_format("%s/%s", target->mount, below);
	read_attr(path, "user.ucmfs.opens", subject->opens,
		  sizeof(subject->opens));
	read_attr(path, "user.ucmfs.children", subject->children,
		  sizeof(subject->children));
	read_attr(path, "user.ucmfs.copy", subject->copy,
		  sizeof(subject->copy));
	err = ucm_client_open(target->client, common.space, &id, 1, &fd, NULL);
	require(err ?: fd < 0 ? fd : 0);
	return fd;
}

static size_t read_bytes(int fd, void *bytes, size_t len)
{
	ssize_t got = ucm_os_read_at(fd, bytes, len, 0);

	require((int)(got < 0 ? got : 0));
	return (size_t)got;
}

static void parse_head(struct subject *subject, int fd, uint64_t size)
{
	struct ucm_block *block = &subject->block;
	uint8_t start[UCM_BLOCK_EXT_BYTES];
	size_t got = read_bytes(fd, start, sizeof(start));
	enum ucm_fault fault = ucm_block_parse(start, got, size, block);

	if (!fault) {
		subject->head = ucm_tool_alloc(block->data_offset, 1);
		got = read_bytes(fd, subject->head, block->data_offset);
		fault = got < block->data_offset
				? UCM_FAULT_SHORT
				: ucm_block_check_extension(block, subject->head,
							    got);
	}
	if (!fault && memcmp(&block->id, &id, sizeof(id)))
		fault = UCM_FAULT_NAME;
	if (fault)
		fail(ucm_fault_text(fault));
}

static void read_subject(struct subject *subject)
{
	_cleanup_fd_ int fd = -1;
	struct stat st;
	int err;

	if (ucm_target_locate(subject->target, common.space, &id, 1,
			      &subject->place))
		ucm_tool_exit(UCM_EXIT_FAILED);
	require(subject->place.result);
	err = ucm_target_path(subject->target, common.space, &id,
			      subject->path);
	if (err && err != -EPERM && err != -ENOENT)
		ucm_tool_exit(UCM_EXIT_FAILED);
	require(err == -ENOENT ? err : 0);
	fd = open_by_daemon(subject);
	require(fstat(fd, &st) ? -errno : 0);
	parse_head(subject, fd, (uint64_t)st.st_size);
}

/* ---- telling ---- */

static json_t *describe_time(int64_t seconds)
{
	time_t time = (time_t)seconds;
	struct tm tm;
	char text[32] = "";

	if (gmtime_r(&time, &tm))
		strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
	return json_string(text);
}

static json_t *describe_hex(const uint8_t *bytes, size_t len)
{
	char text[2 * 32 + 1];

	for (size_t i = 0; i < len; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	return json_string(text);
}

static json_t *describe_crc(uint32_t crc)
{
	char text[9];

	snprintf(text, sizeof(text), "%08" PRIx32, crc);
	return json_string(text);
}

/* What a header need not have, and has not, is left out. */
static json_t *describe_header(const struct ucm_block *block)
{
	static const char *const forms[] = { "paged", "packed", "bare" };
	uint32_t has = block->flags;
	char text[160];

	ucm_geometry_text(&block->geometry, text, sizeof(text));
	return json_pack(
		"{ss ss sI sI so* so* so* so*}", "form", forms[block->form],
		"geometry", text, "payload",
		(json_int_t)ucm_block_payload_bytes(&block->geometry),
		"payload_at", (json_int_t)block->data_offset, "crc32c",
		has & UCM_BLOCK_HAS_CRC ? describe_crc(block->payload_crc) : NULL,
		"parent",
		has & UCM_BLOCK_HAS_PARENT ? ucm_json_id(&block->parent) : NULL,
		"space_id",
		has & UCM_BLOCK_HAS_SPACE
			? describe_hex(block->space_id, sizeof(block->space_id))
			: NULL,
		"created",
		block->created_ns
			? describe_time((int64_t)(block->created_ns / 1000000000))
			: NULL);
}

static json_t *text_or_none(const char *text)
{
	return *text ? ucm_json_text(text) : NULL;
}

static json_t *describe_place(const struct subject *subject)
{
	const struct ucm_control_place *place = &subject->place;

	return json_pack(
		"{ss sI so* so* sI sI so so sb so* so*}", "tier",
		ucm_target_tier(subject->target, place->tier), "directory",
		(json_int_t)place->directory, "copy",
		text_or_none(subject->copy), "children",
		text_or_none(subject->children), "generation",
		(json_int_t)place->generation, "uses", (json_int_t)place->uses,
		"used", describe_time(place->atime_s), "committed",
		describe_time(place->mtime_ns / 1000000000), "pinned",
		place->flags & UCM_PLACE_PINNED, "opens",
		*subject->opens ? json_integer(atoll(subject->opens)) : NULL,
		"path", text_or_none(subject->path));
}

static json_t *describe(const struct subject *subject)
{
	char folder[UCM_TREE_FOLDER_MAX];
	json_t *json;

	ucm_tree_folder(common.space, folder);
	json = json_pack("{so so sI}", "id", ucm_json_id(&id), "space",
			 ucm_json_text(folder), "size",
			 (json_int_t)subject->place.size);
	json_object_update_new(json, describe_header(&subject->block));
	json_object_update_new(json, describe_place(subject));
	return json;
}

/* A plane: where it is, and its checksum if there is one. */
struct plane {
	uint32_t layer;
	char part;
	uint64_t offset;
	uint32_t bytes, crc;
	bool has_crc;
};

/* The i-th of two for each layer; false: it is empty. */
static bool get_plane(const struct subject *subject, uint32_t i,
		      struct plane *out)
{
	const struct ucm_block *block = &subject->block;
	bool v = i % 2;

	out->layer = i / 2;
	out->part = v ? 'V' : 'K';
	out->offset = ucm_block_layer_offset(block, out->layer) +
		      (v ? block->geometry.k_bytes : 0);
	out->bytes = v ? block->geometry.v_bytes : block->geometry.k_bytes;
	out->has_crc = block->form == UCM_FORM_PAGED &&
		       block->flags & UCM_BLOCK_HAS_CRC;
	out->crc = out->has_crc ? ucm_block_plane_crc(block, subject->head, i)
				: 0;
	return out->bytes;
}

static void print_planes(const struct subject *subject)
{
	struct plane plane;

	printf("\n%6s %s %12s %10s %s\n", "LAYER", " ", "OFFSET", "BYTES",
	       "CRC32C");
	for (uint32_t i = 0; i < 2 * subject->block.geometry.num_layers; i++) {
		if (!get_plane(subject, i, &plane))
			continue;
		printf("%6" PRIu32 " %c %12" PRIu64 " %10" PRIu32, plane.layer,
		       plane.part, plane.offset, plane.bytes);
		if (plane.has_crc)
			printf(" %08" PRIx32 "\n", plane.crc);
		else
			puts(" -");
	}
}

static json_t *describe_plane(const struct plane *plane)
{
	const char part[2] = { plane->part, '\0' };

	return json_pack("{sI ss sI sI so*}", "layer",
			 (json_int_t)plane->layer, "part", part, "offset",
			 (json_int_t)plane->offset, "bytes",
			 (json_int_t)plane->bytes, "crc32c",
			 plane->has_crc ? describe_crc(plane->crc) : NULL);
}

static json_t *describe_planes(const struct subject *subject)
{
	json_t *list = json_array();
	struct plane plane;

	for (uint32_t i = 0; i < 2 * subject->block.geometry.num_layers; i++) {
		if (get_plane(subject, i, &plane))
			ucm_json_add(list, describe_plane(&plane));
	}
	return list;
}

static void print_fields(json_t *json)
{
	const char *name;
	json_t *value;

	json_object_foreach(json, name, value) {
		if (json_is_integer(value))
			printf("%-10s %lld\n", name, json_integer_value(value));
		else
			printf("%-10s %s\n", name,
			       json_is_true(value)    ? "yes"
			       : json_is_false(value) ? "no"
						      : json_string_value(value));
	}
}

static int tell(const struct subject *subject)
{
	json_t *json = describe(subject);

	if (common.json) {
		ucm_json_set(json, "planes", describe_planes(subject));
		return ucm_json_print(json, 0);
	}
	print_fields(json);
	json_decref(json);
	print_planes(subject);
	return ucm_tool_flush();
}

static int show(struct ucm_target *target)
{
	struct subject subject = { .target = target };
	int status;

	read_subject(&subject);
	status = tell(&subject);
	free(subject.head);
	return status;
}

static int run(int argc, char **argv)
{
	if (!argc)
		ucm_tool_usage("no ID");
	if (ucm_ids_parse(argv[0], &id))
		ucm_tool_usage("'%s': not an id", argv[0]);
	return ucm_target_run(common.mount, show);
}

const struct ucm_command ucm_stat_command = {
	.name = "stat",
	.forms = (const struct ucm_command *const[]){
		&ucm_where_command, &ucm_lookup_command, NULL },
	.does = "show all about a block; find many (--where)",
	.operands = "ID",
	.about = "Print what a block's header says, where the block is, and "
		 "each plane with its checksum. Reading the header "
		 "counts as a use of the block.",
	.args = args,
	.end = "Exit status 1: the block is absent, or its header is wrong.",
	.most = 1,
	.run = run,
};
