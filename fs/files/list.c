/* SPDX-License-Identifier: Apache-2.0 */
/* list.c - listing folders of files/, and counting what is there; see
 * files.h. */
#include <config.h>

#include "fs/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

/* The next entry, NULL at the end. */
static const struct dirent *next_entry(const struct dirent *entry)
{
	entry = (const struct dirent *)((const char *)entry + entry->d_reclen);
	return entry->d_reclen ? entry : NULL;
}

static const struct dirent *first_entry(const struct dirent *entries)
{
	return entries->d_reclen ? entries : NULL;
}

/* DT_DIR, DT_REG, DT_LNK, or 0 for what is left out. */
static unsigned char type_of(struct ucm_files_tree *tree, unsigned dir,
			     const char *path, const struct dirent *entry)
{
	char name[PATH_MAX];
	struct stat st;

	if (entry->d_type == DT_DIR || entry->d_type == DT_REG ||
	    entry->d_type == DT_LNK)
		return entry->d_type;
	if (entry->d_type != DT_UNKNOWN ||
	    snprintf(name, sizeof(name), "%s/%s", path, entry->d_name) >=
		    (int)sizeof(name) ||
	    ucm_files_look(tree, dir, name, &st))
		return 0;
	return (unsigned char)IFTODT(st.st_mode);
}

/* ---- listing ---- */

