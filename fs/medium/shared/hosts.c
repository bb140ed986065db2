/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts.c - hearts, and what they decide; see hosts.h.
 *
 * Times are compared with each other only, and all are the server's: by how much our
 * heart went on while another one stood still. A server whose clock is set makes no
 * heart look dead, as two looks at one heart are compared and not two hearts.
 *
 * A daemon that was paused for as long finds its heart gone before its next batch of removals
 * (UCM_BEAT_CHECK), and has no slice until it has made it again.
 */
#include <config.h>

#include "fs/medium/shared/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "fs/index/snapshot.h"

#define BEAT_MS 2000
#define LOOK_MS 4000

static void hosts_path(const char *name, char out[UCM_TEMP_PATH_MAX])
{
	snprintf(out, UCM_TEMP_PATH_MAX, UCM_HOSTS "/%s", name);
}

/* ---- our heart ---- */

static void give_up_slice(struct ucm_hosts *hosts)
{
	for (unsigned word = 0; word < 4; word++)
		atomic_store(&hosts->slice[word], 0);
}

/* One that others have removed is made again; what is ours then they say. */
static int heart_open(struct ucm_medium *medium, struct ucm_file *out)
{
	const char *path = medium->hosts->path;
	int err = medium->ops->open(medium, path, UCM_OPEN_CHANGE, out, NULL);

	if (err != -ENOENT)
		return err;
	give_up_slice(medium->hosts);
	medium->hosts->look_due_ms = 0;
	return medium->ops->open(medium, path, UCM_OPEN_NEW, out, NULL);
}

static int heart_beat(struct ucm_medium *medium)
{
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct stat st;
	int err = heart_open(medium, &file);

	if (!err)
		err = ucm_file_set_times(&file, NULL);
	if (!err)
		err = ucm_file_stat(&file, &st);
	if (!err)
		atomic_store(&medium->hosts->beat_ns,
			     ucm_time_ns(&st.st_mtim));
	return err;
}

int64_t ucm_hosts_age_s(const struct ucm_medium *medium,
			const struct timespec *time)
{
	return (atomic_load(&medium->hosts->beat_ns) - ucm_time_ns(time)) /
	       INT64_C(1000000000);
}

/* ---- the others' ---- */

static bool is_heart(const char *name)
{
	unsigned host, boot, start;
	unsigned long long serial;

	return strlen(name) < UCM_TEMP_NAME_MAX &&
	       sscanf(name, "%8x-%8x-%8x-%llx", &host, &boot, &start, &serial) ==
		       4;
}

static const struct ucm_host *find_host(const struct ucm_hosts *hosts,
					const char *name)
{
	for (unsigned i = 0; i < hosts->num; i++) {
		if (!strcmp(hosts->others[i].name, name))
			return &hosts->others[i];
	}
	return NULL;
}

/* What is known of one now. False: it is not there, or dead, and its heart is
 * removed. One that cannot be asked is as it was. */
static bool look_at_host(struct ucm_medium *medium, const char *name,
			 struct ucm_host *out)
{
	const struct ucm_hosts *hosts = medium->hosts;
	const struct ucm_host *before = find_host(hosts, name);
	char path[UCM_TEMP_PATH_MAX];
	struct stat st;
	int err;

	hosts_path(name, path);
	err = medium->ops->stat(medium, path, &st);
	if (err == -ENOENT)
		return false;
	*out = (struct ucm_host){ .at_ns = hosts->beat_ns };
	snprintf(out->name, sizeof(out->name), "%s", name);
	out->beat_ns = err ? 0 : ucm_time_ns(&st.st_mtim);
	if (!before || (!err && before->beat_ns != out->beat_ns))
		return true;
	*out = *before;
	if (err || hosts->beat_ns - before->at_ns < UCM_HOSTS_DEAD_NS)
		return true;
	ucm_info("%s: the daemon %s is gone: its part of the buckets goes to "
		 "the others",
		 medium->path, name);
	medium->ops->remove(medium, path, false);
	return false;
}

static unsigned count_names(const char *names)
{
	unsigned num = 0;

	for (; *names; names += strlen(names) + 1)
		num++;
	return num;
}

/* ---- the slices ---- */

/* A finalizer of MurmurHash3: each bit of the result depends on all of x. */
static uint64_t weight_of(const char *name, unsigned bucket)
{
	uint64_t x = ucm_crc32c(bucket, name, strlen(name)) |
		     (uint64_t)(bucket + 1) << 32;

	x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
	x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
	return x ^ x >> 33;
}

static bool has_bucket(const struct ucm_hosts *hosts, unsigned bucket)
{
	uint64_t ours = weight_of(hosts->name, bucket);

	for (unsigned i = 0; i < hosts->num; i++) {
		uint64_t weight = weight_of(hosts->others[i].name, bucket);

		if (weight > ours ||
		    (weight == ours &&
		     strcmp(hosts->others[i].name, hosts->name) > 0))
			return false;
	}
	return true;
}

static void share_out(struct ucm_hosts *hosts)
{
	for (unsigned word = 0; word < 4; word++) {
		uint64_t bits = 0;

		for (unsigned i = 0; i < 64; i++)
			bits |= (uint64_t)has_bucket(hosts, 64 * word + i) << i;
		atomic_store(&hosts->slice[word], bits);
	}
	atomic_store(&hosts->living, hosts->num + 1);
}

