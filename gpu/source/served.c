/* SPDX-License-Identifier: Apache-2.0 */
/* served.c - spaces of a daemon, by its socket; see served.h. */
#include <config.h>

#include "gpu/source/served.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucm/client.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "common/error.h"
#include "common/osfile.h"

/* A connection, and what is asked for on it. */
struct served {
	const char *where, *name;
	struct ucm_client *client;
	struct ucm_error *error;
};

static int begin(struct served *served)
{
	int err = ucm_client_connect(served->where, &served->client);

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

static int failed(const struct served *served, int err)
{
	return ucm_error_set(served->error, err, "%s: space %s: %s",
			     served->where, served->name, strerror(-err));
}

static int ask(const struct served *served, struct ucm_serve_request *head,
	       const void *items, int *fd_out)
{
	if (strlen(served->name) >= sizeof(head->space))
		return -ENAMETOOLONG;
	strcpy(head->space, served->name);
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
	int err = ask(served, &head, NULL, &fd);

	if (!err)
		err = ucm_os_fstat(fd, &st);
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
	FILE *status = fopen("/proc/self/status", "re");
	char line[256];
	unsigned mask = 077;

	while (status && fgets(line, sizeof(line), status)) {
		if (sscanf(line, "Umask: %o", &mask) == 1)
			break;
	}
	if (status)
		fclose(status);
	return (mode_t)mask;
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

int ucm_served_make(const char *where, const char *name, const char *manifest,
		    char there[UCM_SPACE_MANIFEST_MAX],
		    struct ucm_error *error)
{
	struct served served = { where, name, NULL, error };
	struct ucm_serve_request head = {
		.verb = UCM_SERVE_MKSPACE,
		.argument = 0777 & ~umask_now(),
		.num = (uint32_t)strlen(manifest),
	};
	int err = begin(&served);

	if (err)
		return err;
	err = ask(&served, &head, manifest, NULL);
	if (err == -EEXIST && there && read_manifest(&served, there))
		*there = '\0'; /* removed since then */
	if (err)
		why_not_made(&served, err);
	ucm_client_close(served.client);
	return err;
}

int ucm_served_manifest(const char *where, const char *name,
			char text[UCM_SPACE_MANIFEST_MAX],
			struct ucm_error *error)
{
	struct served served = { where, name, NULL, error };
	int err = begin(&served);

	if (err)
		return err;
	err = read_manifest(&served, text);
	if (err)
		failed(&served, err);
	ucm_client_close(served.client);
	return err;
}

int ucm_served_list(const char *where,
		    int (*each)(void *arg, const char *name), void *arg,
		    struct ucm_error *error)
{
	struct served served = { where, "", NULL, error };
	_cleanup_free_ char *names = NULL;
	size_t len = 0;
	int err = begin(&served);

	if (err)
		return err;
	err = read_text(&served, UCM_TEXT_SPACES, SIZE_MAX - 1, &names, &len);
	ucm_client_close(served.client);
	if (err)
		return ucm_error_set(error, err, "%s: %s", where,
				     strerror(-err));
	for (const char *name = names; !err && name < names + len;
	     name += strlen(name) + 1)
		err = each(arg, name);
	if (err) /* the caller knows why */
		ucm_error_set(error, err, "%s", "");
	return err;
}

int ucm_served_remove(const char *where, const char *name,
		      struct ucm_error *error)
{
	struct served served = { where, name, NULL, error };
	struct ucm_serve_request head = { .verb = UCM_SERVE_RMSPACE };
	int err = begin(&served);

	if (err)
		return err;
	err = ask(&served, &head, NULL, NULL);
	if (err)
		failed(&served, err);
	ucm_client_close(served.client);
	return err;
}