static int add_name(struct ucm_files_names *names, size_t *room,
		    const struct ucm_files_name *name)
{
	if (names->num == *room) {
		struct ucm_files_name *more;

		*room = *room ? 2 * *room : 64;
		more = realloc(names->list, *room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		names->list = more;
	}
	names->list[names->num++] = *name;
	return 0;
}

static int add_entries(struct ucm_files_tree *tree, unsigned dir,
		       const char *path, struct ucm_files_names *names,
		       size_t *room)
{
	int err = 0;

	for (const struct dirent *entry = first_entry(names->entries[dir]);
	     entry && !err; entry = next_entry(entry)) {
		unsigned char type = type_of(tree, dir, path, entry);
		struct ucm_files plain = { .dir = dir };

		plain.st.st_ino = entry->d_ino;
		if (type)
			err = add_name(
				names, room,
				&(struct ucm_files_name){
					.name = entry->d_name,
					.ino = ucm_files_ino(tree, &plain),
					.type = type,
					.dir = (uint8_t)dir,
				});
	}
	return err;
}

static int compare_names(const void *a, const void *b)
{
	const struct ucm_files_name *x = a, *y = b;
	int order = strcmp(x->name, y->name);

	return order ? order : (int)x->dir - (int)y->dir;
}

/* The first directory's of each. */
static void leave_out_copies(struct ucm_files_names *names)
{
	size_t num = 0;

	qsort(names->list, names->num, sizeof(*names->list), compare_names);
	for (size_t i = 0; i < names->num; i++) {
		if (!num ||
		    strcmp(names->list[num - 1].name, names->list[i].name))
			names->list[num++] = names->list[i];
	}
	names->num = num;
}

int ucm_files_list(struct ucm_files_tree *tree, const char *path,
		   struct ucm_files_names *out)
{
	struct ucm_files_names names = { 0 };
	unsigned folders = 0;
	size_t room = 0;
	int err = 0;

	for (unsigned dir = 0; dir < tree->dirs->num && !err; dir++) {
		err = ucm_os_list_entries(ucm_files_fd(tree, dir), path,
					  &names.entries[dir]);
		if (err == -ENOENT || err == -ENOTDIR || err == -ELOOP) {
			err = 0;
			continue;
		}
		if (err)
			err = ucm_files_failed(tree, dir, path, "readdir", err);
		if (err == UCM_FILES_SILENT) {
			ucm_files_add_mute(&names.mutes, dir);
			err = 0;
			continue;
		}
		if (err)
			break;
		folders++;
		err = add_entries(tree, dir, path, &names, &room);
	}
	if (!err && !folders)
		err = names.mutes.num ? UCM_FILES_SILENT : -ENOENT;
	if (err) {
		ucm_files_names_free(&names);
		return err;
	}
	if (folders > 1 && names.num)
		leave_out_copies(&names);
	ucm_files_did_without(tree, &names.mutes);
	*out = names;
	return 0;
}

void ucm_files_names_free(struct ucm_files_names *names)
{
	for (unsigned dir = 0; dir < UCM_MAX_DIRS; dir++)
		free(names->entries[dir]);
	free(names->list);
	*names = (struct ucm_files_names){ 0 };
}

/* ---- counting ---- */

/* A directory's tree, folder by folder; paths to come, each allocated. */
struct walk {
	struct ucm_files_tree *tree;
	unsigned dir;
	int64_t since_ns; /* what was changed later is counted as it changes */
	char **paths;
	size_t num, room;
};

static int push(struct walk *walk, const char *folder, const char *name)
{
	char *path;

	if (walk->num == walk->room) {
		size_t room = walk->room ? 2 * walk->room : 64;
		char **more = realloc(walk->paths, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		walk->paths = more;
		walk->room = room;
	}
	if (asprintf(&path, "%s/%s", folder, name) < 0)
		return -ENOMEM;
	walk->paths[walk->num++] = path;
	return 0;
}

static void count_file(struct walk *walk, int folder, const char *name)
{
	struct stat st;

	if (!ucm_os_stat(folder, name, &st) && !S_ISDIR(st.st_mode) &&
	    ucm_time_ns(&st.st_ctim) < walk->since_ns)
		ucm_files_account(walk->tree, walk->dir,
				  (int64_t)ucm_file_takes(&st));
}

static int count_folder(struct walk *walk, const char *path)
{
	int dirfd = ucm_files_fd(walk->tree, walk->dir);
	_cleanup_free_ struct dirent *entries = NULL;
	_cleanup_fd_ int fd = -1;
	int err;

	fd = ucm_os_open(dirfd, path, O_RDONLY | O_DIRECTORY, 0);
	err = fd < 0 ? fd : ucm_os_list_entries(fd, ".", &entries);
	if (err)
		return err == -ENOENT ? 0 : err;
	for (const struct dirent *entry = first_entry(entries);
	     entry && !err && !atomic_load(&walk->tree->stopping);
	     entry = next_entry(entry)) {
		unsigned char type = type_of(walk->tree, walk->dir, path,
					     entry);

		if (type == DT_DIR)
			err = push(walk, path, entry->d_name);
		else if (type)
			count_file(walk, fd, entry->d_name);
	}
	return err;
}

static void count_directory(struct walk *walk)
{
	struct ucm_directory *backing =
		ucm_files_directory(walk->tree, walk->dir);
	struct stat st;
	int err;

	/* by this file system's own clock, as it was marked as in use */
	walk->since_ns = INT64_MAX;
	if (!backing->medium.readonly &&
	    !ucm_os_stat(backing->ctlfd, "state", &st))
		walk->since_ns = ucm_time_ns(&st.st_ctim);
	err = count_folder(walk, UCM_FILES_ROOT);
	while (walk->num) {
		_cleanup_free_ char *path = walk->paths[--walk->num];

		if (!err && !atomic_load(&walk->tree->stopping))
			err = count_folder(walk, path);
	}
	if (err)
		ucm_files_failed(walk->tree, walk->dir, UCM_FILES_ROOT,
				 "counting", err);
}

static void *count_main(void *arg)
{
	struct walk walk = { .tree = arg };

	for (; walk.dir < walk.tree->dirs->num; walk.dir++)
		count_directory(&walk);
	free(walk.paths);
	atomic_store(&walk.tree->counted, true);
	return NULL;
}

int ucm_files_count_start(struct ucm_files_tree *tree)
{
	int err = pthread_create(&tree->count_thread, NULL, count_main, tree);

	tree->counting = !err;
	return -err;
}

void ucm_files_count_stop(struct ucm_files_tree *tree)
{
	atomic_store(&tree->stopping, true);
	if (tree->counting)
		pthread_join(tree->count_thread, NULL);
	tree->counting = false;
}
