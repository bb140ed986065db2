/* SPDX-License-Identifier: Apache-2.0 */
/*
 * debug.c - ucm trace debug: what a daemon logs for debugging.
 *
 * What is asked for is looked at by the same code as in the daemon before it is
 * sent, which can name the part that is wrong.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "tools/lib/args.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

#define TEXT_MAX 65536

static bool json;

static const struct ucm_arg args[] = {
	{ "json", 'j', .to = &json, .help = "list as a JSON object" },
	{ 0 },
};

/* The settings as one line. */
static char *join(char **words)
{
	char *text = ucm_tool_format("%s", "");

	for (; *words; words++) {
		char *before = text;

		text = ucm_tool_format("%s%s ", before, *words);
		free(before);
	}
	return text;
}

static int set(const char *mount, const char *text)
{
	_cleanup_fd_ int fd = ucm_mount_open(mount, "debug", O_WRONLY);
	ssize_t put = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (put == (ssize_t)strlen(text))
		return 0;
	ucm_mount_complain(mount, "debug",
			   fd < 0 ? fd : put < 0 ? -errno : -EIO);
	return UCM_EXIT_FAILED;
}

/* "name=depth", a line each, as a JSON object. */
static int print_json(char *text)
{
	json_t *object = json_object();
	char *save = NULL;

	for (char *line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		char *value = strchr(line, '=');

		if (!value)
			continue;
		*value++ = '\0';
		ucm_json_set(object, line, json_integer(atoi(value)));
	}
	ucm_json_line(object);
	return ucm_tool_flush();
}

static int list(const char *mount)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int err = ucm_mount_read(mount, "debug", TEXT_MAX, &text, &len);

	if (err) {
		ucm_mount_complain(mount, "debug", err);
		return UCM_EXIT_FAILED;
	}
	if (json)
		return print_json(text);
	fputs(text, stdout);
	return ucm_tool_flush();
}

static int run(int argc, char **argv)
{
	_cleanup_free_ char *mount = NULL, *settings = NULL;
	const char *named = NULL;
	struct ucm_error error;

	(void)argc;
	if (*argv && ucm_mount_is_named(*argv))
		named = *argv++;
	settings = join(argv);
	/* what is wrong is found before anything is opened */
	if (*argv && ucm_log_areas_set(settings, &error))
		ucm_tool_usage("%s", error.text);
	mount = ucm_mount_find(named);
	return *argv ? set(mount, settings) : list(mount);
}

static void print_areas(void)
{
	static const char *const areas[][3] = {
#define ROW(id, name, one, two) { name, one, two },
		UCM_LOG_AREAS(ROW)
#undef ROW
	};

	for (size_t i = 0; i < UCM_AREA_COUNT; i++) {
		printf("  %-10s 1: %s\n", areas[i][0], areas[i][1]);
		if (*areas[i][2])
			printf("  %-10s 2: and %s\n", "", areas[i][2]);
	}
}

const struct ucm_command ucm_debug_command = {
	.name = "trace",
	.word = "debug",
	.does = "choose what a mount logs for debugging",
	.operands = "[MOUNT] [AREA=DEPTH...]",
	.about = "Choose what the daemon of a mount logs for debugging; "
		 "without AREA, list the areas and their depths. MOUNT (with "
		 "a slash in it) is not needed if there is only one. DEPTH is "
		 "0 (off), 1 or 2. AREA is all, fs, os, or one of these:\n\n",
	.print_more = print_areas,
	.args = args,
	.most = UCM_ARGS_ANY,
	.run = run,
};
