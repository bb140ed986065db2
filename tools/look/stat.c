/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stat.c - ucm stat: all about one block; see ucm(1).
 *
 * Where it is stored is asked first, because reading its header counts as a use.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

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

static int fail(const char *why)
{
	char hex[UCM_ID_HEX + 1];

	ucm_id_format(&id, hex);
	return ucm_tool_complain("%s: %s", hex, why);
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
	if (asprintf(&path, "%s/%s", target->mount, below) < 0) {
		path = NULL;
		return fail("no memory");
	}
	read_attr(path, "user.ucmfs.opens", subject->opens,
		  sizeof(subject->opens));
	read_attr(path, "user.ucmfs.children", subject->children,
		  sizeof(subject->children));
	read_attr(path, "user.ucmfs.copy", subject->copy,
		  sizeof(subject->copy));
	err = ucm_client_open(target->client, common.space, &id, 1, &fd, NULL);
	if (err)
		fd = err;
	return fd >= 0 ? fd : fail(fd == -ENOENT ? "absent" : strerror(-fd));
}

/* So many bytes from the start; all of them. */
static int read_head(int fd, size_t len, uint8_t **out)
{
	uint8_t *bytes = malloc(len);
	ssize_t got = bytes ? ucm_os_read_at(fd, bytes, len, 0) : -ENOMEM;

	if (got == (ssize_t)len) {
		*out = bytes;
		return 0;
	}
	free(bytes);
	return fail(got < 0 ? strerror((int)-got)
			    : ucm_fault_text(UCM_FAULT_SHORT));
}

static int parse_head(struct subject *subject, int fd, uint64_t size)
{
	uint8_t start[UCM_BLOCK_EXT_BYTES];
	ssize_t got = ucm_os_read_at(fd, start, sizeof(start), 0);
	enum ucm_fault fault;
	int err;

	if (got < 0)
		return fail(strerror((int)-got));
	fault = ucm_block_parse(start, (size_t)got, size, &subject->block);
	if (fault)
		return fail(ucm_fault_text(fault));
	err = read_head(fd, subject->block.data_offset, &subject->head);
	if (err)
		return err;
	fault = ucm_block_check_extension(&subject->block, subject->head,
					  subject->block.data_offset);
	if (!fault && memcmp(&subject->block.id, &id, sizeof(id)))
		fault = UCM_FAULT_NAME;
	return fault ? fail(ucm_fault_text(fault)) : 0;
}

static int read_subject(struct subject *subject)
{
	_cleanup_fd_ int fd = -1;
	struct stat st;
	int err = ucm_target_locate(subject->target, common.space, &id, 1,
				    &subject->place);

	if (err)
		return err;
	if (subject->place.result)
		return fail(subject->place.result == -ENOENT
				    ? "absent"
				    : strerror(-subject->place.result));
	err = ucm_target_path(subject->target, common.space, &id,
			      subject->path);
	if (err && err != -EPERM)
		return err == -ENOENT ? fail("absent") : err;
	fd = open_by_daemon(subject);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st))
		return fail(strerror(errno));
	return parse_head(subject, fd, (uint64_t)st.st_size);
}

/* ---- telling ---- */

struct field {
	const char *name;
	char text[160]; /* "": left out */
};

enum { FIELDS_MAX = 24 };

__attribute__((format(printf, 3, 4))) static void
add(struct field **at, const char *name, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf((*at)->text, sizeof((*at)->text), format, list);
	va_end(list);
	(*at)++->name = name;
}

static void add_id(struct field **at, const char *name, const struct ucm_id *of)
{
	char hex[UCM_ID_HEX + 1];

	ucm_id_format(of, hex);
	add(at, name, "%s", hex);
}

static void add_time(struct field **at, const char *name, int64_t seconds)
{
	time_t time = (time_t)seconds;
	struct tm tm;
	char text[32];

	if (gmtime_r(&time, &tm) &&
	    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm))
		add(at, name, "%s", text);
}

static void add_header(struct field **at, const struct ucm_block *block)
{
	static const char *const forms[] = { "paged", "packed", "bare" };
	char text[160];

	ucm_geometry_text(&block->geometry, text, sizeof(text));
	add(at, "form", "%s", forms[block->form]);
	add(at, "geometry", "%s", text);
	add(at, "payload", "%" PRIu64,
	    ucm_block_payload_bytes(&block->geometry));
	add(at, "payload_at", "%" PRIu32, block->data_offset);
	if (block->flags & UCM_BLOCK_HAS_CRC)
		add(at, "crc32c", "%08" PRIx32, block->payload_crc);
	if (block->flags & UCM_BLOCK_HAS_PARENT)
		add_id(at, "parent", &block->parent);
	if (block->flags & UCM_BLOCK_HAS_SPACE) {
		for (unsigned i = 0; i < sizeof(block->space_id); i++)
			snprintf(text + 2 * i, 3, "%02x", block->space_id[i]);
		add(at, "space_id", "%s", text);
	}
	if (block->created_ns)
		add_time(at, "created",
			 (int64_t)(block->created_ns / 1000000000));
}

