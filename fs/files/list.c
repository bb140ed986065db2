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

/* ---- walking ---- */

static int compare_entries(const void *a, const void *b)
{
	const struct ucm_files_entry *x = a, *y = b;

	return strcmp(x->name, y->name);
}

int ucm_files_entries(struct ucm_files_tree *tree, unsigned dir,
		      const char *path, struct ucm_files_entries *out)
{
	struct ucm_files_entries entries = { 0 };
	size_t room = 0;
	int err = ucm_os_list_entries(ucm_files_fd(tree, dir), path,
				      &entries.buffer);

	if (err)
		return err == -ENOTDIR || err == -ELOOP ? -ENOENT : err;
	for (const struct dirent *entry = first_entry(entries.buffer); entry;
	     entry = next_entry(entry))
		room++;
	entries.list = calloc(room ? room : 1, sizeof(*entries.list));
	if (!entries.list) {
		free(entries.buffer);
		return -ENOMEM;
	}
	for (const struct dirent *entry = first_entry(entries.buffer); entry;
	     entry = next_entry(entry)) {
		unsigned char type = type_of(tree, dir, path, entry);

		if (type)
			entries.list[entries.num++] = (struct ucm_files_entry){
				.name = entry->d_name,
				.type = type,
			};
	}
	*out = entries;
	return 0;
}

void ucm_files_entries_free(struct ucm_files_entries *entries)
{
	free(entries->list);
	free(entries->buffer);
}

/* A directory's tree, folder by folder, each in the order of its names. */
struct walk {
	struct ucm_files_tree *tree;
	unsigned dir;
	ucm_files_visit_fn *visit;
	void *arg;
	char path[PATH_MAX]; /* of what it has come to */
};

static int walk_folder(struct walk *walk, size_t len);

static int walk_entry(struct walk *walk, int folder, size_t len,
		      const struct ucm_files_entry *entry)
{
	size_t more = strlen(entry->name);
	struct stat st;

	if (len + more + 2 > sizeof(walk->path))
		return 0; /* no name leads there */
	walk->path[len] = '/';
	memcpy(walk->path + len + 1, entry->name, more + 1);
	if (entry->type == DT_DIR)
		return walk_folder(walk, len + 1 + more);
	if (ucm_os_stat(folder, entry->name, &st) || S_ISDIR(st.st_mode))
		return 0;
	return walk->visit(walk->arg, walk->path, &st) ? 0 : -ECANCELED;
}

static int walk_folder(struct walk *walk, size_t len)
{
	struct ucm_files_entries entries = { 0 };
	_cleanup_fd_ int fd = -1;
	int err;

	fd = ucm_os_open(ucm_files_fd(walk->tree, walk->dir), walk->path,
			 O_RDONLY | O_DIRECTORY, 0);
	err = fd < 0 ? fd
		     : ucm_files_entries(walk->tree, walk->dir, walk->path,
					 &entries);
	if (err)
		return err == -ENOENT || err == -ENOTDIR || err == -ELOOP
			       ? 0
			       : err;
	qsort(entries.list, entries.num, sizeof(*entries.list),
	      compare_entries);
	for (size_t i = 0; i < entries.num && !err; i++)
		err = walk_entry(walk, fd, len, &entries.list[i]);
	ucm_files_entries_free(&entries);
	return err;
}

int ucm_files_walk(struct ucm_files_tree *tree, unsigned dir, const char *path,
		   ucm_files_visit_fn *visit, void *arg)
{
	struct walk *walk = malloc(sizeof(*walk));
	size_t len = strlen(path);
	int err;

	if (!walk)
		return -ENOMEM;
	*walk = (struct walk){
		.tree = tree,
		.dir = dir,
		.visit = visit,
		.arg = arg,
	};
	memcpy(walk->path, path, len + 1);
	err = walk_folder(walk, len);
	free(walk);
	return err;
}

/* ---- counting ---- */

struct count {
	struct ucm_files_tree *tree;
	unsigned dir;
	int64_t since_ns; /* what was changed later is counted as it changes */
};

static bool count_file(void *arg, const char *path, const struct stat *st)
{
	struct count *count = arg;

	(void)path;
	if (ucm_time_ns(&st->st_ctim) < count->since_ns)
		ucm_files_account_dir(count->tree, count->dir,
				      (int64_t)ucm_file_takes(st));
	return !atomic_load(&count->tree->stopping);
}

static void count_directory(struct count *count)
{
	struct ucm_directory *backing =
		ucm_files_directory(count->tree, count->dir);
	struct stat st;
	int err;

	/* by this file system's own clock, as it was marked as in use */
	count->since_ns = INT64_MAX;
	if (!backing->medium.readonly &&
	    !ucm_os_stat(backing->ctlfd, "state", &st))
		count->since_ns = ucm_time_ns(&st.st_ctim);
	err = ucm_files_walk(count->tree, count->dir, UCM_FILES_ROOT,
			     count_file, count);
	if (err && err != -ECANCELED)
		ucm_files_failed(count->tree, count->dir, UCM_FILES_ROOT,
				 "counting", err);
}

static void *count_main(void *arg)
{
	struct count count = { .tree = arg };

	for (; count.dir < count.tree->dirs->num &&
	       !atomic_load(&count.tree->stopping);
	     count.dir++)
		count_directory(&count);
	atomic_store(&count.tree->counted, true);
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
