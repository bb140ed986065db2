/* SPDX-License-Identifier: Apache-2.0 */
/* hash_input.c - what ucm hash reads: token ids, or the engine's hashes. */
#include <config.h>

#include "tools/data/hash.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "tools/lib/tool.h"

#define SPACES " \t\n\v\f\r"

const char *ucm_hash_input_name(const struct ucm_hash_options *opt)
{
	return strcmp(opt->input, "-") ? opt->input : "standard input";
}

static void take_tokens(const struct ucm_hash_options *opt,
			struct ucm_hash_input *input, const char *text,
			size_t len)
{
	struct ucm_tokens *tokens = &input->tokens;

	tokens->format = opt->format;
	if (ucm_tokens_parse(tokens, text, len))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: byte %llu: not a token id",
			     ucm_hash_input_name(opt),
			     (unsigned long long)tokens->offset);
}

static bool add_hash(struct ucm_hash_input *input, const char *word)
{
	size_t len = strlen(word), bytes = len / 2;

	if (input->num_hashes == 0)
		input->hash_bytes = bytes;
	return (len == 32 || len == 64) && bytes == input->hash_bytes &&
	       !ucm_hash_hex(word, bytes,
			     input->hashes + input->num_hashes++ * bytes);
}

static void take_hashes(const struct ucm_hash_options *opt,
			struct ucm_hash_input *input, char *text, size_t len)
{
	char *rest = NULL;

	for (size_t i = 0; i < len; i++)
		text[i] = text[i] ?: '?'; /* it would end there */
	input->hashes = ucm_tool_alloc(len / 2 + 1, 1);
	for (char *word = strtok_r(text, SPACES, &rest); word;
	     word = strtok_r(NULL, SPACES, &rest)) {
		size_t number = input->num_hashes;

		if (!add_hash(input, word))
			ucm_tool_die(UCM_EXIT_FAILED, "%s: hash %zu: not 32 or "
				     "64 hex digits, all as the first",
				     ucm_hash_input_name(opt), number);
	}
}

void ucm_hash_read(const struct ucm_hash_options *opt,
		   struct ucm_hash_input *input)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int err = strcmp(opt->input, "-")
			  ? ucm_tool_read(opt->input, SIZE_MAX, &text, &len)
			  : ucm_tool_read_fd(STDIN_FILENO, SIZE_MAX, &text, &len);

	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s",
			     ucm_hash_input_name(opt), strerror(-err));
	if (opt->meta.scheme == UCM_SCHEME_EXTERNAL)
		take_hashes(opt, input, text, len);
	else
		take_tokens(opt, input, text, len);
}

void ucm_hash_input_fini(struct ucm_hash_input *input)
{
	ucm_tokens_fini(&input->tokens);
	free(input->hashes);
}
