/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_client.c - a mount that is asked about blocks; see ucm_client.h. */
#include <config.h>

#include "tools/ucm_client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/ucm_metrics.h"
#include "tools/ucm_tool.h"

const char *ucm_client_words(int err)
{
	switch (err) {
	case -EACCES: return "the space is private";
	case -EINVAL: return "the mount is of another version";
	case -ENOENT: return "no such space";
	case -ECANCELED: /* these two: while it was asked */
	case -ECONNABORTED:
	case -ENOTCONN: return "its daemon is gone";
	case -ENOTTY: return "the mount knows no such call";
	case -EOPNOTSUPP: return "this version of ucmfs cannot do that";
	case -EPERM: return "only for root and the owner of the mount";
	case -EROFS: return "it is mounted read-only";
	default: return strerror(-err);
	}
}

/* The names stand in the metrics, in the order of the tiers. */
static void learn_tiers(struct ucm_client *client)
{
	struct ucm_metrics metrics;
	unsigned num = 0;

	if (ucm_metrics_read(client->mount, &metrics))
		return;
	for (size_t i = 0; i < metrics.num && num < UCM_CLIENT_TIERS; i++) {
		const struct ucm_metric *metric = &metrics.metrics[i];
		char name[64];

		if (!strcmp(metric->name, "ucmfs_tier_size_bytes") &&
		    !ucm_metric_label(metric, "tier", name, sizeof(name)))
			client->tiers[num++] = strdup(name);
	}
	ucm_metrics_fini(&metrics);
}

static int open_control(const char *mount)
{
	char path[4096 + 32];
	int fd, err;

	snprintf(path, sizeof(path), "%s/.ucmfs/control", mount);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	err = -errno;
	if (err == -ENOENT || err == -ENOTDIR)
		ucm_tool_complain("%s: not a mount of ucmfs", mount);
	else if (err == -ENOTCONN || err == -ECONNABORTED)
		ucm_tool_complain("%s: its daemon is gone; umount -l %s", mount,
				  mount);
	else
		ucm_tool_complain("%s: %s", path, strerror(-err));
	return err;
}

int ucm_client_open(const char *mount, struct ucm_client *out)
{
	struct ucm_client client = { .mount = ucm_mount_find(mount) };

	if (!client.mount)
		return -ENOENT;
	client.fd = open_control(client.mount);
	if (client.fd < 0) {
		free(client.mount);
		return client.fd;
	}
	learn_tiers(&client);
	*out = client;
	return 0;
}

void ucm_client_close(struct ucm_client *client)
{
	for (unsigned i = 0; i < UCM_CLIENT_TIERS; i++)
		free(client->tiers[i]);
	free(client->mount);
	close(client->fd);
}

static int run_turn(const char *mount, unsigned turn,
		    int (*run)(struct ucm_client *client))
{
	struct ucm_client client;
	int status;

	if (ucm_client_open(mount, &client))
		return UCM_EXIT_FAILED;
	client.turn = turn;
	status = run(&client);
	ucm_client_close(&client);
	return status;
}

int ucm_client_run_each(const char *mount,
			int (*run)(struct ucm_client *client))
{
	struct ucm_mounts mounts;
	int status = 0;

	if (mount)
		return run_turn(mount, 0, run);
	if (ucm_mounts_list(&mounts))
		return UCM_EXIT_FAILED;
	if (mounts.num < 2) /* one, or none and the words for that */
		status = run_turn(NULL, 0, run);
	for (size_t i = 0; mounts.num > 1 && i < mounts.num; i++) {
		int failed = run_turn(mounts.mounts[i].point, (unsigned)i + 1,
				      run);

		status = status ? status : failed;
	}
	ucm_mounts_fini(&mounts);
	return status;
}

int ucm_client_run(const char *mount, int (*run)(struct ucm_client *client))
{
	return run_turn(mount, 0, run);
}

void ucm_client_title(const struct ucm_client *client)
{
	if (client->turn)
		printf("%s%s:\n", client->turn > 1 ? "\n" : "", client->mount);
}

