/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor.h - ucm doctor: what it looks at, and how it says what it found.
 *
 * Each check says one line: OK; WARN, what works but is slower or less safe;
 * FAIL, what does not work. The last two come with what mends it, a command
 * where there is one.
 */
#ifndef UCM_TOOLS_CHECK_DOCTOR_H
#define UCM_TOOLS_CHECK_DOCTOR_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <jansson.h>

#include "tools/lib/tool.h"

enum ucm_verdict { UCM_OK, UCM_WARN, UCM_FAIL };

/* The one that there is. */
extern struct ucm_doctor {
	json_t *findings;   /* JSON; NULL: lines */
	const char *engine; /* that shall use the mounts, or NULL */
	bool mounted;       /* one of them answers */
	unsigned counts[UCM_FAIL + 1];
} ucm_doctor;

/* mend: NULL for what is OK. */
void ucm_doctor_say(enum ucm_verdict verdict, const char *subject,
		    const char *mend, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
#define ucm_doctor_ok(subject, ...)                                           \
	ucm_doctor_say(UCM_OK, subject, NULL, __VA_ARGS__)
#define ucm_doctor_warn(subject, mend, ...)                                   \
	ucm_doctor_say(UCM_WARN, subject, mend, __VA_ARGS__)
#define ucm_doctor_fail(subject, mend, ...)                                   \
	ucm_doctor_say(UCM_FAIL, subject, mend, __VA_ARGS__)

/* Does a path answer, be it with an error, within a few seconds? statfs(2)'s
 * errno, or ETIMEDOUT. */
int ucm_doctor_ask(const char *path);

/* Kernel, /dev/fuse, module parameters, limits, clock; and memory that memory tiers
 * of this user have left, and no store uses. */
void ucm_doctor_machine(void);

/* A directory that is, or is going to be, one of a tier. readonly: so is the
 * tier, and nothing is tried by writing. */
void ucm_doctor_directory(const char *path, bool readonly);

/* The disk below a directory, by the file system's device. */
void ucm_doctor_disk(const char *subject, dev_t dev);
void ucm_doctor_huge(void);
/* The first line of a file of sysfs; "" where there is none. */
void ucm_doctor_line(const char *path, char *out, size_t len);
/* ", NUMA node 1" of a device of sysfs; "" where it has none. */
const char *ucm_doctor_node(const char *device, char *out, size_t len);

/* What that disk says of its wear, where it is an NVMe one and may be asked. */
void ucm_doctor_wear(const char *subject, const char *disk);

/* A SMART log as a text; is there anything wrong? */
#define UCM_WEAR_LOG 512
bool ucm_wear_advise(const uint8_t log[UCM_WEAR_LOG], char *out, size_t len);

/* Have the GPUs of nvidia-smi memory for an engine? */
void ucm_doctor_gpus(void);

/* The options in a line of /proc/self/mountinfo that is of NFS and this device; NULL. */
const char *ucm_nfs_options(const char *line, dev_t dev);

/* Which of them are unsafe or slow, and why; text is "" where none is. */
struct ucm_nfs_advice {
	char text[400], mend[160];
};
void ucm_nfs_advise(const char *options, bool shared,
		    struct ucm_nfs_advice *out);

/* Mbit/s of the interface that leads to the server of these options, and its name;
 * -1: not known. net: /sys/class/net. */
int ucm_nfs_mbits(const char *options, const char *net, char name[IF_NAMESIZE]);
void ucm_doctor_network(const char *subject, const char *options);

/* A mount and its directories. */
void ucm_doctor_mount(const struct ucm_mount *mount);
/* The same of a daemon without a mount, by the path of its socket. */
void ucm_doctor_socket(const char *path);

/* Python, vLLM and the package ucmfs as this user would start them. */
void ucm_doctor_engine(unsigned patience_s);

/* May this user put files and blocks into a mount, which answers? */
void ucm_doctor_engine_mount(const struct ucm_mount *mount);

/* "6.18.44-x": is it so new? A release that is none is not. */
static inline bool ucm_release_is(const char *release, unsigned major,
				  unsigned minor)
{
	unsigned has_major, has_minor;

	if (sscanf(release, "%u.%u", &has_major, &has_minor) != 2)
		return false;
	return has_major > major || (has_major == major && has_minor >= minor);
}

#endif
