/* SPDX-License-Identifier: Apache-2.0 */
/* store_shape.c - finds out the geometry of a space's blocks. */
#include <config.h>

#include "tools/lib/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <ucm/space.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/block/manifest.h"
#include "hashing/tree.h"
#include "tools/lib/ask.h"
#include "tools/lib/tool.h"

/* Of an open file, if it is a block. */
static int of_file(int fd, uint64_t size, struct ucm_geometry *out)
{
	char bytes[UCM_BLOCK_HEADER_BYTES];
	struct ucm_block block;
	ssize_t got = ucm_os_read_at(fd, bytes, sizeof(bytes), 0);

	if (got < 0)
		return (int)got;
	if (ucm_block_parse(bytes, (size_t)got, size, &block))
		return -EBADMSG;
	*out = block.geometry;
	return 0;
}

static void of_like(const char *path, struct ucm_geometry *out)
{
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	int err = fd < 0 || fstat(fd, &st)
			  ? -errno
			  : of_file(fd, (uint64_t)st.st_size, out);

	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", path,
			     err == -EBADMSG ? "not a block" : strerror(-err));
}

/* false: there is none. */
static bool of_manifest(const struct ucm_store_options *opt,
			struct ucm_geometry *out)
{
	char text[UCM_SPACE_MANIFEST_MAX];
	struct ucm_manifest manifest;
	struct ucm_error error;
	int err;

	if (!*opt->space)
		return false;
	err = ucm_space_manifest(opt->mount, NULL, opt->space, text, &error);
	if (!err)
		err = ucm_manifest_parse(text, strlen(text), &manifest, &error);
	if (err && err != -ENOENT)
		ucm_tool_die(UCM_EXIT_FAILED, "%s", error.text);
	if (!err)
		*out = manifest.geometry;
	return !err;
}

static int of_block(struct ucm_client *client, const char *space,
		    const struct ucm_id *id, struct ucm_geometry *out)
{
	struct stat st;
	_cleanup_fd_ int fd = ucm_store_block_open(client, space, id, &st);

	return fd < 0 ? fd : of_file(fd, (uint64_t)st.st_size, out);
}

static int of_blocks(struct ucm_client *client, const char *space,
		     struct ucm_geometry *out)
{
	struct ucm_ids ids = { .num = 0 };
	int err = -ENOENT;

	for (unsigned bucket = 0; bucket < UCM_BUCKETS && err; bucket++) {
		err = ucm_ask_ids(client, space, bucket, &ids) ?: -ENOENT;
		for (size_t i = 0; i < ids.num && err; i++)
			err = of_block(client, space, &ids.ids[i], out);
	}
	ucm_ids_fini(&ids);
	return err;
}

struct ucm_geometry ucm_store_shape(const struct ucm_store_options *opt)
{
	struct ucm_geometry shape = opt->geometry;
	struct ucm_client *client;

	if (opt->like)
		of_like(opt->like, &shape);
	if (opt->like || opt->shaped)
		return shape;
	client = ucm_store_connect(opt);
	if (!of_manifest(opt, &shape) && of_blocks(client, opt->space, &shape))
		ucm_tool_die(UCM_EXIT_FAILED, "the space has no block and no "
			     "manifest: give its geometry, or --like");
	ucm_client_close(client);
	return shape;
}
