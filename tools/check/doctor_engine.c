/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor_engine.c - is vLLM, as this user would start it, ready to use one?
 *
 * What Python has is asked of Python itself: that of $VIRTUAL_ENV, or the first
 * in PATH. It imports as the engine would, because what is installed and cannot
 * be imported (a CUDA that is missing) is the common case.
 */
#include <config.h>

#include "tools/check/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "hashing/tree.h"
#include "tools/lib/text.h"

#define SHM "/dev/shm"
#define SHM_ENOUGH ((uint64_t)1 << 30)
#define SAY_END "ucm\tend\n"

/* ---- asking Python ---- */

/* Lines that begin with "ucm" are for us; engines print others. */
static const char probe[] =
	"import os, re, sys\n"
	"if sys.path[:1] == ['']: del sys.path[0]\n" /* not what lies about */
	"def say(name, value):\n"
	"    value = ' '.join(str(value).split())\n"
	"    print('ucm', name, value, sep='\\t', flush=True)\n"
	"def fault(error):\n"
	"    return '%s: %s' % (type(error).__name__, error)\n"
	"say('python', '%d.%d.%d' % sys.version_info[:3])\n"
	"say('executable', sys.executable)\n"
	"try:\n"
	"    import ucmfs\n"
	"    say('package', ucmfs.__version__)\n"
	"    import ucmfs.hash\n"
	"    ucmfs.hash.crc32c(b'')\n"
	"    say('library', 'loaded')\n"
	"except BaseException as error:\n"
	"    say('package_fault', fault(error))\n"
	"def source(*path):\n"
	"    name = os.path.join(os.path.dirname(vllm.__file__), *path)\n"
	"    with open(name, encoding='utf-8') as file:\n"
	"        return file.read()\n"
	"try:\n"
	"    import vllm\n"
	"    say('vllm', vllm.__version__)\n"
	"    fixed = 'DEFAULT_NONE_HASH_SEED' in source('v1', 'core',\n"
	"                                               'kv_cache_utils.py')\n"
	"    say('seed', 'fixed' if fixed else 'random')\n"
	"    policy = re.search(r'kv_load_failure_policy:.*= *\"(\\w+)\"',\n"
	"                       source('config', 'kv_transfer.py'))\n"
	"    say('policy', policy.group(1) if policy else '')\n"
	"except BaseException as error:\n"
	"    say('vllm_fault', fault(error))\n"
	"try:\n"
	"    from importlib.metadata import entry_points\n"
	"    group = entry_points(group='vllm.general_plugins')\n"
	"    if 'ucmfs' not in group.names:\n"
	"        say('plugin', 'no entry point ucmfs of vllm.general_plugins')\n"
	"    elif 'ucmfs' not in os.environ.get('VLLM_PLUGINS', 'ucmfs').split(','):\n"
	"        say('plugin', '$VLLM_PLUGINS leaves ucmfs out')\n"
	"    elif 'vllm' in sys.modules:\n" /* it could be imported */
	"        lacking = group['ucmfs'].load()().items()\n"
	"        say('plugin', '; '.join(map(': '.join, lacking)))\n"
	"except BaseException as error:\n"
	"    say('plugin', fault(error))\n"
	"print('ucm\\tend', flush=True)\n";

static json_t *answers; /* by the probe's names for them */

static const char *answer(const char *name)
{
	return json_string_value(json_object_get(answers, name));
}

static const char *answer_or_fault(const char *name)
{
	const char *value = answer(name);

	return value ? value : "it does not come back";
}

/* In a process group of its own, with what it imports and starts. */
static void become_python(int out)
{
	const char *venv = getenv("VIRTUAL_ENV");
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char path[4096] = "python3";

	setpgid(0, 0);
	dup2(null, 0);
	dup2(out, 1);
	dup2(null, 2);
	setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
	setenv("VLLM_NO_USAGE_STATS", "1", 1);
	if (venv && *venv)
		snprintf(path, sizeof(path), "%s/bin/python3", venv);
	execlp(path, path, "-c", probe, NULL);
	_exit(127);
}

