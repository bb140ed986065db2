/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c - by what a new name of files/ is placed; see files.h.
 *
 * By its path, without what makes the name a temporary one: so x.tmp is made
 * where x belongs, and renaming it to x over an old x is one rename(2). The
 * folder alone would keep more names together, and all of a program that keeps
 * its chunks in one folder on one disk; the name alone would put those that
 * recur in each folder on one. doc/architecture.md has the figures. A name that
 * is taken for a temporary one and is none does no harm if it is one of few.
 */
#include <config.h>

#include "fs/files/files.h"

#include <limits.h>
#include <string.h>

#include "hashing/digest.h"

#define UNIQUE_DIGITS 12 /* fewer may count something */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The length of a name without a mark and what follows it; if it has none, all
 * of it. */
static size_t cut_mark(const char *name)
{
	static const struct {
		const char *text;
		bool goes_on; /* with a number, or anything else but a letter */
	} marks[] = {
		{ ".tmp", true }, { ".temp", true }, { ".part", false },
		{ ".partial", false }, { ".incomplete", false },
		{ ".lock", false }, { ".new", false }, { "~", false },
	};

	for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
		const char *at = *name ? strstr(name + 1, marks[i].text) : NULL;

		for (; at; at = strstr(at + 1, marks[i].text)) {
			char next = at[strlen(marks[i].text)];

			if (!next || (marks[i].goes_on && !is_letter(next)))
				return (size_t)(at - name);
		}
	}
	return strlen(name);
}

/* x.bin_1234567890123: without the number. */
static size_t cut_number(const char *name, size_t len)
{
	size_t digits = len, dot;

	while (digits && is_digit(name[digits - 1]))
		digits--;
	if (len - digits < UNIQUE_DIGITS || !digits || name[digits - 1] != '_')
		return len;
	dot = --digits;
	while (dot && is_letter(name[dot - 1]))
		dot--;
	return dot && dot < digits && name[dot - 1] == '.' ? digits : len;
}

/* .x.A1b2C3, with 6 or 8 of them: the length without the last part, or 0. */
static size_t cut_random(const char *name)
{
	const char *last = strrchr(name, '.');
	size_t len = last > name + 1 ? strlen(last + 1) : 0;

	if (len != 6 && len != 8)
		return 0;
	for (const char *c = last + 1; *c; c++) {
		if (!is_letter(*c) && !is_digit(*c) && *c != '_')
			return 0;
	}
	return (size_t)(last - name);
}

const char *ucm_files_stem(const char *name, size_t *len_out)
{
	size_t len = cut_mark(name);
	bool hidden = name[0] == '.' && name[1];

	if (name[len])
		len = cut_number(name, len);
	else if (hidden && cut_random(name))
		len = cut_random(name);
	else
		hidden = false;
	if (hidden && len > 1) {
		name++;
		len--;
	}
	*len_out = len;
	return name;
}

void ucm_files_place(const char *path, struct ucm_id *out)
{
	const char *slash = strrchr(path, '/');
	size_t folder = slash ? (size_t)(slash + 1 - path) : 0, len;
	const char *stem = ucm_files_stem(path + folder, &len);
	char key[PATH_MAX];

	memcpy(key, path, folder);
	memcpy(key + folder, stem, len);
	if (ucm_md5(key, folder + len, out->bytes))
		memset(out, 0, sizeof(*out));
}
