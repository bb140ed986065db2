/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen.c - a terminal that is drawn on, and given back as it was.
 *
 * Signals restore it in their handler, with calls that are safe there, and then
 * take their usual course.
 */
#include <config.h>

#include "tools/look/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* alternate screen, no cursor; and back */
#define ENTER "\033[?1049h\033[?25l\033[2J"
#define LEAVE "\033[?25h\033[?1049l"
#define HOME "\033[H"
#define REST_OF_LINE "\033[K"
#define REST_OF_SCREEN "\033[J"

static struct termios before;
static volatile sig_atomic_t taken;

static const int deadly[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT,
			      SIGSEGV, SIGBUS, SIGABRT };
#define NUM_DEADLY (sizeof(deadly) / sizeof(deadly[0]))

/* What cannot be written now cannot be helped. */
static void put(const char *text, size_t len)
{
	ssize_t done = write(STDOUT_FILENO, text, len);

	(void)done;
}

static void enter(void)
{
	struct termios raw = before;

	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	raw.c_cc[VMIN] = 1;
	raw.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
	put(ENTER, strlen(ENTER));
	taken = 1;
}

static void leave(void)
{
	if (!taken)
		return;
	taken = 0;
	put(LEAVE, strlen(LEAVE));
	tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
}

static void on_deadly(int number)
{
	leave();
	signal(number, SIG_DFL);
	raise(number);
}

static void on_stop(int number)
{
	int saved = errno;

	(void)number;
	leave();
	raise(SIGSTOP);
	enter();
	errno = saved;
}

static void on_resize(int number)
{
	(void)number; /* it ends the wait */
}

static void catch(int number, void (*handler)(int number))
{
	struct sigaction action = { .sa_handler = handler };

	sigaction(number, &action, NULL);
}

int ucm_screen_open(void)
{
	if (!isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before))
		return -ENOTTY;
	for (size_t i = 0; i < NUM_DEADLY; i++)
		catch(deadly[i], on_deadly);
	catch(SIGTSTP, on_stop);
	catch(SIGWINCH, on_resize);
	enter();
	return 0;
}

void ucm_screen_close(void)
{
	leave();
	for (size_t i = 0; i < NUM_DEADLY; i++)
		signal(deadly[i], SIG_DFL);
	signal(SIGTSTP, SIG_DFL);
	signal(SIGWINCH, SIG_DFL);
}

static void get_size(unsigned *lines, unsigned *columns)
{
	struct winsize size;

	*lines = 24;
	*columns = 80;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size))
		return;
	if (size.ws_row)
		*lines = size.ws_row;
	if (size.ws_col)
		*columns = size.ws_col;
}

/* Names may hold anything; on a screen it must not move the cursor. */
static void put_line(const char *at, size_t len)
{
	for (size_t i = 0; i < len; i++)
		putchar((unsigned char)at[i] < ' ' || at[i] == 127 ? '?'
								   : at[i]);
	fputs(REST_OF_LINE, stdout);
}

int ucm_screen_draw(const char *text)
{
	unsigned lines, columns;

	get_size(&lines, &columns);
	fputs(HOME, stdout);
	for (unsigned i = 0; i < lines && *text; i++) {
		size_t len = strcspn(text, "\n");

		if (i)
			fputs("\r\n", stdout);
		put_line(text, len < columns ? len : columns);
		text += len + (text[len] == '\n');
	}
	fputs(REST_OF_SCREEN, stdout);
	return fflush(stdout) ? -errno : 0;
}

int ucm_screen_wait(int timeout_ms, int fd)
{
	struct pollfd inputs[] = {
		{ .fd = STDIN_FILENO, .events = POLLIN },
		{ .fd = fd, .events = POLLIN },
	};
	unsigned char key;
	ssize_t got;

	if (poll(inputs, 2, timeout_ms) <= 0)
		return 0;
	if (!inputs[0].revents)
		return UCM_SCREEN_FD;
	got = read(STDIN_FILENO, &key, 1);
	if (got == 1)
		return key;
	return got == 0 ? -EPIPE : errno == EINTR ? 0 : -errno;
}