const char *ucm_client_tier(struct ucm_client *client, unsigned number)
{
	if (number >= UCM_CLIENT_TIERS)
		return "?";
	if (!client->tiers[number] &&
	    asprintf(&client->tiers[number], "tier%u", number) < 0)
		client->tiers[number] = NULL;
	return client->tiers[number] ? client->tiers[number] : "?";
}

void ucm_client_folder(const char *space, char folder[UCM_FOLDER_MAX])
{
	if (space && *space)
		snprintf(folder, UCM_FOLDER_MAX, "spaces/%.128s", space);
	else
		snprintf(folder, UCM_FOLDER_MAX, "blocks");
}

/* ---- calls ---- */

static struct ucm_control_head head_of(const char *space, size_t num)
{
	struct ucm_control_head head = {
		.version = UCM_CONTROL_VERSION,
		.num = (uint32_t)num,
	};

	snprintf(head.space, sizeof(head.space), "%s", space ? space : "");
	return head;
}

static int tell(const struct ucm_client *client, const char *space, int err)
{
	char folder[UCM_FOLDER_MAX];

	if (!space) {
		ucm_tool_complain("%s: %s", client->mount,
				  ucm_client_words(err));
		return err;
	}
	ucm_client_folder(space, folder);
	ucm_tool_complain("%s/%s: %s", client->mount, folder,
			  ucm_client_words(err));
	return err;
}

static int call(const struct ucm_client *client, unsigned long number,
		const char *space, void *data)
{
	if (!ioctl(client->fd, number, data))
		return 0;
	return tell(client, space ? space : "", -errno);
}

static size_t min(size_t a, size_t b)
{
	return a < b ? a : b;
}

int ucm_client_batch(const struct ucm_client *client, unsigned long number,
		     const char *space, const struct ucm_id *ids, size_t num,
		     int32_t *results, struct ucm_progress *progress)
{
	struct ucm_control_batch batch;
	size_t part;

	/* once at least: so that whoever may not ask is told so */
	for (size_t at = 0; at == 0 || at < num; at += part) {
		int err;

		part = min(num - at, UCM_CONTROL_IDS);
		batch.head = head_of(space, part);
		if (part)
			memcpy(batch.u.ids, ids + at, part * sizeof(*ids));
		err = call(client, number, space, &batch);
		if (err || !part)
			return err;
		memcpy(results + at, batch.u.results,
		       part * sizeof(*results));
		if (progress)
			ucm_progress_tell(progress, at + part, num, 0);
	}
	return 0;
}

int ucm_client_locate(const struct ucm_client *client, const char *space,
		      const struct ucm_id *ids, size_t num,
		      struct ucm_control_place *places)
{
	struct ucm_control_locate locate;
	size_t part;

	for (size_t at = 0; at < num; at += part) {
		int err;

		part = min(num - at, UCM_CONTROL_PLACES);
		locate.head = head_of(space, part);
		locate.head.flags = UCM_LOCATE_PEEK;
		memcpy(locate.u.ids, ids + at, part * sizeof(*ids));
		err = call(client, UCM_CONTROL_LOCATE, space, &locate);
		if (err)
			return err;
		memcpy(places + at, locate.u.places, part * sizeof(*places));
	}
	return 0;
}

int ucm_client_path(const struct ucm_client *client, const char *space,
		    const struct ucm_id *id, char path[4096])
{
	struct ucm_control_path data = { .head = head_of(space, 1) };

	data.u.id = *id;
	if (!ioctl(client->fd, UCM_CONTROL_PATH, &data)) {
		memcpy(path, data.u.path, sizeof(data.u.path));
		return 0;
	}
	if (errno == EPERM || errno == ENOENT)
		return -errno;
	return tell(client, space ? space : "", -errno);
}

int ucm_client_statistics(const struct ucm_client *client,
			  struct ucm_control_statistics *out)
{
	struct ucm_control_statistics stats = { .version =
							UCM_CONTROL_VERSION };

	if (ioctl(client->fd, UCM_CONTROL_STATISTICS, &stats))
		return tell(client, NULL, -errno);
	*out = stats;
	return 0;
}
