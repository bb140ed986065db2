/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_mount.c - a mount and its directories. */
#include <config.h>

#include "tools/check/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/deadmount.h"
#include "fs/config/config.h"
#include "fs/medium/memory/memory.h"
#include "hashing/tree.h"
#include "tools/lib/metrics.h"
#include "tools/lib/tool.h"

static void check_transport(const char *point,
			    const struct ucm_metrics *metrics)
{
	if (ucm_metrics_value(metrics, "ucmfs_passthrough", NULL, NULL) > 0)
		ucm_doctor_ok(point, "passthrough is on");
	else
		ucm_doctor_warn(point, "ucm status says why; see above",
				"passthrough is off: data goes through the "
				"daemon");
}

/* Things that should not happen, and did. */
static void check_counter(const char *point, const struct ucm_metrics *metrics,
			  const char *name, const char *mend, const char *what)
{
	double sum = 0;

	for (size_t i = 0; i < metrics->num; i++) {
		if (!strcmp(metrics->metrics[i].name, name))
			sum += metrics->metrics[i].value;
	}
	if (sum > 0)
		ucm_doctor_warn(point, mend, "%.0f %s since the mount", sum,
				what);
}

static void check_index(const char *point, const struct ucm_metrics *metrics)
{
	double doubts = ucm_metrics_value(
		metrics, "ucmfs_index_doubtful_blocks", NULL, NULL);

	if (doubts > 0)
		ucm_doctor_warn(point, "wait: they are being checked",
				"%.0f blocks are in doubt after an unclean "
				"stop or lost writes", doubts);
	else if (!(ucm_metrics_value(metrics, "ucmfs_index_complete", NULL,
				     NULL) > 0))
		ucm_doctor_warn(point, "wait, or see the log for a directory "
				"that cannot be read",
				"its index is not complete");
	else
		ucm_doctor_ok(point, "its index is complete");
}

static void check_metrics(const char *point, bool is_mount)
{
	struct ucm_metrics metrics;
	int err = ucm_metrics_read(point, &metrics);

	if (err) {
		ucm_doctor_warn(point,
				"mount with -o allow_other, or ask as its user",
				UCM_TREE_METRICS ": %s", strerror(-err));
		return;
	}
	if (is_mount)
		check_transport(point, &metrics);
	check_index(point, &metrics);
	check_counter(point, &metrics, "ucmfs_io_errors_total",
		      "the log names the directories",
		      "failed calls on directories");
	check_counter(point, &metrics, "ucmfs_quarantined_total",
		      "the log names the blocks; see .ucmfs/quarantine",
		      "blocks quarantined");
	ucm_metrics_fini(&metrics);
}

/* ---- directories ---- */

/* From the mount itself, which knows all, if it answers; else from what it was
 * mounted with, which says less. */
static int read_tiers(const struct ucm_mount *mount, bool answers,
		      struct ucm_config *config, struct ucm_error *why)
{
	_cleanup_fd_ int fd =
		answers ? ucm_mount_open(mount->point, "config.yaml", O_RDONLY)
			: -1;
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fd >= 0 && !ucm_config_read(config, path, NULL, NULL, why) &&
	    config->num_tiers)
		return 0;
	ucm_config_fini(config);
	ucm_config_init(config);
	return ucm_config_source(config, mount->source, why);
}

/* Its place is found by who runs the daemon, and by nobody else. */
static void check_memory(const struct ucm_config *config,
			 const struct ucm_tier_config *tier)
{
	char path[UCM_MEMORY_PATH_MAX];
	struct ucm_error why;

	if (ucm_memory_find(config, tier->name, path, &why))
		ucm_doctor_warn(tier->dirs[0],
				"ask as the user who runs the daemon",
				"its memory is not found: %s", why.text);
	else
		ucm_doctor_directory(path, tier->readonly);
}

static void check_tiers(const struct ucm_mount *mount, bool answers)
{
	struct ucm_error why = { .text = "" };
	struct ucm_config config;

	ucm_config_init(&config);
	if (read_tiers(mount, answers, &config, &why))
		ucm_doctor_warn(mount->point,
				"ask as root, or name the directories",
				"its directories are not known: %s", why.text);
	config.mount = mount->point;
	for (unsigned i = 0; i < config.num_tiers; i++) {
		const struct ucm_tier_config *tier = &config.tiers[i];

		if (tier->memory)
			check_memory(&config, tier);
		for (unsigned j = 0; !tier->memory && j < tier->num_dirs; j++)
			ucm_doctor_directory(tier->dirs[j], tier->readonly);
	}
	ucm_config_fini(&config);
}

void ucm_doctor_mount(const struct ucm_mount *mount)
{
	int err = ucm_doctor_ask(mount->point);
	char mend[PATH_MAX + 64];

	if (err) {
		snprintf(mend, sizeof(mend), "umount -l %s, and mount again",
			 mount->point);
		ucm_doctor_fail(mount->point, mend, "%s",
				ucm_mount_is_dead(err) ? "its daemon is gone" : strerror(err));
	} else {
		ucm_doctor_ok(mount->point, "it is mounted and answers");
		ucm_doctor.mounted = true;
		check_metrics(mount->point, true);
		if (ucm_doctor.engine)
			ucm_doctor_engine_mount(mount);
	}
	check_tiers(mount, !err);
}

void ucm_doctor_socket(const char *path)
{
	const struct ucm_mount served = { (char *)path, "" };
	char mend[PATH_MAX + 64];
	struct ucm_client *client;
	int err = ucm_client_connect(path, &client);

	if (err) {
		snprintf(mend, sizeof(mend), "ucmfs serve %s%s",
			 ucm_ask_is_tiers(path) ? "" : "SOURCE --socket ",
			 ucm_ask_is_tiers(path) ? path + strlen(UCM_CLIENT_TIERS)
						: path);
		ucm_doctor_fail(path, mend, "%s",
				err == -ECONNREFUSED ? "its daemon is gone" : strerror(-err));
		return;
	}
	ucm_client_close(client);
	ucm_doctor_ok(path, "it answers");
	ucm_doctor.mounted = true;
	check_metrics(path, false);
	check_tiers(&served, true);
}