static size_t fill_fields(const struct subject *subject, struct field *fields)
{
	const struct ucm_control_place *place = &subject->place;
	char folder[UCM_TREE_FOLDER_MAX];
	struct field *at = fields;

	ucm_tree_folder(common.space, folder);
	add_id(&at, "id", &id);
	add(&at, "space", "%s", folder);
	add(&at, "size", "%" PRIu64, place->size);
	add_header(&at, &subject->block);
	add(&at, "tier", "%s", ucm_target_tier(subject->target, place->tier));
	add(&at, "directory", "%u", place->directory);
	if (*subject->copy)
		add(&at, "copy", "%s", subject->copy);
	if (*subject->children)
		add(&at, "children", "%s", subject->children);
	add(&at, "generation", "%" PRIu32, place->generation);
	add(&at, "uses", "%" PRIu32, place->uses);
	add_time(&at, "used", place->atime_s);
	add_time(&at, "committed", place->mtime_ns / 1000000000);
	add(&at, "pinned", "%s",
	    place->flags & UCM_PLACE_PINNED ? "yes" : "no");
	if (*subject->opens)
		add(&at, "opens", "%s", subject->opens);
	return (size_t)(at - fields);
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
	char crc[9];
	json_t *json = json_pack("{sI ss sI sI}", "layer",
				 (json_int_t)plane->layer, "part", part,
				 "offset", (json_int_t)plane->offset, "bytes",
				 (json_int_t)plane->bytes);

	snprintf(crc, sizeof(crc), "%08" PRIx32, plane->crc);
	if (json && plane->has_crc)
		json_object_set_new(json, "crc32c", json_string(crc));
	return json;
}

static json_t *describe_planes(const struct subject *subject)
{
	json_t *list = json_array();
	struct plane plane;

	for (uint32_t i = 0; i < 2 * subject->block.geometry.num_layers; i++) {
		if (get_plane(subject, i, &plane) &&
		    json_array_append_new(list, describe_plane(&plane))) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

/* Numbers are numbers. */
static json_t *field_json(const struct field *field)
{
	static const char *const numbers[] = {
		"size", "payload", "payload_at", "directory", "generation",
		"uses", "opens",
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!strcmp(field->name, numbers[i]))
			return ucm_json_number(strtoull(field->text, NULL, 10));
	}
	if (!strcmp(field->name, "pinned"))
		return json_boolean(field->text[0] == 'y');
	return ucm_json_text(field->text);
}

static int tell_json(const struct subject *subject, const struct field *fields,
		     size_t num)
{
	json_t *json = json_object();
	int err = 0;

	for (size_t i = 0; i < num && !err; i++)
		err = json_object_set_new(json, fields[i].name,
					  field_json(&fields[i]));
	if (!err && *subject->path)
		err = json_object_set_new(json, "path",
					  ucm_json_text(subject->path));
	if (!err)
		err = json_object_set_new(json, "planes",
					  describe_planes(subject));
	if (err) {
		json_decref(json);
		json = NULL;
	}
	return ucm_json_print(json, 0);
}

static int tell(const struct subject *subject)
{
	struct field fields[FIELDS_MAX];
	size_t num = fill_fields(subject, fields);

	if (common.json)
		return tell_json(subject, fields, num);
	for (size_t i = 0; i < num; i++)
		printf("%-10s %s\n", fields[i].name, fields[i].text);
	if (*subject->path)
		printf("%-10s %s\n", "path", subject->path);
	print_planes(subject);
	return ucm_tool_flush();
}

static int show(struct ucm_target *target)
{
	struct subject subject = { .target = target };
	int status = read_subject(&subject) ? UCM_EXIT_FAILED
					    : tell(&subject);

	free(subject.head);
	return status;
}

static int run(int argc, char **argv)
{
	if (!argc)
		return ucm_tool_fail(UCM_EXIT_USAGE, "no ID; try --help");
	if (ucm_ids_parse(argv[0], &id))
		return ucm_tool_fail(UCM_EXIT_USAGE,
				     "'%s': not an id; try --help", argv[0]);
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
