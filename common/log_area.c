/* SPDX-License-Identifier: Apache-2.0 */
/* log_area.c - areas of debugging lines, and how deep each is debugged. */
#include <config.h>

#include "common/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/parse.h"

#define SEPARATORS ",: \t\r\n"
#define UNCHANGED 0xff

_Atomic uint8_t ucm_log_depths[UCM_AREA_COUNT];

static const char *const names[] = {
#define NAME(id, name, one, two) [UCM_AREA_##id] = name,
	UCM_LOG_AREAS(NAME)
#undef NAME
};

/* "fs" is all that begin with "fs.". */
static bool matches(const char *name, const char *wanted)
{
	size_t len = strlen(wanted);

	if (!strcmp(wanted, "all") || !strcmp(wanted, name))
		return true;
	return !strncmp(name, wanted, len) && name[len] == '.';
}

/* One "AREA=DEPTH" into a table of depths; cuts the text at its '='. */
static int set_one(char *text, uint8_t depths[UCM_AREA_COUNT],
		   struct ucm_error *error)
{
	char *value = strchr(text, '=');
	uint64_t depth;
	bool found = false;

	if (!value)
		return ucm_error_set(error, -EINVAL,
				     "'%.80s': AREA=DEPTH is needed", text);
	*value++ = '\0';
	if (ucm_parse_range(value, 0, UCM_LOG_DEPTH_MAX, &depth))
		return ucm_error_set(error, -EINVAL,
				     "%.80s: depth '%.80s': 0 to %d", text,
				     value, UCM_LOG_DEPTH_MAX);
	for (unsigned i = 0; i < UCM_AREA_COUNT; i++) {
		if (!matches(names[i], text))
			continue;
		depths[i] = (uint8_t)depth;
		found = true;
	}
	if (!found)
		return ucm_error_set(error, -EINVAL, "no area '%.80s'", text);
	return 0;
}

int ucm_log_areas_set(const char *text, struct ucm_error *error)
{
	uint8_t depths[UCM_AREA_COUNT];
	_cleanup_free_ char *copy = strdup(text);
	char *save = NULL, *part;
	int err = 0;

	if (!copy)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	memset(depths, UNCHANGED, sizeof(depths));
	part = strtok_r(copy, SEPARATORS, &save);
	if (!part)
		return ucm_error_set(error, -EINVAL, "AREA=DEPTH is needed");
	for (; part && !err; part = strtok_r(NULL, SEPARATORS, &save))
		err = set_one(part, depths, error);
	for (unsigned i = 0; i < UCM_AREA_COUNT && !err; i++) {
		if (depths[i] != UNCHANGED)
			atomic_store(&ucm_log_depths[i], depths[i]);
	}
	return err;
}

char *ucm_log_areas_text(void)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	for (unsigned i = 0; i < UCM_AREA_COUNT; i++)
		fprintf(out, "%s=%u\n", names[i],
			atomic_load(&ucm_log_depths[i]));
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}
