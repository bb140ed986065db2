/* SPDX-License-Identifier: Apache-2.0 */
/* top.c - ucm top: what a mount does, as it happens; see ucm(1). */
#include <config.h>

#include "tools/look/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tools/lib/args.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"
#include "tools/look/screen.h"

static int parse_delay(const struct ucm_arg *arg, char *value)
{
	char *end;
	double seconds = strtod(value, &end);

	if (end == value || *end || !(seconds >= 0.1 && seconds <= 3600))
		return -EINVAL;
	*(int *)arg->to = (int)(seconds * 1000);
	return 0;
}

static struct options {
	struct ucm_common common;
	int delay_ms;
	uint64_t blocks;
	bool once;
} opt = { .delay_ms = 1000, .blocks = 10 };

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNT(opt.common),
	{ "space", 's', "NAME", ucm_arg_space, &opt.common.space,
	  .help = "the hottest blocks of spaces/NAME only" },
	{ "delay", 'd', "SECONDS", parse_delay, &opt.delay_ms,
	  .help = "time between two looks, 0.1 to 3600 (1)" },
	{ "blocks", 'n', "N", ucm_arg_number, &opt.blocks,
	  .help = "the hottest N blocks, at most 200 (10); 0: do not look for "
		  "them",
	  .max = UCM_HOT_MAX },
	{ "once", '1', .to = &opt.once,
	  .help = "print what happens within one delay, and end" },
	{ "json", 'j', .to = &opt.common.json,
	  .help = "the same as --once, as a JSON object" },
	{ 0 },
};

/* ---- what is measured ---- */

#define REST 10 /* times as long as it took to look at all blocks */

static int sample_take(struct ucm_target *target, struct ucm_sample *out)
{
	struct ucm_sample sample = { .at_ns = ucm_monotonic_ns() };
	int err = ucm_target_statistics(target, &sample.stats);

	if (err)
		return err;
	sample.has_metrics = !ucm_metrics_read(target->mount, &sample.metrics);
	*out = sample;
	return 0;
}

static void sample_fini(struct ucm_sample *sample)
{
	if (sample->has_metrics)
		ucm_metrics_fini(&sample->metrics);
	sample->has_metrics = false;
}

/* ---- the hottest blocks ---- */

static bool is_hotter(const struct ucm_control_place *a,
		      const struct ucm_control_place *b)
{
	return a->uses != b->uses ? a->uses > b->uses
				  : a->atime_s > b->atime_s;
}

/* Into its place among those that were found so far. */
static void insert(struct ucm_hottest *hottest, const struct ucm_row *row,
		   const char *folder)
{
	size_t at = hottest->num;

	while (at > 0 && is_hotter(&row->place, &hottest->blocks[at - 1].row.place))
		at--;
	if (at >= hottest->most)
		return;
	if (hottest->num < hottest->most)
		hottest->num++;
	memmove(&hottest->blocks[at + 1], &hottest->blocks[at],
		(hottest->num - at - 1) * sizeof(*hottest->blocks));
	hottest->blocks[at].row = *row;
	snprintf(hottest->blocks[at].folder, UCM_TREE_FOLDER_MAX, "%s", folder);
}

static int add_space(struct ucm_target *target, struct ucm_hottest *hottest,
		     const char *space)
{
	char folder[UCM_TREE_FOLDER_MAX];
	struct ucm_list rows = { 0 };
	int err = ucm_list_read(target, space, "", &rows, NULL);

	ucm_tree_folder(space, folder);
	for (size_t i = 0; i < rows.num; i++) {
		if (rows.rows[i].place.uses)
			insert(hottest, &rows.rows[i], folder);
	}
	ucm_list_fini(&rows);
	return err;
}

/* A private space of somebody else is none of ours. */
static bool may_read(const struct ucm_target *target, const char *space)
{
	return !ucm_client_ids(target->client, UCM_SERVE_LOOKUP, space, 0,
			       NULL, 0, NULL);
}

static int add_spaces(struct ucm_target *target, struct ucm_hottest *hottest)
{
	char **spaces;
	size_t num;
	int err;

	if (hottest->space)
		return add_space(target, hottest, hottest->space);
	err = ucm_spaces_read(target, &spaces, &num);
	if (err)
		return err;
	for (size_t i = 0; i < num && !err; i++) {
		if (may_read(target, spaces[i]))
			err = add_space(target, hottest, spaces[i]);
	}
	ucm_spaces_free(spaces, num);
	return err;
}

/* Done the more seldom the longer it takes. */
static int hottest_take(struct ucm_target *target, struct ucm_hottest *hottest)
{
	int64_t began_ns = ucm_monotonic_ns(), now_ns;
	int err;

	if (!hottest->most || began_ns < hottest->next_ns)
		return 0;
	hottest->num = 0;
	err = add_spaces(target, hottest);
	now_ns = ucm_monotonic_ns();
	hottest->next_ns = now_ns + REST * (now_ns - began_ns);
	return err;
}

/* ---- looks ---- */

/* Two samples, of which the older one is thrown away for the next. */
struct view {
	struct ucm_target *target;
	struct ucm_sample before, now;
	struct ucm_hottest hottest;
};

static int look(struct view *view)
{
	int err;

	sample_fini(&view->before);
	view->before = view->now;
	view->now.has_metrics = false;
	err = sample_take(view->target, &view->now);
	return err ? err : hottest_take(view->target, &view->hottest);
}

