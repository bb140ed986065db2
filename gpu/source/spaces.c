/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - the calls of <ucm/space.h>: spaces that programs make and read, of a
 * daemon, by its socket; of a private one where they name directories.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucm/client.h>
#include <ucm/space.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "common/error.h"
#include "common/osfile.h"
#include "common/process.h"
#include "fs/block/manifest.h"
#include "fs/reader/reader.h"
#include "hashing/tree.h"

_Static_assert(UCM_SPACE_MANIFEST_MAX == UCM_MANIFEST_MAX, "one limit");

/* ---- a request ---- */

/* A connection, and what is asked for on it. */
struct served {
	const char *name; /* of the space; NULL: of none */
	struct ucm_error *error;
	char *where; /* the daemon is found */
	struct ucm_client *client;
};

static int set_where(struct served *served, const char *mount,
		     const char *tiers)
{
	if (!mount == !tiers)
		return ucm_error_set(served->error, -EINVAL,
				     "neither a mount nor tiers, or both");
	if (served->name && !ucm_tree_space_valid(served->name))
		return ucm_error_set(served->error, -EINVAL,
				     "'%s': no name of a space", served->name);
	if (asprintf(&served->where, "%s%s", mount ? "" : UCM_CLIENT_TIERS,
		     mount ? mount : tiers) >= 0)
		return 0;
	served->where = NULL;
	return ucm_error_set(served->error, -ENOMEM, "out of memory");
}

/* end() must follow, whatever it returns. */
static int begin(struct served *served, const char *mount, const char *tiers)
{
	int err = set_where(served, mount, tiers);

	if (err)
		return err;
	err = ucm_client_connect(served->where, &served->client);
	if (err)
		err = ucm_mount_error(-err);
	if (err == -ENOENT)
		return ucm_error_set(served->error, err,
				     "%s: no socket: is ucmfs mounted there?",
				     served->where);
	return err ? ucm_error_set(served->error, err, "%s: %s", served->where,
				   strerror(-err))
		   : 0;
}

static int end(struct served *served, int err)
{
	ucm_client_close(served->client);
	free(served->where);
	return err;
}

static int failed(const struct served *served, int err)
{
	return ucm_error_set(served->error, err, "%s: space %s: %s",
			     served->where, served->name, strerror(-err));
}

static int ask(const struct served *served, struct ucm_serve_request *head,
	       const void *items, int *fd_out)
{
	const char *name = served->name ? served->name : "";

	if (strlen(name) >= sizeof(head->space))
		return -ENAMETOOLONG;
	strcpy(head->space, name);
	return ucm_client_call(served->client, head, items, 1, NULL, 0, fd_out);
}

/* A text of the daemon's, with a NUL after it. */
static int read_text(const struct served *served, uint32_t what, size_t most,
		     char **out, size_t *len_out)
{
	struct ucm_serve_request head = { .verb = UCM_SERVE_TEXT,
					  .argument = what };
	_cleanup_fd_ int fd = -1;
	struct stat st;
	char *text;
	int err = ask(served, &head, NULL, &fd)
		?: ucm_os_fstat(fd, &st);

	if (err)
		return err;
	if ((uint64_t)st.st_size > most)
		return -EFBIG;
	text = calloc(1, (size_t)st.st_size + 1);
	if (!text)
		return -ENOMEM;
	*len_out = (size_t)st.st_size;
	if (ucm_os_read_at(fd, text, *len_out, 0) == (ssize_t)*len_out) {
		*out = text;
		return 0;
	}
	free(text);
	return -EIO;
}

static int read_manifest(const struct served *served,
			 char text[UCM_SPACE_MANIFEST_MAX])
{
	_cleanup_free_ char *here = NULL;
	size_t len;
	int err = read_text(served, UCM_TEXT_MANIFEST,
			    UCM_SPACE_MANIFEST_MAX - 1, &here, &len);

	if (!err)
		strcpy(text, here);
	return err;
}

/* Of this process. umask(2) can only be asked by changing it, and other threads may
 * be making files. If it is not known the space is private. */
static mode_t umask_now(void)
{
	return (mode_t)ucm_process_bits("self", "Umask:", 8, 077);
}

static int why_not_made(const struct served *served, int err)
{
	if (err == -EEXIST)
		return ucm_error_set(served->error, err,
				     "%s: space %s: it has another manifest",
				     served->where, served->name);
	if (err == -ENOTEMPTY)
		return ucm_error_set(
			served->error, err,
			"%s: space %s: it has blocks and no manifest",
			served->where, served->name);
	if (err == -EINVAL)
		return ucm_error_set(
			served->error, err,
			"%s: space %s: blocks of another geometry, or a "
			"manifest that ucmfs refuses; its log says which",
			served->where, served->name);
	return failed(served, err);
}

/* ---- calls ---- */

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
	struct served served = { name, error, NULL, NULL };
	struct ucm_serve_request head = {
		.verb = UCM_SERVE_MKSPACE,
		.argument = 0777 & ~umask_now(),
	};
	int err = check_manifest(manifest, error)
		?: begin(&served, mount, tiers);

	if (err)
		return end(&served, err);
	head.num = (uint32_t)strlen(manifest);
	err = ask(&served, &head, manifest, NULL);
	if (err == -EEXIST && there && read_manifest(&served, there))
		*there = '\0'; /* removed since then */
	if (err)
		why_not_made(&served, err);
	return end(&served, err);
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
	struct served served = { name, error, NULL, NULL };
	int err = begin(&served, mount, tiers);

	if (err)
		return end(&served, err);
	err = read_manifest(&served, text);
	if (!err && says_nothing(text))
		err = -ENOENT;
	if (err)
		failed(&served, err);
	return end(&served, err);
}

int ucm_space_list(const char *mount, const char *tiers,
		   int (*each)(void *arg, const char *name), void *arg,
		   struct ucm_error *error)
{
	struct served served = { NULL, error, NULL, NULL };
	_cleanup_free_ char *names = NULL;
	size_t len = 0;
	int err = begin(&served, mount, tiers);

	if (err)
		return end(&served, err);
	err = read_text(&served, UCM_TEXT_SPACES, SIZE_MAX - 1, &names, &len);
	if (err)
		ucm_error_set(error, err, "%s: %s", served.where,
			      strerror(-err));
	end(&served, err);
	if (err)
		return err;
	for (const char *name = names; !err && name < names + len;
	     name += strlen(name) + 1)
		err = each(arg, name);
	if (err) /* the caller knows why */
		ucm_error_set(error, err, "%s", "");
	return err;
}

int ucm_space_remove(const char *mount, const char *name,
		     struct ucm_error *error)
{
	struct served served = { name, error, NULL, NULL };
	struct ucm_serve_request head = { .verb = UCM_SERVE_RMSPACE };
	int err = begin(&served, mount, NULL);

	if (err)
		return end(&served, err);
	err = ask(&served, &head, NULL, NULL);
	if (err)
		failed(&served, err);
	return end(&served, err);
}
