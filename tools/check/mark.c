/* SPDX-License-Identifier: Apache-2.0 */
/* mark.c - how far ucm scrub is; see mark.h. */
#include <config.h>

#include "tools/check/mark.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "tools/lib/tool.h"

#define MARK_MAX 16384 /* SOURCE names many directories */

/* ---- its text ---- */

/* Of what: it comes first, and is compared as it is. To free. */
static char *mark_head(const struct ucm_mark *mark)
{
	return ucm_tool_format("ucm-scrub 1\nof=%s\nonly=%s\nspace=", mark->of,
			       mark->only);
}

/* To free. */
static char *mark_format(const struct ucm_mark *mark)
{
	_cleanup_free_ char *head = mark_head(mark);
	_cleanup_free_ char *body =
		ucm_tool_format("%s%s\nafter=%s\n", head, mark->space,
				ucm_hex(&mark->after).text);

	return ucm_tool_format("%scrc=%08x\n", body,
			       ucm_crc32c(0, body, strlen(body)));
}

/* Is it one of ours? Then it says the same when it is written again. */
static bool mark_parse(struct ucm_mark *mark, const char *text)
{
	_cleanup_free_ char *head = mark_head(mark), *again = NULL;
	char hex[UCM_ID_HEX + 1];
	size_t len;

	if (strncmp(text, head, strlen(head)))
		return false;
	text += strlen(head);
	len = strcspn(text, "\n");
	if (len >= sizeof(mark->space) ||
	    sscanf(text + len, "\nafter=%32s\n", hex) != 1 ||
	    ucm_id_parse(hex, &mark->after))
		return false;
	memcpy(mark->space, text, len);
	mark->space[len] = '\0';
	again = mark_format(mark);
	return !strcmp(again, text - strlen(head));
}

/* ---- its file ---- */

static void make_folders(char *path)
{
	for (char *at = path; (at = strchr(at + 1, '/')); *at = '/') {
		*at = '\0';
		if (mkdir(path, 0755) && errno != EEXIST)
			ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", path,
				     strerrordesc_np(errno));
	}
}

/* Where such files are: $XDG_STATE_HOME, /var/lib for root, or ~/.local/state. To
 * free. */
static char *default_path(const struct ucm_mark *mark)
{
	_cleanup_free_ char *head = mark_head(mark);
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	const char *below = "";

	if (!state || !*state) {
		state = geteuid() ? home : "/var/lib";
		below = geteuid() ? "/.local/state" : "";
	}
	if (!state)
		ucm_tool_die(UCM_EXIT_FAILED, "no HOME: say --state FILE");
	return ucm_tool_format("%s%s/ucmfs/scrub-%08x", state, below,
			       ucm_crc32c(0, head, strlen(head)));
}

static void open_place(struct ucm_mark *mark, char *path)
{
	char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;

	snprintf(mark->name, sizeof(mark->name), "%s", name);
	if (slash)
		slash[1] = '\0';
	mark->dirfd = open(slash ? path : ".",
			   O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (mark->dirfd < 0)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", path,
			     strerrordesc_np(errno));
}

static void mark_load(struct ucm_mark *mark)
{
	_cleanup_free_ char *text = ucm_tool_alloc(MARK_MAX, 1);
	int err = ucm_os_read_file(mark->dirfd, mark->name, text, MARK_MAX);

	mark->any = !err && mark_parse(mark, text);
	if (!mark->any && err != -ENOENT)
		ucm_tool_complain("%s: %s: begins at the beginning", mark->name,
				  err ? strerror(-err)
				      : "damaged, or of other blocks");
}

void ucm_mark_open(struct ucm_mark *mark, const char *state, const char *of,
		   const char *only)
{
	_cleanup_free_ char *path = NULL;

	*mark = (struct ucm_mark){ .of = of, .only = only, .dirfd = -1 };
	path = state ? ucm_tool_format("%s", state) : default_path(mark);
	if (!state)
		make_folders(path);
	open_place(mark, path);
	mark_load(mark);
}

void ucm_mark_close(struct ucm_mark *mark)
{
	ucm_cleanup_fd(&mark->dirfd);
}

int ucm_mark_save(const struct ucm_mark *mark)
{
	_cleanup_free_ char *text = mark_format(mark);
	int err = ucm_os_replace_file(mark->dirfd, mark->name, text,
				      strlen(text));

	return err ? ucm_tool_fail(err, "%s: %s", mark->name, strerror(-err))
		   : 0;
}

void ucm_mark_remove(const struct ucm_mark *mark)
{
	if (unlinkat(mark->dirfd, mark->name, 0) && errno != ENOENT)
		ucm_tool_complain("%s: %s", mark->name,
				  strerrordesc_np(errno));
}
