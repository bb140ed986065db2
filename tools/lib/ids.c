/* SPDX-License-Identifier: Apache-2.0 */
/* ids.c - a list of blocks, one a line. */
#include <config.h>

#include "tools/lib/ids.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "hashing/tree.h"
#include "tools/lib/tool.h"

int ucm_ids_parse(const char *text, struct ucm_id *out)
{
	const char *slash = strrchr(text, '/');
	const char *name = slash ? slash + 1 : text;

	if (strlen(name) == UCM_ID_HEX)
		return ucm_id_parse(name, out);
	return ucm_tree_parse_block(name, out);
}

void ucm_ids_add(struct ucm_ids *ids, const struct ucm_id *id)
{
	ids->ids = ucm_tool_grow(ids->ids, ids->num, &ids->room,
				 sizeof(*ids->ids));
	ids->ids[ids->num++] = *id;
}

static int add_text(struct ucm_ids *ids, const char *text)
{
	struct ucm_id id;

	if (ids->num == UINT32_MAX || ucm_ids_parse(text, &id))
		return -EINVAL;
	ucm_ids_add(ids, &id);
	return 0;
}

/* Cut off the white space around it. */
static char *trim(char *line)
{
	char *end = line + strlen(line);

	while (end > line && isspace((unsigned char)end[-1]))
		end--;
	*end = '\0';
	while (isspace((unsigned char)*line))
		line++;
	return line;
}

void ucm_ids_read(const char *name, struct ucm_ids *ids)
{
	bool standard = !strcmp(name, "-");
	const char *shown = standard ? "standard input" : name;
	FILE *file = standard ? stdin : fopen(name, "re");
	char *line = NULL, *text;
	size_t room = 0, number = 0;

	while (file && getline(&line, &room, file) >= 0) {
		number++;
		text = trim(line);
		if (*text && add_text(ids, text))
			ucm_tool_die(UCM_EXIT_FAILED, "%s: line %zu: not an id: "
				     "32 hex digits, or a block's path", shown,
				     number);
	}
	if (!file || ferror(file))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", shown, strerror(errno));
	free(line);
	if (!standard)
		fclose(file);
}

int ucm_ids_take(struct ucm_ids *ids, int num, char *const *arguments)
{
	for (int i = 0; i < num; i++) {
		if (add_text(ids, arguments[i]))
			return ucm_tool_complain("'%s': not an id: 32 hex "
						 "digits, or a block's path; "
						 "try --help", arguments[i]);
	}
	return 0;
}

int ucm_ids_ask(struct ucm_client *client, const char *space, unsigned bucket,
		struct ucm_ids *ids)
{
	struct ucm_serve_request head = {
		.verb = UCM_SERVE_LIST,
		.argument = bucket,
	};
	_cleanup_fd_ int fd = -1;
	char *bytes;
	size_t len;
	int err;

	if (strlen(space) >= sizeof(head.space))
		return -ENOENT;
	strcpy(head.space, space);
	err = ucm_client_call(client, &head, NULL, 0, NULL, 0, &fd);
	err = err ?: ucm_tool_read_fd(fd, SIZE_MAX, &bytes, &len);
	if (err)
		return err;
	free(ids->ids);
	*ids = (struct ucm_ids){
		.ids = (struct ucm_id *)bytes,
		.num = len / sizeof(struct ucm_id),
		.room = len / sizeof(struct ucm_id),
	};
	return 0;
}

void ucm_ids_fini(struct ucm_ids *ids)
{
	free(ids->ids);
}
