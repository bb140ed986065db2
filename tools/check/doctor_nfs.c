/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_nfs.c - what a mount of NFS does to blocks, by its options; see doctor.h. */
#include <config.h>

#include "tools/check/doctor.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

#include "common/cleanup.h"
#include "fs/config/config.h"

#define SLOW_MBITS 10000 /* below: about what a GPU computes again as fast */

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

/* ---- the network ---- */

static bool name_of(const struct sockaddr *address, char host[NI_MAXHOST])
{
	return address &&
	       !getnameinfo(address, address->sa_family == AF_INET6
					     ? sizeof(struct sockaddr_in6)
					     : sizeof(struct sockaddr_in),
			    host, NI_MAXHOST, NULL, 0, NI_NUMERICHOST);
}

/* The address here of what goes to a server. Nothing is sent. */
static bool find_ours(const char *server, char host[NI_MAXHOST])
{
	const struct addrinfo hints = {
		.ai_flags = AI_NUMERICHOST,
		.ai_socktype = SOCK_DGRAM,
	};
	struct sockaddr_storage ours;
	struct addrinfo *to = NULL;
	socklen_t len = sizeof(ours);
	_cleanup_fd_ int fd = -1;
	bool good;

	if (getaddrinfo(server, "2049", &hints, &to))
		return false;
	fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	good = fd >= 0 && !connect(fd, to->ai_addr, to->ai_addrlen) &&
	       !getsockname(fd, (struct sockaddr *)&ours, &len) &&
	       name_of((struct sockaddr *)&ours, host);
	freeaddrinfo(to);
	return good;
}

/* -1: virtual ones have none. */
static int speed_of(const char *net, const char *name)
{
	char path[128], line[16];
	int mbits;

	snprintf(path, sizeof(path), "%s/%s/speed", net, name);
	ucm_doctor_line(path, line, sizeof(line));
	return sscanf(line, "%d", &mbits) == 1 ? mbits : -1;
}

int ucm_nfs_mbits(const char *options, const char *net, char name[IF_NAMESIZE])
{
	const char *addr = option(options, "addr=");
	char server[64], ours[NI_MAXHOST], host[NI_MAXHOST];
	struct ifaddrs *all = NULL;
	int mbits = -1;

	snprintf(server, sizeof(server), "%.*s",
		 addr ? (int)strcspn(addr, ",\n") : 0, addr ? addr : "");
	if (!find_ours(server, ours) || getifaddrs(&all))
		return -1;
	for (struct ifaddrs *one = all; one && mbits < 0; one = one->ifa_next) {
		if (!name_of(one->ifa_addr, host) || strcmp(host, ours) != 0)
			continue;
		snprintf(name, IF_NAMESIZE, "%s", one->ifa_name);
		mbits = speed_of(net, name);
	}
	freeifaddrs(all);
	return mbits;
}

void ucm_doctor_network(const char *subject, const char *options)
{
	char name[IF_NAMESIZE];
	int mbits = ucm_nfs_mbits(options, "/sys/class/net", name);

	if (mbits > 0 && mbits < SLOW_MBITS)
		ucm_doctor_warn(subject, "a faster network, or a tier on a disk before it",
				"its server is reached by %s, %d Mbit/s: %d MB/s at most",
				name, mbits, mbits / 8);
	else if (mbits > 0)
		ucm_doctor_ok(subject, "its server is reached by %s, %d Mbit/s",
			      name, mbits);
}
