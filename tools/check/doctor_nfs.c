/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_nfs.c - what a mount of NFS does to blocks, by its options; see doctor.h. */
#include <config.h>

#include "tools/check/doctor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "fs/config/config.h"

/* An option as the kernel shows it, or NAME= with a number out of bounds. ucmfs takes
 * no locks there, and asks a folder for what others have added: so nolock and
 * lookupcache=pos do no harm. */
static const struct rule {
	const char *option, *why, *mend;
	unsigned least, most; /* most 0: it is no number */
	bool shared;          /* it matters to a shared directory alone */
} rules[] = {
	{ "vers=3", "two changes within a tick of its clock look like one",
	  "vers=4.2", 0, 0, true },
	{ "acdirmax=", "removed blocks are served for this many seconds",
	  "acdirmax=60", 0, 60, true },
	{ "nocto", "removed blocks are served", "cto", 0, 0, true },
	{ "proto=udp", "parts of a write can be mixed up", "proto=tcp", 0, 0, false },
	{ "noac", "each write waits for the server", "ac", 0, 0, false },
	{ "sync", "each write waits for the server", "async", 0, 0, false },
	{ "lookupcache=none", "each open asks for each folder again",
	  "lookupcache=all", 0, 0, false },
	{ "rsize=", "blocks are read in small pieces", "rsize=1048576", 256 << 10,
	  1 << 30, false },
	{ "wsize=", "blocks are written in small pieces", "wsize=1048576", 256 << 10,
	  1 << 30, false },
};

const char *ucm_nfs_options(const char *line, dev_t dev)
{
	const char *type = strstr(line, " - ");
	unsigned major, minor;
	int at = 0;

	if (!type || sscanf(line, "%*u %*u %u:%u", &major, &minor) != 2 ||
	    makedev(major, minor) != dev)
		return NULL;
	sscanf(type, " - nfs%*[4 ] %*s %n", &at);
	return at ? type + at : NULL;
}

/* What follows name, up to the next comma; NULL: it is not there. */
static const char *option(const char *options, const char *name)
{
	size_t len = strlen(name);

	while (options && strncmp(options, name, len)) {
		options = strchr(options, ',');
		options += options != NULL;
	}
	return options ? options + len : NULL;
}

/* value: what follows the option's name, or NULL. */
static bool is_met(const struct rule *rule, const char *value)
{
	unsigned long number;

	if (!value)
		return false;
	if (!rule->most)
		return strchr(",\n", *value);
	number = strtoul(value, NULL, 10);
	return number < rule->least || number > rule->most;
}

static void add(struct ucm_nfs_advice *to, const char *text, const char *mend)
{
	size_t said = strlen(to->text), mends = strlen(to->mend);

	snprintf(to->text + said, sizeof(to->text) - said, "%s%s",
		 said ? "; " : "", text);
	snprintf(to->mend + mends, sizeof(to->mend) - mends, "%s%s",
		 mends ? "," : "mount it with ", mend);
}

/* After the deadline of ucmfs a program has an error in any case. */
static void judge_soft(const char *options, struct ucm_nfs_advice *out)
{
	const char *timeo = option(options, "timeo=");
	const char *tries = option(options, "retrans=");
	unsigned long seconds;
	char text[96];

	if (!option(options, "soft") || !timeo || !tries)
		return;
	seconds = strtoul(timeo, NULL, 10) * (strtoul(tries, NULL, 10) + 1) / 10;
	if (seconds >= UCM_DEADLINE_NETWORK)
		return;
	snprintf(text, sizeof(text), "soft: a write fails after %lu s, and may be lost",
		 seconds);
	add(out, text, "hard");
}

void ucm_nfs_advise(const char *options, bool shared, struct ucm_nfs_advice *out)
{
	char text[128];

	*out = (struct ucm_nfs_advice){ .text = "" };
	judge_soft(options, out);
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		const struct rule *rule = &rules[i];
		const char *value = option(options, rule->option);

		if ((rule->shared && !shared) || !is_met(rule, value))
			continue;
		snprintf(text, sizeof(text), "%s%.*s: %s", rule->option,
			 rule->most ? (int)strcspn(value, ",\n") : 0, value,
			 rule->why);
		add(out, text, rule->mend);
	}
}