static int once(struct view *view)
{
	int err = sample_take(view->target, &view->now);

	if (!err) {
		poll(NULL, 0, opt.delay_ms);
		err = look(view);
	}
	if (err)
		return UCM_EXIT_FAILED;
	if (opt.common.json)
		return ucm_json_print(ucm_top_describe(view->target,
						       &view->before,
						       &view->now,
						       &view->hottest),
				      0);
	ucm_top_print(view->target, &view->before, &view->now, &view->hottest,
		      stdout);
	return ucm_tool_flush();
}

/* ---- on a terminal ---- */

/*
 * The mount is asked by a child, so that keys and signals are heard while a
 * mount does not answer; a child that nothing can end then (a request that the
 * daemon has taken holds its caller) is left to its fate. They take turns: a
 * byte asks for a frame, which comes as one message: 0 or an error, and its text.
 */
struct watcher {
	pid_t child;
	int socket;
	bool asked; /* and not answered yet */
};

#define FRAME_MAX 131072

static int make_text(struct view *view, char **out, size_t *len)
{
	FILE *file = open_memstream(out, len);

	if (!file)
		return -ENOMEM;
	if (view->before.at_ns)
		ucm_top_print(view->target, &view->before, &view->now,
			      &view->hottest, file);
	else
		fputs("ucm top: the first look", file);
	return fclose(file) ? -ENOMEM : 0;
}

/* The child's life. */
static void answer(struct view *view, int socket)
{
	ssize_t sent = 1;
	char byte;

	while (sent > 0 && read(socket, &byte, 1) == 1) {
		char *text = NULL;
		size_t len = 0;
		int err = look(view) ?: make_text(view, &text, &len);
		struct iovec parts[] = { { &err, sizeof(err) },
					 { text, len < FRAME_MAX ? len
								 : FRAME_MAX } };

		sent = writev(socket, parts, 2);
		free(text);
	}
}

static int start(struct watcher *watcher, struct view *view)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return -errno;
	watcher->child = fork();
	if (watcher->child == 0) {
		close(ends[0]); /* so that it reads the end */
		answer(view, ends[1]);
		_exit(0);
	}
	close(ends[1]);
	watcher->socket = ends[0];
	return watcher->child < 0 ? -EAGAIN : 0;
}

static void stop(struct watcher *watcher)
{
	close(watcher->socket);
	if (watcher->asked)
		kill(watcher->child, SIGKILL); /* now, or when it is let go */
	else
		waitpid(watcher->child, NULL, 0);
}

static int ask(struct watcher *watcher)
{
	watcher->asked = write(watcher->socket, "", 1) == 1;
	return watcher->asked ? 0 : -errno;
}

static int draw(struct watcher *watcher)
{
	static char text[FRAME_MAX + 1];
	int err;
	struct iovec parts[] = { { &err, sizeof(err) }, { text, FRAME_MAX } };
	ssize_t got;

	do
		got = readv(watcher->socket, parts, 2);
	while (got < 0 && errno == EINTR);
	watcher->asked = false;
	if (got < (ssize_t)sizeof(err))
		return -EPIPE;
	text[got - (ssize_t)sizeof(err)] = '\0';
	return err ?: ucm_screen_draw(text);
}

/* Until q: 0; or -errno. */
static int watch(struct watcher *watcher)
{
	int err = ask(watcher);

	while (!err) {
		int key = watcher->asked
				  ? ucm_screen_wait(-1, watcher->socket)
				  : ucm_screen_wait(opt.delay_ms, -1);

		if (key == 'q' || key == 'Q')
			break;
		if (key < 0)
			err = key;
		else if (key == UCM_SCREEN_FD)
			err = draw(watcher);
		else if (!watcher->asked)
			err = ask(watcher);
	}
	return err;
}

static int show(struct view *view)
{
	struct watcher watcher = { .child = -1 };
	int err = start(&watcher, view);

	if (err)
		return ucm_tool_fail(UCM_EXIT_FAILED, "%s", strerror(-err));
	if (ucm_screen_open()) {
		stop(&watcher);
		return ucm_tool_fail(UCM_EXIT_FAILED,
				     "this is no terminal; try --once");
	}
	signal(SIGPIPE, SIG_IGN); /* a child that is gone is an error */
	err = watch(&watcher);
	ucm_screen_close();
	if (err) /* what was said on that screen is gone */
		ucm_tool_complain("%s: %s", view->target->mount,
				  ucm_target_words(err));
	stop(&watcher);
	return err ? UCM_EXIT_FAILED : 0;
}

static int run_top(struct ucm_target *target)
{
	struct view *view = ucm_tool_alloc(1, sizeof(*view));
	int status;

	view->target = target;
	view->hottest.most = (size_t)opt.blocks;
	view->hottest.space = opt.common.space;
	status = opt.once || opt.common.json ? once(view) : show(view);
	sample_fini(&view->before);
	sample_fini(&view->now);
	free(view);
	return status;
}

static int run(int argc, char **argv)
{
	(void)argc, (void)argv;
	return ucm_target_run(opt.common.mount, run_top);
}

const struct ucm_command ucm_top_command = {
	.name = "top",
	.does = "show what a mount does, as it happens",
	.operands = "[MOUNT]",
	.about = "Show what a mount does, every second: lookups, hits, "
		 "opens and commits, bytes by tier, how long requests take, "
		 "and the blocks that were used most. q ends it.",
	.args = args,
	.common = &opt.common,
	.run = run,
};