/* Until it has said all, or has ended; -ETIMEDOUT: or time is up. */
static int listen_to(int fd, int64_t until_ms, char *text, size_t size)
{
	struct pollfd said = { .fd = fd, .events = POLLIN };
	size_t len = 0;
	ssize_t got;

	while (len < size - 1 && !strstr(text, SAY_END)) {
		int64_t left_ms = until_ms - ucm_monotonic_ms();

		if (left_ms <= 0)
			return -ETIMEDOUT;
		/* it may also have been stopped and continued meanwhile */
		if (poll(&said, 1, (int)left_ms) <= 0)
			continue;
		got = read(fd, text + len, size - 1 - len);
		if (got <= 0)
			break;
		len += (size_t)got;
		text[len] = '\0';
	}
	return 0;
}

static void take_answer(char *line)
{
	char *value = strncmp(line, "ucm\t", 4) ? NULL : strchr(line + 4, '\t');

	if (!value)
		return;
	*value++ = '\0';
	ucm_json_set(answers, line + 4, ucm_json_text(value));
}

/* -ENOENT: no Python runs; -ETIMEDOUT: it was not done in time. */
static int ask_python(unsigned patience_s)
{
	int64_t until_ms = ucm_monotonic_ms() + (int64_t)patience_s * 1000;
	int ends[2], status = 0, err;
	char text[16384] = "", *rest = text;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid == 0)
		become_python(ends[1]);
	err = pid < 0 ? -errno : 0;
	if (pid > 0)
		setpgid(pid, pid); /* whoever of us comes first */
	close(ends[1]);
	if (!err)
		err = listen_to(ends[0], until_ms, text, sizeof(text));
	close(ends[0]);
	if (pid > 0) {
		kill(-pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	answers = json_object();
	for (char *line; (line = strsep(&rest, "\n"));)
		take_answer(line);
	if (!err && !answer("python"))
		err = -ENOENT;
	return err;
}

/* ---- what it has ---- */

static void check_vllm(void)
{
	const char *version = answer("vllm");
	const char *python = answer("executable");

	if (!version)
		ucm_doctor_fail("vllm", "activate its virtual environment, "
				"or pip install vllm",
				"%s cannot import it: %s", python,
				answer_or_fault("vllm_fault"));
	else if (!ucm_release_is(version, 0, 31) ||
		 ucm_release_is(version, 0, 34))
		ucm_doctor_warn("vllm", "pip install vllm==0.32.0",
				"%s; UcmfsTier and UcmfsConnector are made "
				"for 0.31 to 0.33", version);
	else
		ucm_doctor_ok("vllm", "%s of %s", version, python);
}

/* Block hashes are names of files: all that share them must make the same. */
static void check_own_seed(const char *version, const char *seed)
{
	const char *mend = "export PYTHONHASHSEED=0";

	if (!seed)
		ucm_doctor_warn("hash seed", mend,
				"it is not known how vLLM %s makes it",
				version);
	else if (!strcmp(seed, "fixed"))
		ucm_doctor_ok("hash seed", "vLLM %s has a fixed one, except "
			      "with --prefix-caching-hash-algo xxhash",
			      version);
	else
		ucm_doctor_fail("hash seed", mend, "vLLM %s makes a new one "
				"at each start: no block is found again",
				version);
}

static void check_seed(void)
{
	const char *seed = getenv("PYTHONHASHSEED");

	if (seed && !strcmp(seed, "random"))
		ucm_doctor_warn("hash seed", "export PYTHONHASHSEED=0",
				"PYTHONHASHSEED=random: whoever names blocks "
				"by Python's hash() (LMCache) finds none "
				"again");
	else if (seed)
		ucm_doctor_ok("hash seed", "PYTHONHASHSEED=%s; the same for "
			      "all that share blocks", seed);
	else if (answer("vllm"))
		check_own_seed(answer("vllm"), answer("seed"));
}

static void check_policy(void)
{
	const char *policy = answer("policy");

	if (!policy)
		return;
	if (!strcmp(policy, "recompute"))
		ucm_doctor_ok("load failures",
			      "what cannot be loaded is computed");
	else
		ucm_doctor_warn("load failures", "\"kv_load_failure_policy\": "
				"\"recompute\" in --kv-transfer-config, with "
				"UcmfsConnector", "vLLM fails a request "
				"whose blocks cannot be loaded, unless it is "
				"configured otherwise");
}

static void check_package(void)
{
	const char *version = answer("package");

	if (!version)
		ucm_doctor_warn("ucmfs",
				"make wheel, and pip install what it makes",
				"no Python package: %s; UcmfsTier and "
				"UcmfsConnector need it, MOUNT/files does "
				"not", answer_or_fault("package_fault"));
	else if (strcmp(version, PACKAGE_VERSION))
		ucm_doctor_fail("ucmfs", "install both from one version",
				"the Python package is %s, ucm is %s", version,
				PACKAGE_VERSION);
	else if (!answer("library"))
		ucm_doctor_fail("ucmfs", "make install and ldconfig, or "
				"export UCMFS_LIBRARY=PATH/libucm.so",
				"the Python package finds no libucm: %s",
				answer_or_fault("package_fault"));
	else
		ucm_doctor_ok("ucmfs",
			      "the Python package is %s, and loads libucm",
			      version);
}

/* What vLLM has by the package's entry point: the probe says what it lacks. */
static void check_plugin(void)
{
	const char *lacking = answer_or_fault("plugin");

	if (!*lacking)
		ucm_doctor_ok("plug-in", "the tier \"ucmfs\", connectors and, on "
			      "a CPU, sparse attention are known to vLLM");
	else if (answer("vllm") && answer("package"))
		ucm_doctor_warn("plug-in", "pip install the package and "
				"vllm==0.32.0; if VLLM_PLUGINS is set, add "
				"ucmfs to it", "no tier \"ucmfs\", connector or "
				"sparse attention: %s; with module_path, "
				"UcmfsConnector and UcmfsTier work without",
				lacking);
}

/* vLLM keeps its primary tier there. */
static void check_shm(void)
{
	uint64_t available;
	struct statvfs st;

	if (statvfs(SHM, &st)) {
		ucm_doctor_fail(SHM, "mount -t tmpfs tmpfs " SHM, "%s",
				strerror(errno));
		return;
	}
	available = (uint64_t)st.f_bavail * st.f_frsize;
	if (available < SHM_ENOUGH)
		ucm_doctor_warn(SHM,
				"mount -o remount,size=SIZE " SHM ", or docker run --shm-size SIZE",
				"only %s free: cpu_bytes_to_use lies there",
				ucm_text_size(available, false).text);
	else
		ucm_doctor_ok(SHM, "%s free; cpu_bytes_to_use must fit in",
			      ucm_text_size(available, false).text);
}

void ucm_doctor_engine(unsigned patience_s)
{
	int err = ask_python(patience_s);

	if (err == -ETIMEDOUT) {
		ucm_doctor_fail("python3",
				"--patience, or see what it waits for",
				"it has not imported vllm and ucmfs within "
				"%u s", patience_s);
	} else if (err) {
		ucm_doctor_fail("python3",
				"install it, or activate a virtual environment",
				"%s",
				err == -ENOENT ? "it does not run" : strerror(-err));
	} else {
		ucm_doctor_ok("python3", "%s, %s", answer("python"),
			      answer("executable"));
		check_vllm();
		check_seed();
		check_policy();
		check_package();
		check_plugin();
	}
	check_shm();
}

/* ---- the mount, for this user ---- */

void ucm_doctor_engine_mount(const struct ucm_mount *mount)
{
	static const char *const parts[] = { UCM_TREE_FILES,
					     UCM_TREE_SPACES };
	char path[4096], mend[64];

	snprintf(mend, sizeof(mend), "mount with -o uid=%u,allow_other",
		 geteuid());

	for (unsigned i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", mount->point, parts[i]);
		if (!access(path, R_OK | W_OK | X_OK))
			ucm_doctor_ok(path, "user %u may write there",
				      geteuid());
		else if (errno == EACCES || errno == EPERM)
			ucm_doctor_fail(path, mend,
					"user %u may not write there",
					geteuid());
		else
			ucm_doctor_fail(path, "see what is said of the mount",
					"%s", strerror(errno));
	}
}
