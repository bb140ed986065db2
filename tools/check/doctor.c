/* SPDX-License-Identifier: Apache-2.0 */
/* doctor.c - ucm doctor: is everything as it should be; see ucm(1). */
#include <config.h>

#include "tools/check/doctor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "tools/lib/args.h"
#include "tools/lib/text.h"

#define PATIENCE_MS 5000
#define DAY_S 86400

static bool json;
static const char *engine;
static uint64_t patience_s = 60;

static int parse_engine(const struct ucm_arg *arg, char *value)
{
	*(const char **)arg->to = value;
	return strcmp(value, arg->value) ? -EINVAL : 0;
}

static const struct ucm_arg args[] = {
	{ "engine", 'e', "vllm", parse_engine, &engine,
	  .help = "also check whether vLLM, as this user would start it, is "
		  "ready: Python, versions, hash seed, /dev/shm, rights" },
	{ "patience", 'p', "SECONDS", ucm_arg_number, &patience_s,
	  .help = "how long Python may take to import it (60)",
	  .min = 1, .max = DAY_S },
	{ "json", 'j', .to = &json, .help = "print JSON instead" },
	{ 0 },
};

static const char *const verdicts[] = {
	[UCM_OK] = "OK",
	[UCM_WARN] = "WARN",
	[UCM_FAIL] = "FAIL",
};

struct ucm_doctor ucm_doctor;

static void add_finding(enum ucm_verdict verdict, const char *subject,
			const char *mend, const char *text)
{
	ucm_json_add(ucm_doctor.findings,
		     json_pack("{ss so so so*}", "verdict", verdicts[verdict],
			       "subject", ucm_json_text(subject), "text",
			       ucm_json_text(text), "mend",
			       mend ? ucm_json_text(mend) : NULL));
}

void ucm_doctor_say(enum ucm_verdict verdict, const char *subject,
		    const char *mend, const char *format, ...)
{
	char text[512];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	ucm_doctor.counts[verdict]++;
	if (ucm_doctor.findings)
		add_finding(verdict, subject, mend, text);
	else
		printf("%-4s %s: %s%s%s\n", verdicts[verdict], subject, text,
		       mend ? "; mend: " : "", mend ? mend : "");
	fflush(stdout); /* the next one may take its time */
}

/* A server that is gone holds whoever asks: so a child does. */
int ucm_doctor_ask(const char *path)
{
	struct statfs st;
	struct pollfd ended = { .events = POLLIN };
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(statfs(path, &st) ? errno : 0);
	if (pid < 0)
		return errno;
	ended.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (ended.fd >= 0 && poll(&ended, 1, PATIENCE_MS) == 0) {
		close(ended.fd);
		kill(pid, SIGKILL); /* where nothing reaches it, init waits */
		return ETIMEDOUT;
	}
	if (ended.fd >= 0)
		close(ended.fd);
	if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status))
		return EIO;
	return WEXITSTATUS(status);
}

/* ---- what is meant ---- */

static const struct ucm_mount *find_mount(const struct ucm_mounts *mounts,
					  const char *path)
{
	_cleanup_free_ char *real = realpath(path, NULL);

	/* a dead one cannot be resolved */
	for (size_t i = 0; i < mounts->num; i++) {
		if (!strcmp(mounts->mounts[i].point, real ? real : path))
			return &mounts->mounts[i];
	}
	return NULL;
}

static void check_argument(const struct ucm_mounts *mounts, const char *path)
{
	const struct ucm_mount *mount = find_mount(mounts, path);

	if (mount)
		ucm_doctor_mount(mount);
	else if (ucm_ask_is_tiers(path) ||
		 (!ucm_doctor_ask(path) && ucm_ask_is_socket(path)))
		ucm_doctor_socket(path);
	else
		ucm_doctor_directory(path, false);
}

static void check_engine(void)
{
	ucm_doctor_gpus();
	ucm_doctor_engine((unsigned)patience_s);
	if (!ucm_doctor.mounted)
		ucm_doctor_fail("mount", "ucmfs DIRECTORY MOUNT -o "
				"allow_other, see ucmfs(8)",
				"nothing that the engine could use");
}

static int end(void)
{
	int status = ucm_doctor.counts[UCM_FAIL] ? UCM_EXIT_FAILED : 0;

	if (!ucm_doctor.findings)
		return ucm_tool_flush() | status;
	return ucm_json_print(
		json_pack("{sI sI sI so}", "ok",
			  (json_int_t)ucm_doctor.counts[UCM_OK], "warnings",
			  (json_int_t)ucm_doctor.counts[UCM_WARN], "failures",
			  (json_int_t)ucm_doctor.counts[UCM_FAIL], "findings",
			  ucm_doctor.findings),
		status);
}

static int run(int argc, char **argv)
{
	struct ucm_mounts mounts;

	ucm_mounts_list(&mounts);
	ucm_doctor.findings = json ? json_array() : NULL;
	ucm_doctor.engine = engine;
	ucm_doctor_machine();
	for (int i = 0; i < argc; i++)
		check_argument(&mounts, argv[i]);
	for (size_t i = 0; !argc && i < mounts.num; i++)
		ucm_doctor_mount(&mounts.mounts[i]);
	if (engine)
		check_engine();
	ucm_mounts_fini(&mounts);
	return end();
}

const struct ucm_command ucm_doctor_command = {
	.name = "doctor",
	.does = "check the machine, mounts and directories",
	.operands = "[MOUNT|DIRECTORY...]",
	.about = "Check the machine (kernel, /dev/fuse, limits, clock), "
		 "mounts, and the directories of tiers: those that are named, "
		 "or all mounts; and memory that memory tiers have left. "
		 "Each check prints one line: OK; WARN: slower "
		 "or less safe than it could be; FAIL: does not work; the "
		 "last two with what mends it. Small files are made and "
		 "removed in a directory, unless its tier is read-only.",
	.args = args,
	.end = "Exit status 1: something does not work.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
