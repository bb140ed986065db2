/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - .ucmfs/ and the files in it.
 *
 * Each is made anew when it is opened, so that a reader sees one moment. What
 * is written to one is taken by each write(2) for itself. The index and the
 * budget are the opposite: whoever maps them sees every change at once, and the
 * budget's loaders make them. As first-write, they are memory.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/memory.h"

static const struct ucm_handle_ops control_handle, memory_handle;

/* ---- memory that others map ---- */

static int index_memory(struct ucm_daemon *daemon)
{
	return ucm_index_live(daemon->store->index)->fd;
}

static size_t index_size(struct ucm_daemon *daemon)
{
	return ucm_index_memory_size(ucm_index_live(daemon->store->index));
}

static _Atomic bool *index_refused(struct ucm_daemon *daemon)
{
	return &daemon->index_refused;
}

static int budget_memory(struct ucm_daemon *daemon)
{
	return daemon->budget_fd;
}

static size_t budget_size(struct ucm_daemon *daemon)
{
	return daemon->budget_fd < 0 ? 0 : UCM_CONTROL_BUDGET_BYTES;
}

static _Atomic bool *budget_refused(struct ucm_daemon *daemon)
{
	return &daemon->budget_refused;
}

static int first_write_memory(struct ucm_daemon *daemon)
{
	return ucm_first_write_memory(daemon);
}

static size_t first_write_size(struct ucm_daemon *daemon)
{
	return ucm_first_write_memory(daemon) < 0 ? 0 : 1;
}

static _Atomic bool *first_write_refused(struct ucm_daemon *daemon)
{
	return &daemon->first_write_refused;
}

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

/* ---- control: for calls, not for reading ---- */

static char *control_text(struct ucm_daemon *daemon, size_t *len_out)
{
	char *text = strdup("for ioctl(2); see ucm-control(7)\n");

	(void)daemon;
	*len_out = text ? strlen(text) : 0;
	return text;
}

/* ---- the files ---- */

struct control {
	const char *name;
	mode_t mode;
	bool daemons; /* its owner is the daemon's user, not that of blocks/ */
	/* NULL: it is memory; others than its maker may write to it if its mode
	 * says so. < 0: there is none. */
	char *(*text)(struct ucm_daemon *daemon, size_t *len_out);
	int (*memory)(struct ucm_daemon *daemon);
	size_t (*size)(struct ucm_daemon *daemon);
	/* Memory: it cannot be mapped; and what that means, once in the log. */
	_Atomic bool *(*refused)(struct ucm_daemon *daemon);
	const char *without;
	/* One write(2) to it. NULL: it cannot be written to. */
	int (*write)(struct ucm_daemon *daemon, const char *text);
	/* NULL: -ENOTTY. */
	int (*call)(fuse_req_t req, unsigned number, const void *in,
		    size_t in_size, size_t out_size, void **out);
};

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
	{
		.name = "index",
		.mode = 0444,
		.memory = index_memory,
		.size = index_size,
		.refused = index_refused,
		.without = "clients ask for each block",
	},
	{
		.name = "budget",
		.mode = 0666,
		.memory = budget_memory,
		.size = budget_size,
		.refused = budget_refused,
		.without = "loaders keep to all of it, each by itself, and "
			   "look-ups in the index are not counted",
	},
	{
		.name = "first-write",
		.mode = 0600,
		.daemons = true,
		.memory = first_write_memory,
		.size = first_write_size,
		.refused = first_write_refused,
		.without = "the first saves may wait for one another",
	},
	{
		.name = "control",
		.mode = 0444,
		.text = control_text,
		.call = ucm_control_call,
	},
};
#define NUM_CONTROLS (sizeof(controls) / sizeof(controls[0]))

int ucm_control_memory(struct ucm_daemon *daemon, const char *name)
{
	const struct control *control = controls;
	int fd;

	while (strcmp(control->name, name) != 0)
		control++;
	fd = control->memory(daemon);
	if (fd < 0)
		return -ENOENT;
	return atomic_load(control->refused(daemon)) ? -EOPNOTSUPP : fd;
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
	char *text;

	if (!control->text) {
		*out = control->size(daemon);
		return 0;
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
	out->st_mode = S_IFREG | control->mode;
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

static int control_ioctl(struct ucm_account *account, fuse_ino_t ino,
			 unsigned number, const void *in, size_t in_size,
			 size_t out_size, void **out)
{
	const struct control *control = control_of(ino);

	if (!control || !control->call)
		return -ENOTTY;
	return control->call(account->req, number, in, in_size, out_size, out);
}

/* ---- a file with a text: made when it is opened ---- */

/* The kernel has compared its mode. */
static int control_open_text(struct ucm_daemon *daemon, fuse_ino_t ino,
			     struct fuse_file_info *fi)
{
	const struct control *control = control_of(ino);
	struct ucm_handle *file;
	size_t len;
	char *text;
	int fd, err;

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

/* ---- memory: nothing but passthrough makes a shared mapping live ---- */

/* Under file->lock. */
static int control_first_memory(fuse_req_t req, const struct control *control,
				struct ucm_handle *file)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	int fd = fcntl(control->memory(daemon), F_DUPFD_CLOEXEC, 0);
	int id;

	if (fd < 0)
		return -errno;
	id = ucm_passthrough_register(req, fd);
	if (id < 0) {
		ucm_os_close(fd);
		if (!ucm_passthrough_is_refusal(id))
			return id;
		if (!atomic_exchange(control->refused(daemon), true))
			ucm_warning("%s: the kernel refused it as a backing "
				    "file; %s",
				    control->name, control->without);
		return -EOPNOTSUPP;
	}
	file->backing_id = id;
	file->fd = fd;
	return 0;
}

static int control_open_memory(fuse_req_t req, fuse_ino_t ino,
			       struct fuse_file_info *fi)
{
	const struct control *control = control_of(ino);
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file;
	int err = 0;

	if (ucm_open_changes(fi) && !(control->mode & 0222))
		return -EPERM;
	if (!atomic_load(&daemon->passthrough) ||
	    atomic_load(control->refused(daemon)) ||
	    control->memory(daemon) < 0)
		return -EOPNOTSUPP;
	file = ucm_handle_open(daemon, &memory_handle, ino);
	if (!file)
		return -ENOMEM;
	pthread_mutex_lock(&file->lock);
	if (!file->opens)
		err = control_first_memory(req, control, file);
	if (!err)
		ucm_handle_count_open(file, fi);
	pthread_mutex_unlock(&file->lock);
	if (err)
		ucm_handle_put(daemon, file);
	return err;
}

static int control_open(struct ucm_account *account, fuse_ino_t ino,
			struct fuse_file_info *fi)
{
	const struct control *control = control_of(ino);

	if (!control)
		return -ENOENT;
	return control->text ? control_open_text(account->daemon, ino, fi)
			     : control_open_memory(account->req, ino, fi);
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

static const struct ucm_handle_ops memory_handle = {
	.in_memory = true,
};

const struct ucm_node_ops ucm_control_ops = {
	.getattr = control_getattr,
	.open = control_open,
	.ioctl = control_ioctl,
};

const struct ucm_node_ops ucm_control_dir_ops = {
	.timeout = ucm_entry_timeout,
	.getattr = control_dir_getattr,
	.lookup = control_lookup,
	.readdir = control_readdir,
};
