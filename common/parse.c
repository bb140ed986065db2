/* SPDX-License-Identifier: Apache-2.0 */
/* parse.c - numbers in text; see parse.h. */
#include <config.h>

#include "common/parse.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* strtoull takes signs and leading blanks; a size has neither. */
static int parse_digits(const char *text, const char **end, uint64_t *out)
{
	char *stop;
	unsigned long long value;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &stop, 10);
	if (errno)
		return -ERANGE;
	*end = stop;
	*out = value;
	return 0;
}

int ucm_parse_u64(const char *text, uint64_t *out)
{
	const char *end;
	uint64_t value;
	int err = parse_digits(text, &end, &value);

	if (err)
		return err;
	if (*end)
		return -EINVAL;
	*out = value;
	return 0;
}

int ucm_parse_range(const char *text, uint64_t min, uint64_t max,
		    uint64_t *out)
{
	uint64_t value;
	int err = ucm_parse_u64(text, &value);

	if (err)
		return err;
	if (value < min || value > max)
		return -ERANGE;
	*out = value;
	return 0;
}

int ucm_parse_bytes(const char *text, uint64_t *out)
{
	static const char units[] = "KMGTP";
	const char *end, *unit;
	uint64_t value;
	unsigned shift = 0;
	int err = parse_digits(text, &end, &value);

	if (err)
		return err;
	if (*end) {
		unit = strchr(units, toupper((unsigned char)*end));
		if (!unit)
			return -EINVAL;
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
		if (!strcmp(end, "iB") || !strcmp(end, "B"))
			end += strlen(end);
	}
	if (*end)
		return -EINVAL;
	if (shift && value > UINT64_MAX >> shift)
		return -ERANGE;
	*out = value << shift;
	return 0;
}

int ucm_parse_limit(const char *text, uint64_t *out, bool *percent)
{
	const char *end;
	uint64_t value;
	int err;

	if (!parse_digits(text, &end, &value) && !strcmp(end, "%")) {
		if (value == 0 || value > 100)
			return -ERANGE;
		*percent = true;
		*out = value;
		return 0;
	}
	err = ucm_parse_bytes(text, out);
	if (!err)
		*percent = false;
	return err;
}

int ucm_parse_word(const char *text, const char *const *words, size_t num,
		   unsigned *out)
{
	for (unsigned i = 0; i < num; i++) {
		if (!strcmp(text, words[i])) {
			*out = i;
			return 0;
		}
	}
	return -EINVAL;
}

int ucm_parse_bool(const char *text, bool *out)
{
	static const char *const words[] = {
		"no", "yes", "false", "true", "off", "on", "0", "1",
	};
	unsigned number;
	int err = ucm_parse_word(text, words, sizeof(words) / sizeof(words[0]),
				 &number);

	if (!err)
		*out = number & 1;
	return err;
}
