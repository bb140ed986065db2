/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - .ucmfs/ and the files in it.
 *
 * Each text is made anew when it is opened, so that a reader sees one moment. What
 * is written to one is taken by each write(2) for itself. socket leads to the
 * daemon's socket.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "common/osfile.h"

static const struct ucm_handle_ops control_handle;

/* ---- config.yaml ---- */

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

static int debug_write(struct ucm_daemon *daemon, const char *text)
{
	struct ucm_error error;
	int err = ucm_log_areas_set(text, &error);

	(void)daemon;
	if (err)
		ucm_warning(UCM_TREE_DEBUG ": %s", error.text);
	return err;
}

/* ---- the files ---- */

/* A text; or a link, whose target may be NULL. */
struct control {
	const char *name;
	mode_t mode;
	bool daemons; /* its owner is the daemon's user, not that of blocks/ */
	char *(*text)(struct ucm_daemon *daemon, size_t *len_out);
	const char *(*link)(const struct ucm_daemon *daemon);
	/* One write(2) to it. NULL: it cannot be written to. */
	int (*write)(struct ucm_daemon *daemon, const char *text);
};

static const char *socket_link(const struct ucm_daemon *daemon)
{
	return daemon->socket;
}

static const struct control controls[] = {
	/* these two show paths and tenants' names */
	{ .name = "stats.json", .mode = 0400, .text = ucm_stats_text },
	{ .name = "config.yaml", .mode = 0400, .text = config_text },
	{ .name = "metrics", .mode = 0444, .text = ucm_metrics_text },
	{
		.name = "debug",
		.mode = 0600,
		.daemons = true,
		.text = debug_text,
		.write = debug_write,
	},
	{ .name = "socket", .mode = 0777, .link = socket_link },
};
#define NUM_CONTROLS (sizeof(controls) / sizeof(controls[0]))

char *ucm_control_text(struct ucm_daemon *daemon, const char *name,
		       size_t *len_out)
{
	for (size_t i = 0; i < NUM_CONTROLS; i++) {
		if (!strcmp(controls[i].name, name))
			return controls[i].text(daemon, len_out);
	}
	return NULL;
}

/* NULL: there is none. */
static const struct control *control_of(fuse_ino_t ino)
{
	return ino - UCM_FIXED_CONTROLS < NUM_CONTROLS
		       ? &controls[ino - UCM_FIXED_CONTROLS]
		       : NULL;
}

static int control_size(struct ucm_daemon *daemon,
			const struct control *control, size_t *out)
{
	const char *target = control->link ? control->link(daemon) : NULL;
	char *text;

	if (control->link) {
		*out = target ? strlen(target) : 0;
		return target ? 0 : -ENOENT;
	}
	text = control->text(daemon, out);
	free(text);
	return text ? 0 : -ENOENT;
}

static int control_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			   struct stat *out)
{
	const struct control *control = control_of(ino);
	size_t len;
	int err = control ? control_size(daemon, control, &len) : -ENOENT;

	if (err)
		return err;
	ucm_attr_folder(daemon, ino, out);
	out->st_mode = (control->link ? S_IFLNK : S_IFREG) | control->mode;
	if (control->daemons) {
		out->st_uid = geteuid();
		out->st_gid = getegid();
	}
	out->st_nlink = 1;
	out->st_size = (off_t)len;
	clock_gettime(CLOCK_REALTIME, &out->st_mtim);
	out->st_atim = out->st_ctim = out->st_mtim;
	return 0;
}

static int control_readlink(struct ucm_account *account, fuse_ino_t ino,
			    char *target)
{
	const struct control *control = control_of(ino);
	const char *path = control && control->link
				   ? control->link(account->daemon)
				   : NULL;

	if (!path)
		return -EINVAL;
	strcpy(target, path);
	return 0;
}

/* ---- a file with a text: made when it is opened ---- */

/* The kernel has compared its mode. */
static int control_open(struct ucm_account *account, fuse_ino_t ino,
			struct fuse_file_info *fi)
{
	const struct control *control = control_of(ino);
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file;
	size_t len;
	char *text;
	int fd, err;

	if (!control || !control->text)
		return -ENOENT;
	if (ucm_open_changes(fi) && !control->write)
		return -EPERM;
	text = control->text(daemon, &len);
	if (!text)
		return -ENOENT;
	fd = ucm_os_memory_file("ucmfs");
	err = fd < 0 ? fd : ucm_os_write_at(fd, text, len, 0);
	free(text);
	file = err ? NULL : ucm_handle_open(daemon, &control_handle, 0);
	if (!file) {
		if (fd >= 0)
			ucm_os_close(fd);
		return err ? err : -ENOMEM;
	}
	file->fd = fd;
	file->control = (uint8_t)(ino - UCM_FIXED_CONTROLS);
	ucm_handle_count_open(file, fi);
	return 0;
}

#define CONTROL_WRITE_MAX 4096u /* bytes */

/* What is written is one command or more; where to does not matter. */
static ssize_t control_write(struct ucm_daemon *daemon,
			     struct ucm_handle *file, struct fuse_bufvec *in,
			     off_t off)
{
	char text[CONTROL_WRITE_MAX + 1];
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(fuse_buf_size(in));
	ssize_t len;
	int err;

	(void)off;
	if (fuse_buf_size(in) > CONTROL_WRITE_MAX)
		return -EFBIG;
	out.buf[0].mem = text;
	len = fuse_buf_copy(&out, in, 0);
	if (len < 0)
		return len;
	text[len] = '\0';
	err = controls[file->control].write(daemon, text);
	return err ? err : len;
}

/* ---- .ucmfs itself ---- */

static int control_dir_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			       struct stat *out)
{
	ucm_attr_folder(daemon, ino, out);
	return 0;
}

static int control_lookup(struct ucm_account *account, fuse_ino_t parent,
			  const char *name, struct fuse_entry_param *out)
{
	(void)parent;
	for (unsigned i = 0; i < NUM_CONTROLS; i++) {
		if (!strcmp(name, controls[i].name))
			return ucm_entry_fill(&ucm_control_ops,
					      account->daemon,
					      UCM_FIXED_CONTROLS + i, out);
	}
	return -ENOENT;
}

static int control_readdir(struct ucm_listing *list, fuse_ino_t ino, off_t off,
			   const struct fuse_file_info *fi)
{
	struct fuse_entry_param entry;
	struct stat attr;

	(void)fi;
	ucm_attr_folder(list->daemon, ino, &attr);
	if (!ucm_list_dots(list, &attr, &off))
		return 0;
	for (unsigned i = (unsigned)off - 2; i < NUM_CONTROLS; i++) {
		if (ucm_entry_fill(&ucm_control_ops, list->daemon,
				   UCM_FIXED_CONTROLS + i, &entry) ||
		    !ucm_list_entry(list, controls[i].name, &entry,
				    (off_t)i + 3))
			break;
	}
	return 0;
}

static const struct ucm_handle_ops control_handle = {
	.in_memory = true,
	.write = control_write,
};

const struct ucm_node_ops ucm_control_ops = {
	.getattr = control_getattr,
	.open = control_open,
	.readlink = control_readlink,
};

const struct ucm_node_ops ucm_control_dir_ops = {
	.timeout = ucm_entry_timeout,
	.getattr = control_dir_getattr,
	.lookup = control_lookup,
	.readdir = control_readdir,
};