static int hosts_look(struct ucm_medium *medium)
{
	struct ucm_hosts *hosts = medium->hosts;
	_cleanup_free_ char *names = NULL;
	struct ucm_host *others;
	struct stat st;
	unsigned num = 0;
	int err = medium->ops->stat(medium, UCM_HOSTS, &st); /* not from a cache */

	if (!err)
		err = medium->ops->list(medium, UCM_HOSTS, &names);
	if (err)
		return err;
	others = calloc(count_names(names) + 1, sizeof(*others));
	if (!others)
		return -ENOMEM;
	for (const char *name = names; *name; name += strlen(name) + 1) {
		if (is_heart(name) && strcmp(name, hosts->name) &&
		    look_at_host(medium, name, &others[num]))
			num++;
	}
	free(hosts->others);
	hosts->others = others;
	hosts->num = num;
	share_out(hosts);
	return 0;
}

/* ---- in use ---- */

static int hosts_show(struct ucm_medium *medium)
{
	struct ucm_hosts *hosts = medium->hosts;
	int64_t now = ucm_monotonic_ms();
	int err = heart_beat(medium);

	if (!err && now >= hosts->look_due_ms) {
		hosts->look_due_ms = now + LOOK_MS;
		err = hosts_look(medium);
	}
	return err;
}

/* We were taken for dead, and others evict in our slice. */
static int hosts_check(struct ucm_medium *medium)
{
	struct ucm_hosts *hosts = medium->hosts;
	struct stat st;

	/* a heart that is gone can be seen only in a folder that is not cached */
	if (medium->ops->stat(medium, UCM_HOSTS, &st) ||
	    medium->ops->stat(medium, hosts->path, &st) != -ENOENT)
		return 0;
	give_up_slice(hosts);
	ucm_warning("%s: other daemons have taken this one for dead: it evicts "
		    "nothing there for some seconds",
		    medium->path);
	return -EROFS;
}

int ucm_hosts_beat(struct ucm_medium *medium, enum ucm_beat what)
{
	struct ucm_hosts *hosts = medium->hosts;
	int64_t due_ms = atomic_load(&hosts->due_ms);

	if (!*hosts->path)
		return 0;
	if (what == UCM_BEAT_CHECK)
		return hosts_check(medium);
	if (what != UCM_BEAT_SHOW || ucm_monotonic_ms() < due_ms ||
	    !atomic_compare_exchange_strong(&hosts->due_ms, &due_ms, INT64_MAX))
		return 0;
	hosts_show(medium); /* what fails may succeed the next time */
	atomic_store(&hosts->due_ms, ucm_monotonic_ms() + BEAT_MS);
	return 0;
}

int ucm_hosts_join(struct ucm_medium *medium)
{
	struct ucm_hosts *hosts = calloc(1, sizeof(*hosts));
	struct ucm_temp_maker self;
	char name[UCM_TEMP_NAME_MAX];

	if (!hosts)
		return -ENOMEM;
	medium->hosts = hosts;
	medium->flags |= UCM_MEDIUM_SHARED;
	atomic_init(&hosts->living, 1);
	if (medium->readonly)
		return 0;
	ucm_temp_whoami(&self);
	ucm_temp_name(&self, 0, name);
	hosts_path(name, hosts->path);
	hosts->name = hosts->path + strlen(UCM_HOSTS "/");
	return hosts_show(medium);
}

void ucm_hosts_leave(struct ucm_medium *medium)
{
	struct ucm_hosts *hosts = medium->hosts;

	if (*hosts->path)
		medium->ops->remove(medium, hosts->path, false);
	*hosts->path = '\0';
	free(hosts->others);
	hosts->others = NULL;
	hosts->num = 0;
}

/* The other daemons see the folder, and wait for no lock: so what is only known under
 * one, that nothing is torn, is looked at before it is made. */
int ucm_medium_share(struct ucm_medium *medium, struct ucm_error *error)
{
	int err;

	if (medium->hosts)
		return 0;
	if (medium->readonly)
		return ucm_hosts_join(medium);
	if (medium->flags & UCM_MEDIUM_NO_LIST)
		return ucm_error_set(error, -EOPNOTSUPP,
				     "%s: cannot be shared: it cannot be listed",
				     medium->path);
	if (atomic_load(&medium->recovery.unclean))
		return ucm_error_set(
			error, -EBUSY,
			"%s: cannot be shared yet, as it was not closed cleanly: "
			"mount it once without shared@, and unmount it",
			medium->path);
	ucm_medium_remove_note(medium, UCM_SNAPSHOT_NAME);
	medium->recovery.snapshot = 0;
	err = medium->ops->mkdir(medium, UCM_HOSTS, 0755);
	if (!err || err == -EEXIST)
		err = ucm_hosts_join(medium);
	if (!err)
		err = ucm_medium_beat(medium, UCM_BEAT_SHARED);
	return err ? ucm_error_set(error, err, "%s/" UCM_HOSTS ": %s",
				   medium->path, strerror(-err))
		   : 0;
}
