/* SPDX-License-Identifier: Apache-2.0 */
/* hash_input.c - what ucm hash reads: token ids, or the engine's hashes. */
#include <config.h>

#include "tools/data/hash.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ucm_hash_input_name(const struct ucm_hash_options *opt)
{
	return strcmp(opt->input, "-") ? opt->input : "standard input";
}

static int tell_bad_input(const struct ucm_hash_options *opt,
			  const struct ucm_hash_input *input, int err)
{
	const char *name = ucm_hash_input_name(opt);

	if (err == -ENOMEM)
		ucm_tool_complain("%s: no memory", name);
	else
		ucm_tool_complain("%s: byte %llu: not a token id", name,
				  (unsigned long long)input->tokens.offset);
	return err;
}

static int read_tokens(const struct ucm_hash_options *opt,
		       struct ucm_hash_input *input, FILE *file)
{
	char bytes[65536];
	size_t got;
	int err = 0;

	input->tokens.format = opt->format;
	while (!err && (got = fread(bytes, 1, sizeof(bytes), file)) > 0)
		err = ucm_tokens_feed(&input->tokens, bytes, got);
	if (!err && !ferror(file))
		err = ucm_tokens_end(&input->tokens);
	return err ? tell_bad_input(opt, input, err) : 0;
}

/* The next word; its length, 0 at the end, more than 64 if it is longer. */
static size_t read_word(FILE *file, char word[66])
{
	size_t len = 0;
	int c;

	do
		c = getc(file);
	while (c != EOF && isspace(c));
	for (; c != EOF && !isspace(c); c = getc(file)) {
		if (len < 65)
			word[len++] = (char)c;
	}
	word[len] = '\0';
	return len;
}

static int add_hash(struct ucm_hash_input *input, const char *word, size_t len)
{
	size_t bytes = len / 2;
	uint8_t *more;

	if (input->num_hashes == 0)
		input->hash_bytes = bytes;
	if ((len != 32 && len != 64) || bytes != input->hash_bytes)
		return -EINVAL;
	more = reallocarray(input->hashes, input->num_hashes + 1, bytes);
	if (!more)
		return -ENOMEM;
	input->hashes = more;
	if (ucm_hash_hex(word, bytes, more + input->num_hashes * bytes))
		return -EINVAL;
	input->num_hashes++;
	return 0;
}

static int read_hashes(const struct ucm_hash_options *opt,
		       struct ucm_hash_input *input, FILE *file)
{
	char word[66];
	size_t len;

	while ((len = read_word(file, word)) > 0) {
		int err = add_hash(input, word, len);

		if (err == -EINVAL)
			ucm_tool_complain("%s: hash %zu: not 32 or 64 hex "
					  "digits, all as the first",
					  ucm_hash_input_name(opt),
					  input->num_hashes);
		if (err)
			return err;
	}
	return 0;
}

int ucm_hash_read(const struct ucm_hash_options *opt,
		  struct ucm_hash_input *input)
{
	bool standard = !strcmp(opt->input, "-");
	FILE *file = standard ? stdin : fopen(opt->input, "re");
	int err;

	if (!file)
		return ucm_tool_complain("%s: %s", opt->input,
					 strerror(errno));
	errno = 0;
	if (opt->meta.scheme == UCM_SCHEME_EXTERNAL)
		err = read_hashes(opt, input, file);
	else
		err = read_tokens(opt, input, file);
	if (!err && ferror(file))
		err = ucm_tool_complain("%s: %s", ucm_hash_input_name(opt),
					strerror(errno));
	if (!standard)
		fclose(file);
	return err;
}

void ucm_hash_input_fini(struct ucm_hash_input *input)
{
	ucm_tokens_fini(&input->tokens);
	free(input->hashes);
}
