/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_disk.c - the disk below a directory, and huge pages, by what sysfs has. */
#include <config.h>

#include "tools/check/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "common/cleanup.h"

#define HUGE "/sys/kernel/mm/transparent_hugepage/enabled"

void ucm_doctor_line(const char *path, char *out, size_t len)
{
	FILE *file = fopen(path, "re");

	if (!file || !fgets(out, (int)len, file))
		*out = '\0';
	out[strcspn(out, "\n")] = '\0';
	if (file)
		fclose(file);
}

/* Of "none [mq-deadline]", what is in brackets. */
static const char *chosen(char *words)
{
	char *from = strchr(words, '['), *end = from ? strchr(from, ']') : NULL;

	if (!end)
		return words;
	*end = '\0';
	return from + 1;
}

/* Of a partition, the disk has it. */
static char *disk_of(dev_t dev)
{
	char path[80];
	char *disk;

	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/queue/..", major(dev),
		 minor(dev));
	disk = realpath(path, NULL);
	if (disk)
		return disk;
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/../queue/..",
		 major(dev), minor(dev));
	return realpath(path, NULL);
}

static const char *queue_value(const char *disk, const char *name, char *out,
			       size_t len)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/queue/%s", disk, name);
	ucm_doctor_line(path, out, len);
	return out;
}

const char *ucm_doctor_node(const char *device, char *out, size_t len)
{
	char path[512], number[16];

	snprintf(path, sizeof(path), "%s/numa_node", device);
	ucm_doctor_line(path, number, sizeof(number));
	snprintf(out, len, *number && *number != '-' ? ", NUMA node %s" : "", number);
	return out;
}

/* Of NVMe, the controller has it. */
static const char *node_of(const char *disk, char *out, size_t len)
{
	char device[512];

	snprintf(device, sizeof(device), "%s/device/device", disk);
	if (!*ucm_doctor_node(device, out, len)) {
		snprintf(device, sizeof(device), "%s/device", disk);
		ucm_doctor_node(device, out, len);
	}
	return out;
}

void ucm_doctor_disk(const char *subject, dev_t dev)
{
	_cleanup_free_ char *disk = disk_of(dev);
	char turns[16], words[128], requests[16], cache[32], mend[160], node[40];
	const char *name = disk ? strrchr(disk, '/') + 1 : NULL, *scheduler;

	if (!disk)
		return; /* a network's, or memory */
	queue_value(disk, "rotational", turns, sizeof(turns));
	queue_value(disk, "scheduler", words, sizeof(words));
	queue_value(disk, "nr_requests", requests, sizeof(requests));
	queue_value(disk, "write_cache", cache, sizeof(cache));
	ucm_doctor_wear(subject, name);
	scheduler = chosen(words);
	snprintf(mend, sizeof(mend), "echo none >/sys/block/%s/queue/scheduler",
		 name);
	if (!*scheduler)
		return; /* it is hidden here */
	if (!strncmp(name, "nvme", 4) && strcmp(scheduler, "none"))
		ucm_doctor_warn(subject, mend, "disk %s has the scheduler %s, "
				"which costs time at each request", name,
				scheduler);
	else
		ucm_doctor_ok(subject, "disk %s: scheduler %s, queue of %s, "
			      "write cache: %s, %s%s", name, scheduler, requests, cache,
			      /* virtual ones say so of whatever they are */
			      *turns == '1' ? "rotational" : "no moving parts",
			      node_of(disk, node, sizeof(node)));
}

void ucm_doctor_huge(void)
{
	char words[64];
	const char *setting;

	ucm_doctor_line(HUGE, words, sizeof(words));
	if (!*words)
		return; /* the kernel has none, or it is hidden here */
	setting = chosen(words);
	if (!strcmp(setting, "never"))
		ucm_doctor_warn("huge pages", "echo madvise >" HUGE,
				"never: a loader's memory is in small pages, "
				"which costs CPU time at each load");
	else
		ucm_doctor_ok("huge pages", "%s", setting);
}
