/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the files under .ucmfs/.
 *
 * Each is made anew when it is opened, so that a reader sees one moment. What
 * is written to one is taken by each write(2) for itself. The index is the
 * opposite: whoever maps it sees every change at once.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "fs/index/memory.h"

static char *config_text(struct ucm_daemon *daemon, size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	ucm_options_print(daemon->options, out);
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- debug: what is debugged, and how deep ---- */

static char *debug_text(struct ucm_daemon *daemon, size_t *len)
{
	char *text = ucm_log_areas_text();

	(void)daemon;
	if (text)
		*len = strlen(text);
	return text;
}

static int write_debug(struct ucm_daemon *daemon, const char *text)
{
	char why[256];
	int err = ucm_log_areas_set(text, why, sizeof(why));

	(void)daemon;
	if (err)
		ucm_warning(".ucmfs/debug: %s", why);
	return err;
}

/* ---- control: for calls, not for reading ---- */

static char *control_text(struct ucm_daemon *daemon, size_t *len_out)
{
	char *text = strdup("for ioctl(2); see ucm-control(7)\n");

	(void)daemon;
	*len_out = text ? strlen(text) : 0;
	return text;
}

/* ---- the files ---- */

static const struct {
	const char *name;
	mode_t mode;
	bool daemons; /* its owner is the daemon's user, not that of blocks/ */
	char *(*text)(struct ucm_daemon *daemon,
		      size_t *len_out); /* NULL: index */
	int (*write)(struct ucm_daemon *daemon, const char *text);
} files[] = {
	/* these two tell paths and tenants' names */
	{ "stats.json", 0400, false, ucm_stats_text, NULL },
	{ "config.yaml", 0400, false, config_text, NULL },
	{ "metrics", 0444, false, ucm_metrics_text, NULL },
	{ "debug", 0600, true, debug_text, write_debug },
	{ "index", 0444, false, NULL, NULL },
	{ "control", 0444, false, control_text, NULL },
};
#define NUM_FILES (sizeof(files) / sizeof(files[0]))

fuse_ino_t ucm_control_find(const char *name)
{
	for (unsigned i = 0; i < NUM_FILES; i++) {
		if (!strcmp(name, files[i].name))
			return UCM_FIXED_FILES + i;
	}
	return 0;
}

const char *ucm_control_name(unsigned number)
{
	return number < NUM_FILES ? files[number].name : NULL;
}

bool ucm_control_is_index(fuse_ino_t ino)
{
	return ino - UCM_FIXED_FILES < NUM_FILES &&
	       !files[ino - UCM_FIXED_FILES].text;
}

char *ucm_control_text(struct ucm_daemon *daemon, fuse_ino_t ino,
		       size_t *len_out)
{
	return ino - UCM_FIXED_FILES < NUM_FILES && !ucm_control_is_index(ino)
		       ? files[ino - UCM_FIXED_FILES].text(daemon, len_out)
		       : NULL;
}

static int get_size(struct ucm_daemon *daemon, fuse_ino_t ino, size_t *out)
{
	char *text;

	if (ucm_control_is_index(ino)) {
		*out = ucm_index_memory_size(
			ucm_index_live(daemon->set->index));
		return 0;
	}
	text = ucm_control_text(daemon, ino, out);
	free(text);
	return text ? 0 : -ENOENT;
}

int ucm_control_attr(struct ucm_daemon *daemon, fuse_ino_t ino,
		     struct stat *out)
{
	unsigned number = (unsigned)(ino - UCM_FIXED_FILES);
	size_t len;
	int err = get_size(daemon, ino, &len);

	if (err)
		return err;
	ucm_attr_dir(daemon, ino, out);
	out->st_mode = S_IFREG | files[number].mode;
	if (files[number].daemons) {
		out->st_uid = geteuid();
		out->st_gid = getegid();
	}
	out->st_nlink = 1;
	out->st_size = (off_t)len;
	clock_gettime(CLOCK_REALTIME, &out->st_mtim);
	out->st_atim = out->st_ctim = out->st_mtim;
	return 0;
}

bool ucm_control_is_writable(fuse_ino_t ino)
{
	return ino - UCM_FIXED_FILES < NUM_FILES &&
	       files[ino - UCM_FIXED_FILES].write;
}

int ucm_control_write(struct ucm_daemon *daemon, unsigned number,
		      const char *text)
{
	return files[number].write(daemon, text);
}
