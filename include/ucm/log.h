/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - who gets the messages of libucm.
 *
 * A failure that no call can return, or that a caller may not look at, becomes a
 * line of text: "block 3fa9...: not loaded: plane checksum differs". Lines go to
 * standard error until a program asks for them. ucm_log(3).
 */
#ifndef UCM_LOG_H
#define UCM_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

/* The first is the most important one. */
enum ucm_log_level {
	UCM_LOG_ERROR,
	UCM_LOG_WARNING,
	UCM_LOG_INFO,
	UCM_LOG_DEBUG,
};

/*
 * Gets a line, without a newline, control characters escaped; it is gone when
 * the call returns. Called from any thread, also from those of the library, one
 * call at a time; while it runs, whatever had the message waits. It must call
 * nothing of libucm, and must not wait for a thread that is in a call of libucm.
 */
typedef void (*ucm_log_fn)(void *arg, enum ucm_log_level level,
			   const char *line);

/*
 * From here on lines go to fn, or to standard error again if that is NULL. At
 * any time, also before anything is opened; of the whole process. When it
 * returns, the function that was there before is not running and will not be
 * called any more. -EDEADLK, with nothing changed: called by that function. A
 * child that is forked has what its parent had.
 */
int ucm_log_redirect(ucm_log_fn fn, void *arg);

/*
 * A function for it, for programs that must not run code of theirs in foreign
 * threads (interpreters): sends each line as a message of its own, a digit (the
 * level) and then the text, 1025 bytes at most. arg: the descriptor of a socket of
 * AF_UNIX, SOCK_SEQPACKET, as a pointer ((void *)(intptr_t)fd). Never waits: what
 * the socket does not take goes to standard error.
 */
void ucm_log_to_socket(void *arg, enum ucm_log_level level, const char *line);

#ifdef __cplusplus
}
#endif

#endif
