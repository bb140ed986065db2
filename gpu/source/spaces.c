/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - the calls of <ucm/space.h>: spaces that programs make and read, of a
 * daemon (served.c), which is a private one where they name directories.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/space.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "fs/reader/reader.h"
#include "fs/block/manifest.h"
#include "gpu/source/served.h"
#include "hashing/tree.h"

_Static_assert(UCM_SPACE_MANIFEST_MAX == UCM_MANIFEST_MAX, "one limit");

/* Where the daemon is found, to free. */
static int find_daemon(const char *mount, const char *tiers, char **out,
		       struct ucm_error *error)
{
	if (!mount == !tiers)
		return ucm_error_set(error, -EINVAL,
				     "neither a mount nor tiers, or both");
	if (asprintf(out, "%s%s", mount ? "" : UCM_CLIENT_TIERS,
		     mount ? mount : tiers) >= 0)
		return 0;
	*out = NULL;
	return ucm_error_set(error, -ENOMEM, "out of memory");
}

static int check_name(const char *name, struct ucm_error *error)
{
	return ucm_tree_space_valid(name)
		       ? 0
		       : ucm_error_set(error, -EINVAL,
				       "'%s': no name of a space", name);
}

static int check_manifest(const char *text, struct ucm_error *error)
{
	struct ucm_manifest manifest;
	size_t len = strlen(text);

	if (len >= UCM_SPACE_MANIFEST_MAX)
		return ucm_error_set(error, -EINVAL,
				     "a manifest of %zu bytes; %u are the "
				     "most",
				     len, UCM_SPACE_MANIFEST_MAX - 1);
	return ucm_manifest_parse(text, len, &manifest, error);
}

int ucm_space_make(const char *mount, const char *tiers, const char *name,
		   const char *manifest, char there[UCM_SPACE_MANIFEST_MAX],
		   struct ucm_error *error)
{
	_cleanup_free_ char *where = NULL;
	int err = find_daemon(mount, tiers, &where, error);

	if (!err)
		err = check_name(name, error);
	if (!err)
		err = check_manifest(manifest, error);
	return err ? err : ucm_served_make(where, name, manifest, there, error);
}

/* Of the blocks. */
static bool says_nothing(const char *text)
{
	uint64_t quota;

	return ucm_manifest_quota_alone(text, strlen(text), &quota);
}

int ucm_space_manifest(const char *mount, const char *tiers, const char *name,
		       char text[UCM_SPACE_MANIFEST_MAX],
		       struct ucm_error *error)
{
	_cleanup_free_ char *where = NULL;
	int err = find_daemon(mount, tiers, &where, error);

	if (!err)
		err = check_name(name, error);
	if (!err)
		err = ucm_served_manifest(where, name, text, error);
	if (err || !says_nothing(text))
		return err;
	return ucm_error_set(error, -ENOENT, "%s: space %s: %s", where, name,
			     strerror(ENOENT));
}

int ucm_space_list(const char *mount, const char *tiers,
		   int (*each)(void *arg, const char *name), void *arg,
		   struct ucm_error *error)
{
	_cleanup_free_ char *where = NULL;
	int err = find_daemon(mount, tiers, &where, error);

	return err ? err : ucm_served_list(where, each, arg, error);
}

int ucm_space_remove(const char *mount, const char *name,
		     struct ucm_error *error)
{
	int err = check_name(name, error);

	return err ? err : ucm_served_remove(mount, name, error);
}
