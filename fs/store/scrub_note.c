/* SPDX-License-Identifier: Apache-2.0 */
/* scrub_note.c - the text of a note: a line for each value, "NAME=value". */
#include <config.h>

#include "fs/store/scrub_note.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FIRST "ucmfs-scrub 1\n"

const char *const ucm_scrub_states[UCM_SCRUB_STATES] = {
	[UCM_SCRUB_STATE_NONE] = "none",
	[UCM_SCRUB_STATE_RUNNING] = "running",
	[UCM_SCRUB_STATE_WAITING] = "waiting",
	[UCM_SCRUB_STATE_STOPPED] = "stopped",
	[UCM_SCRUB_STATE_DONE] = "done",
};

static const struct {
	const char *name;
	size_t offset;
} numbers[] = {
#define NUMBER(name) { #name, offsetof(struct ucm_scrub_status, name) }
	NUMBER(blocks),	    NUMBER(bytes),   NUMBER(bad),
	NUMBER(missing),    NUMBER(repaired), NUMBER(unreadable),
	NUMBER(unchecked),  NUMBER(began_s), NUMBER(ended_s),
#undef NUMBER
};
#define NUMBERS (sizeof(numbers) / sizeof(*numbers))

static uint64_t *number_at(struct ucm_scrub_status *status, size_t i)
{
	return (uint64_t *)((char *)status + numbers[i].offset);
}

size_t ucm_scrub_note_format(const struct ucm_scrub_note *note,
			     char text[UCM_SCRUB_NOTE_MAX])
{
	const struct ucm_scrub_place *place = &note->place;
	struct ucm_scrub_status status = note->status;
	struct ucm_hex after = ucm_hex(&place->after);
	int len = snprintf(text, UCM_SCRUB_NOTE_MAX,
			   FIRST "state=%s\nrate=%" PRIu64
				 "\nafter=%s\nspace=%s%s\n",
			   ucm_scrub_states[status.state], note->rate,
			   place->any_read ? after.text : "-",
			   place->all ? "*" : "/", place->space);

	for (size_t i = 0; i < NUMBERS; i++)
		len += snprintf(text + len, (size_t)(UCM_SCRUB_NOTE_MAX - len),
				"%s=%" PRIu64 "\n", numbers[i].name,
				*number_at(&status, i));
	return (size_t)len;
}

/* What follows "NAME=", or NULL. */
static const char *note_value(const char *text, const char *name)
{
	size_t len = strlen(name);

	while ((text = strchr(text, '\n'))) {
		text++;
		if (!strncmp(text, name, len) && text[len] == '=')
			return text + len + 1;
	}
	return NULL;
}

static bool note_is(const char *value, const char *word)
{
	size_t len = strlen(word);

	return value && !strncmp(value, word, len) && value[len] == '\n';
}

static int note_parse_space(const char *value, struct ucm_scrub_place *out)
{
	size_t len = value ? strcspn(value, "\n") : 0;

	if (!len || len - 1 > UCM_TREE_SPACE_MAX ||
	    (*value != '*' && *value != '/'))
		return -EINVAL;
	out->all = *value == '*';
	memcpy(out->space, value + 1, len - 1);
	out->space[len - 1] = '\0';
	return 0;
}

static int note_parse_after(const char *value, struct ucm_scrub_place *out)
{
	char hex[UCM_ID_HEX + 1];

	if (!value)
		return -EINVAL;
	out->any_read = *value != '-';
	if (!out->any_read)
		return 0;
	snprintf(hex, sizeof(hex), "%s", value);
	return strlen(hex) == UCM_ID_HEX ? ucm_id_parse(hex, &out->after)
					 : -EINVAL;
}

static int note_parse_state(const char *value, enum ucm_scrub_state *out)
{
	for (unsigned i = 0; i < UCM_SCRUB_STATES; i++) {
		if (!note_is(value, ucm_scrub_states[i]))
			continue;
		*out = i;
		return 0;
	}
	return -EINVAL;
}

static int note_parse_number(const char *value, uint64_t *out)
{
	return value && sscanf(value, "%" SCNu64, out) == 1 ? 0 : -EINVAL;
}

int ucm_scrub_note_parse(const char *text, struct ucm_scrub_note *out)
{
	struct ucm_scrub_note note = { .rate = 0 };
	int err = strncmp(text, FIRST, strlen(FIRST)) ? -EINVAL : 0;

	if (!err)
		err = note_parse_state(note_value(text, "state"),
				       &note.status.state);
	if (!err)
		err = note_parse_number(note_value(text, "rate"), &note.rate);
	for (size_t i = 0; i < NUMBERS && !err; i++)
		err = note_parse_number(note_value(text, numbers[i].name),
					number_at(&note.status, i));
	if (!err)
		err = note_parse_space(note_value(text, "space"), &note.place);
	if (!err)
		err = note_parse_after(note_value(text, "after"), &note.place);
	if (err)
		return err;
	/* until they are counted */
	note.status.total_blocks = note.status.blocks;
	note.status.total_bytes = note.status.bytes;
	*out = note;
	return 0;
}
