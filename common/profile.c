/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.c - events in memory, and one file of them at the end of the process.
 *
 * The idea: an event is recorded when it ends, with its begin; so it is complete, and a
 * file needs no pairs. One array has all events of the process. It is touched as it
 * fills, and does not wrap around: the first UCM_PROFILE_MOST events are kept, and the
 * others counted.
 *
 * Threads and locks: there is no lock. An event's place is the value of a counter that
 * is incremented atomically, and belongs to that thread until it has an end. Threads may
 * go on while the process exits: events without an end are left out, and the array is
 * never freed.
 *
 * Viewers take the events of one "tid" as nested calls. Tasks overlap, and so do the
 * reads of one thread. So each kind of event has rows, an event gets the first one that
 * is free when it begins, and "tid" is the number of that row; the thread is among the
 * arguments.
 *
 * Names are ours, and blocks are printed in hexadecimal: there is nothing to escape.
 */
#include <config.h>

#include "common/profile.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"

#define ROWS 1000 /* of a kind; events that find none overlap in the last one */

struct slot {
	struct ucm_profile_event event;
	pid_t thread;
	_Atomic int64_t end_ns; /* 0: it is being written, or free */
};

_Atomic bool ucm_profile_on;

static struct slot *slots; /* NULL: nothing will be written */
static _Atomic size_t num_events;
static char *path;
static _Atomic pid_t owner; /* 0: not asked for yet */

void ucm_profile_add(const struct ucm_profile_event *event)
{
	static _Thread_local pid_t thread;
	int64_t now = ucm_monotonic_ns();
	size_t at = num_events++;

	if (at >= UCM_PROFILE_MOST)
		return;
	thread = thread ? thread : gettid();
	slots[at].event = *event;
	slots[at].thread = thread;
	slots[at].end_ns = now; /* last: the rest can be read then */
}

/* ---- the end ---- */

/* Times without doubles: some locales print them with a comma. */
static void print(FILE *file, const struct slot *slot)
{
	static const char *const kinds[] = { "task", "io", "copy" };
	static int64_t busy_until[UCM_PROFILE_COPY + 1][ROWS];
	const struct ucm_profile_event *event = &slot->event;
	int64_t begin = event->begin_ns, ns = slot->end_ns - begin;
	int64_t err = event->bytes < 0 ? event->bytes : event->err;
	unsigned row = 0;
	uint64_t id[2];

	while (row < ROWS - 1 && busy_until[event->kind][row] > begin)
		row++;
	busy_until[event->kind][row] = begin + ns;
	fprintf(file, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%" PRId64
		".%03d,\"dur\":%" PRId64 ".%03d,\"pid\":%d,\"tid\":%u,\"args\":"
		"{\"thread\":%d,\"bytes\":%" PRId64 ",\"status\":\"%s\",",
		event->name, kinds[event->kind], begin / 1000,
		(int)(begin % 1000), ns / 1000, (int)(ns % 1000), (int)owner,
		event->kind * ROWS + row + 1, (int)slot->thread, event->bytes,
		err ? strerrorname_np((int)-err) : "ok");
	memcpy(id, event->id.bytes, sizeof(id));
	if (event->kind != UCM_PROFILE_TASK)
		fprintf(file, "\"block\":\"%016" PRIx64 "%016" PRIx64 "\"}}",
			be64toh(id[0]), be64toh(id[1]));
	else
		fprintf(file, "\"blocks\":%zu,\"good\":%zu,\"pieces\":%zu}}",
			event->blocks, event->good, event->pieces);
}

__attribute__((destructor)) static void finish(void)
{
	size_t num = num_events, most = UCM_PROFILE_MOST;
	FILE *file;

	if (!slots || owner != getpid())
		return;
	ucm_profile_on = false;
	file = fopen(path, "we");
	if (file) /* an event, too, so that the file has one and a comma follows */
		fprintf(file, "[{\"name\":\"profile\",\"cat\":\"task\",\"ph\":\"X\","
			"\"ts\":%" PRId64 ",\"dur\":0,\"pid\":%d,\"tid\":0,"
			"\"args\":{\"left_out\":%zu}}", ucm_monotonic_ns() / 1000,
			(int)owner, num > most ? num - most : 0);
	for (size_t i = 0; file && i < num && i < most; i++)
		if (slots[i].end_ns)
			print(file, &slots[i]);
	if (!file || fputs("\n]\n", file) < 0 || fclose(file))
		ucm_warning("profile %s: %m", path);
}

/* ---- the start ---- */

/* Whether the file can be written is found out now. Its path is made absolute: the
 * process may change its directory. */
void ucm_profile_start(void)
{
	const char *on = secure_getenv("UCM_PROFILE");
	const char *name = secure_getenv("UCM_PROFILE_OUTPUT");
	_cleanup_fd_ int fd = -1;
	char own[64];
	pid_t none = 0;

	if (!on || (strcmp(on, "1") != 0 && strcasecmp(on, "true") != 0) ||
	    !atomic_compare_exchange_strong(&owner, &none, getpid()))
		return;
	snprintf(own, sizeof(own), "ucm-profile-%d.json", (int)owner);
	name = name && *name ? name : own;
	fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC |
			(name == own ? O_NOFOLLOW : 0), 0644); /* others may guess it */
	path = fd < 0 ? NULL : realpath(name, NULL);
	slots = path ? calloc(UCM_PROFILE_MOST, sizeof(*slots)) : NULL;
	if (!slots)
		ucm_warning("profile %s: %m", name);
	ucm_profile_on = slots;
}
