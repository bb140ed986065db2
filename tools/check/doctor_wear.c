/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_wear.c - what an NVMe disk says of its health, and the memory of GPUs. */
#include <config.h>

#include "tools/check/doctor.h"

#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <string.h>
#include <sys/ioctl.h>

#include "common/cleanup.h"

#define GET_LOG_PAGE 2
#define SMART 2
#define TEMPERATURE 2 /* of critical warnings */
#define WORN 90 /* per cent of what the maker promises */
#define SHARE 92 /* per cent of a GPU's memory: what vLLM takes by default */

/* NVM Express Base Specification, SMART / Health Information: 0 critical warning, 3
 * spare blocks and 4 the least of them, per cent, 5 wear. */
bool ucm_wear_advise(const uint8_t log[UCM_WEAR_LOG], char *out, size_t len)
{
	static const char *const warnings[] = {
		"few spare blocks", "too hot or too cold", "errors", "read-only",
		"the backup of its memory failed", "its persistent memory failed",
	};
	size_t at = (size_t)snprintf(out, len, "wear %u %%, spare blocks %u %%",
				     log[5], log[3]);

	for (unsigned i = 0; i < sizeof(warnings) / sizeof(*warnings); i++)
		if (log[0] & 1u << i && at < len)
			at += (size_t)snprintf(out + at, len - at, ", %s",
					       warnings[i]);
	return log[0] || log[5] >= WORN || log[3] < log[4];
}

/* UNTESTED: no machine of the tests has an NVMe controller that takes commands. */
static bool read_log(const char *disk, uint8_t log[UCM_WEAR_LOG])
{
	char path[80];
	struct nvme_admin_cmd command = {
		.opcode = GET_LOG_PAGE,
		.nsid = UINT32_MAX,
		.addr = (uintptr_t)log,
		.data_len = UCM_WEAR_LOG,
		.cdw10 = SMART | (UCM_WEAR_LOG / 4 - 1) << 16,
	};
	_cleanup_fd_ int fd = -1;

	snprintf(path, sizeof(path), "/dev/%s", disk);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 && !ioctl(fd, NVME_IOCTL_ADMIN_CMD, &command);
}

void ucm_doctor_wear(const char *subject, const char *disk)
{
	uint8_t log[UCM_WEAR_LOG] = { 0 };
	char text[200];

	if (strncmp(disk, "nvme", 4) || !read_log(disk, log))
		return; /* for root alone, and virtual ones have none */
	if (ucm_wear_advise(log, text, sizeof(text)))
		ucm_doctor_warn(subject,
				log[0] == TEMPERATURE
					? "see to its cooling"
					: "replace it (ucm drain); until then write "
					  "less: endurance, see ucmfs(8)",
				"disk %s: %s", disk, text);
	else
		ucm_doctor_ok(subject, "disk %s: %s", disk, text);
}

/* ---- GPUs ---- */

void ucm_doctor_gpus(void)
{
	FILE *said = popen("timeout 5 nvidia-smi "
			   "${CUDA_VISIBLE_DEVICES:+-i \"$CUDA_VISIBLE_DEVICES\"} "
			   "--format=csv,noheader,nounits --query-gpu=index,memory.total,memory.free,pci.bus_id "
			   "2>/dev/null", "re");
	unsigned number, total, free, domain = 0, bus = 0, device = 0;
	char line[200], subject[32], path[80], node[40];

	if (!said)
		return;
	while (fgets(line, sizeof(line), said)) {
		if (sscanf(line, "%u , %u , %u , %x:%x:%x.0", &number, &total, &free,
			   &domain, &bus, &device) < 3)
			continue;
		snprintf(subject, sizeof(subject), "GPU %u", number);
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.0",
			 domain, bus, device);
		if (free < total / 100 * SHARE)
			ucm_doctor_warn(subject, "before an engine starts, end what "
					"nvidia-smi lists, or give it a smaller "
					"--gpu-memory-utilization", "%u of %u MiB "
					"are free, and vLLM takes %d %% when it "
					"starts", free, total, SHARE);
		else
			ucm_doctor_ok(subject, "%u of %u MiB are free%s", free, total,
				      ucm_doctor_node(path, node, sizeof(node)));
	}
	pclose(said);
}
