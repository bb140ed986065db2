/* SPDX-License-Identifier: Apache-2.0 */
/* temp.c - HOST-BOOT-INSTANCE-SERIAL; see temp.h. */
#include <config.h>

#include "fs/medium/temp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <ucm/block.h>

#include "common/process.h"

void ucm_temp_whoami(struct ucm_temp_maker *out)
{
	struct timespec up = { 0 };
	struct utsname name;
	char line[64];
	unsigned boot = 0;

	*out = (struct ucm_temp_maker){ 0 };
	if (!uname(&name))
		out->host = ucm_crc32c(0, name.nodename, strlen(name.nodename));
	ucm_system_line("/etc/machine-id", line, sizeof(line));
	out->host = ucm_crc32c(out->host, line, strlen(line));
	ucm_system_line("/proc/sys/kernel/random/boot_id", line, sizeof(line));
	if (sscanf(line, "%8x", &boot) == 1)
		out->boot = boot;
	if (!clock_gettime(CLOCK_BOOTTIME, &up))
		out->up_s = up.tv_sec;
	if (getrandom(&out->instance, sizeof(out->instance), 0) < 0)
		out->instance = (uint32_t)getpid();
}

void ucm_temp_name(const struct ucm_temp_maker *maker, uint64_t serial,
		   char out[UCM_TEMP_NAME_MAX])
{
	snprintf(out, UCM_TEMP_NAME_MAX, "%08x-%08x-%08x-%02llx", maker->host,
		 maker->boot, maker->instance, (unsigned long long)serial);
}

/* Made by this machine before it was started. Machines that were copied may
 * have one name and id: so it must be that old, too. */
static bool is_of_earlier_boot(const struct ucm_temp_maker *self,
			       const char *name, int64_t age_s)
{
	unsigned host, boot, instance;
	unsigned long long serial;

	return sscanf(name, "%8x-%8x-%8x-%llx", &host, &boot, &instance,
		      &serial) == 4 &&
	       host == self->host && self->boot && boot && boot != self->boot &&
	       age_s > self->up_s;
}

bool ucm_temp_is_over(const struct ucm_temp_maker *self, const char *name,
		      int64_t age_s)
{
	return age_s >= UCM_TEMP_OLD_S ||
	       is_of_earlier_boot(self, name, age_s);
}
