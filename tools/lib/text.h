/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - numbers, times and JSON as the subcommands print them. */
#ifndef UCM_TOOLS_LIB_TEXT_H
#define UCM_TOOLS_LIB_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

/* A short text, by value. */
struct ucm_text {
	char text[24];
};

/* "512", "1.5K", "20M": powers of 1024, rounded; exact: all digits. */
struct ucm_text ucm_text_size(uint64_t bytes, bool exact);

/* "12s", "59m", "23h", "4d"; what lies in the future is "0s". */
struct ucm_text ucm_text_age(int64_t seconds);

/* "850ns", "12us", "3.4ms", "1.2s" */
struct ucm_text ucm_text_duration(double seconds);

/* part of whole in per cent, "95.0 %"; "-" if there is nothing of it. */
struct ucm_text ucm_text_share(uint64_t part, uint64_t whole);

/* The same as a number, for JSON: null if there is nothing of it. */
json_t *ucm_json_share(uint64_t part, uint64_t whole);

/* Names are bytes, JSON is UTF-8: in others, what is not ASCII becomes '?'. */
json_t *ucm_json_text(const char *text);

/* What an object has of a name: a number (0: none), or text (NULL: none). */
uint64_t ucm_json_get(const json_t *object, const char *name);
const char *ucm_json_get_text(const json_t *object, const char *name);

json_t *ucm_json_number(uint64_t value);
json_t *ucm_json_id(const void *id);

/* Take a value into a list, or an object. NULL: one that could not be made must not
 * be passed over, and the process ends (reported). */
void ucm_json_add(json_t *list, json_t *value);
void ucm_json_set(json_t *object, const char *name, json_t *value);

/* Takes an object, which may be NULL as there, and prints it as one line. */
void ucm_json_line(json_t *object);

/* Takes the object (NULL: there was no memory) and prints it. The exit status:
 * status if it was printed, else a failure (reported). */
int ucm_json_print(json_t *object, int status);

#endif
