/* SPDX-License-Identifier: Apache-2.0 */
/*
 * screen.h - a terminal that is drawn on, and given back as it was: by
 * close, and by every signal that ends or stops the program.
 *
 * One at a time; one thread.
 */
#ifndef UCM_TOOLS_LOOK_SCREEN_H
#define UCM_TOOLS_LOOK_SCREEN_H

/* Take standard input and output over: the alternate screen, keys without
 * echo. 0 or -errno (-ENOTTY: not both are a terminal). */
int ucm_screen_open(void);
void ucm_screen_close(void);

/* Show text, cut to what there is room for. 0 or -errno. */
int ucm_screen_draw(const char *text);

/* Wait for a key or until fd (-1: none) can be read, but not longer (-1: for
 * ever): the key; UCM_SCREEN_FD; 0: neither, or the size has changed; -errno:
 * there will be no more. */
#define UCM_SCREEN_FD 256
int ucm_screen_wait(int timeout_ms, int fd);

#endif
