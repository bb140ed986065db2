/* SPDX-License-Identifier: Apache-2.0 */
/* walk.c - listing and walking folders of files/, and counting what is there;
 * see files.h. */
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

/* ---- listing ---- */

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
static unsigned char type_of(int dirfd, const char *path,
			     const struct dirent *entry)
{
	char name[PATH_MAX];
	unsigned char type = entry->d_type;
	struct stat st;

	if (type == DT_UNKNOWN &&
	    snprintf(name, sizeof(name), "%s/%s", path, entry->d_name) <
		    (int)sizeof(name) &&
	    !ucm_os_stat(dirfd, name, &st))
		type = (unsigned char)IFTODT(st.st_mode);
	return type == DT_DIR || type == DT_REG || type == DT_LNK ? type : 0;
}

int ucm_files_entries(int dirfd, const char *path,
		      struct ucm_files_entries *out)
{
	struct ucm_files_entries entries = { 0 };
	size_t room = 0;
	int err = ucm_os_list_entries(dirfd, path, &entries.buffer);

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
		unsigned char type = type_of(dirfd, path, entry);

		if (type)
			entries.list[entries.num++] = (struct ucm_files_entry){
				.name = entry->d_name,
				.ino = entry->d_ino,
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
	*entries = (struct ucm_files_entries){ 0 };
}

/* ---- walking ---- */

static int compare_entries(const void *a, const void *b)
{
	const struct ucm_files_entry *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* A tree, folder by folder, each in the order of its names. */
struct walk {
	int dirfd;
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

	fd = ucm_os_open(walk->dirfd, walk->path, O_RDONLY | O_DIRECTORY, 0);
	err = fd < 0 ? fd
		     : ucm_files_entries(walk->dirfd, walk->path, &entries);
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

int ucm_files_walk(int dirfd, const char *path, ucm_files_visit_fn *visit,
		   void *arg)
{
	struct walk *walk = malloc(sizeof(*walk));
	size_t len = strlen(path);
	int err;

	if (!walk)
		return -ENOMEM;
	*walk = (struct walk){ .dirfd = dirfd, .visit = visit, .arg = arg };
	memcpy(walk->path, path, len + 1);
	err = walk_folder(walk, len);
	free(walk);
	return err;
}

/* ---- counting ---- */

struct counting {
	struct ucm_medium *medium;
	const _Atomic bool *stopping;
	int64_t since_ns; /* what was changed later is counted as it changes */
};

/* One of several names counts a part: together they count the file. */
static bool count_file(void *arg, const char *path, const struct stat *st)
{
	struct counting *counting = arg;

	(void)path;
	if (ucm_time_ns(&st->st_ctim) < counting->since_ns)
		atomic_fetch_add(&counting->medium->files,
				 (int64_t)(ucm_file_takes(st) / st->st_nlink));
	return !atomic_load(counting->stopping);
}

static void count_directory(struct ucm_dirs *dirs, unsigned dir,
			    const _Atomic bool *stopping)
{
	struct ucm_medium *medium = dirs->at[dir];
	const struct ucm_directory *at = ucm_directory_of(medium);
	struct counting counting = { medium, stopping, INT64_MAX };
	struct stat st;
	int err;

	/* by this file system's own clock, as it was marked as in use */
	if (!medium->readonly && !ucm_os_stat(at->ctlfd, "state", &st))
		counting.since_ns = ucm_time_ns(&st.st_ctim);
	err = ucm_files_walk(at->dirfd, UCM_FILES_ROOT, count_file, &counting);
	if (!err || err == -ECANCELED)
		return;
	ucm_dirs_count_error(dirs, dir, err);
	ucm_error("%s/" UCM_FILES_ROOT ": counting: %s", medium->path,
		  strerror(-err));
}

void ucm_files_count(struct ucm_dirs *dirs, const _Atomic bool *stopping)
{
	for (unsigned dir = 0; dir < dirs->num && !atomic_load(stopping); dir++)
		count_directory(dirs, dir, stopping);
}
