/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_notes.c - a directory's notes: small files in .ucmfs, and in the folders
 * of spaces.
 *
 * Each is replaced whole, by a file beside it that takes its name once it is on
 * disk.
 */
#include <config.h>

#include "fs/tier/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"

/* Where a note lies: a descriptor, and the path below it. */
static int place_note(struct ucm_medium *medium, const char *folder,
		      const char *name, char path[UCM_TREE_PATH_MAX])
{
	const struct ucm_directory *dir = ucm_directory_of(medium);

	snprintf(path, UCM_TREE_PATH_MAX, "%s%s%s", folder ? folder : "",
		 folder ? "/" : "", name);
	return folder ? dir->dirfd : dir->ctlfd;
}

static int directory_read_note(struct ucm_medium *medium, const char *folder,
			       const char *name, char *text, size_t size)
{
	char path[UCM_TREE_PATH_MAX];
	int at = place_note(medium, folder, name, path);

	return ucm_os_read_file(at, path, text, size);
}

static int directory_replace_note(struct ucm_medium *medium,
				  const char *folder, const char *name,
				  const char *text, size_t len)
{
	char path[UCM_TREE_PATH_MAX];
	int at = place_note(medium, folder, name, path);
	int err = ucm_directory_check_owner(ucm_directory_of(medium));

	if (!err)
		err = ucm_os_replace_file(at, path, text, len);
	if (err || folder)
		return err;
	err = ucm_os_fsync(at);
	return err == -EINVAL ? 0 : err; /* some cannot sync a folder */
}

static void new_note(const char *name, char path[UCM_TREE_PATH_MAX])
{
	snprintf(path, UCM_TREE_PATH_MAX, "%s.new", name);
}

static int directory_open_note(struct ucm_medium *medium, const char *name,
			       enum ucm_note_how how, struct ucm_file *out)
{
	int ctlfd = ucm_directory_of(medium)->ctlfd, fd;
	char path[UCM_TREE_PATH_MAX];
	struct stat st;

	switch (how) {
	case UCM_NOTE_READ:
		fd = ucm_os_open_regular(ctlfd, name, O_RDONLY, &st);
		break;
	case UCM_NOTE_CHANGE:
		fd = ucm_os_open(ctlfd, name, O_RDWR, 0);
		break;
	default:
		/* names and sizes of private spaces are nobody's business */
		new_note(name, path);
		fd = ucm_os_open(ctlfd, path, O_WRONLY | O_CREAT | O_TRUNC,
				 0600);
		break;
	}
	if (fd < 0)
		return fd;
	*out = ucm_file_of(medium, fd);
	return 0;
}

static int directory_keep_note(struct ucm_medium *medium, const char *name,
			       struct ucm_file *file, int err)
{
	int ctlfd = ucm_directory_of(medium)->ctlfd;
	char path[UCM_TREE_PATH_MAX];

	new_note(name, path);
	if (!err)
		err = ucm_directory_check_owner(ucm_directory_of(medium));
	if (!err)
		err = ucm_os_fsync(file->fd);
	ucm_file_close(file);
	if (!err)
		err = ucm_os_rename(ctlfd, path, ctlfd, name);
	if (err)
		ucm_os_unlink(ctlfd, path);
	return err;
}

static void directory_remove_note(struct ucm_medium *medium, const char *name)
{
	int ctlfd = ucm_directory_of(medium)->ctlfd;
	char path[UCM_TREE_PATH_MAX];

	new_note(name, path);
	ucm_os_unlink(ctlfd, name);
	ucm_os_unlink(ctlfd, path);
}

/* ---- pins ---- */

static int directory_pin(struct ucm_medium *medium, const char *folder,
			 const struct ucm_id *id, bool pinned)
{
	int ctlfd = ucm_directory_of(medium)->ctlfd;
	char flat[UCM_TREE_PATH_MAX], path[UCM_TREE_PATH_MAX + 16];
	_cleanup_fd_ int fd = -1;
	int err;

	if (medium->readonly)
		return -EROFS;
	ucm_directory_flat_name(folder, id, flat);
	snprintf(path, sizeof(path), "pinned/%s", flat);
	if (!pinned) {
		err = ucm_os_unlink(ctlfd, path);
		return err == -ENOENT ? 0 : err;
	}
	fd = ucm_os_open(ctlfd, path, O_WRONLY | O_CREAT, 0644);
	return fd < 0 ? fd : 0;
}

static void read_pin(const char *name,
		     void (*fn)(void *arg, const char *space,
				const struct ucm_id *id),
		     void *arg)
{
	const char *at = strrchr(name, '@');
	char space[UCM_TREE_PATH_MAX];
	struct ucm_id id;

	if (!at || strlen(at + 1) != UCM_ID_HEX || ucm_id_parse(at + 1, &id))
		return;
	snprintf(space, sizeof(space), "%.*s", (int)(at - name), name);
	fn(arg, space, &id);
}

static void directory_each_pin(struct ucm_medium *medium,
			       void (*fn)(void *arg, const char *space,
					  const struct ucm_id *id),
			       void *arg)
{
	_cleanup_free_ char *names = NULL;

	if (ucm_os_list(ucm_directory_of(medium)->ctlfd, "pinned", &names))
		return;
	for (const char *name = names; *name; name += strlen(name) + 1)
		read_pin(name, fn, arg);
}

const struct ucm_note_ops ucm_directory_notes = {
	.read = directory_read_note,
	.replace = directory_replace_note,
	.open = directory_open_note,
	.keep = directory_keep_note,
	.remove = directory_remove_note,
	.pin = directory_pin,
	.pins = directory_each_pin,
};
