/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.c - ucm hash: the ids of a request's blocks; see ucm(1).
 *
 * The whole input is read, then hashed once for each rank that is asked for.
 */
#include <config.h>

#include "tools/data/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "hashing/hasher.h"
#include "hashing/tree.h"
#include "tools/lib/tool.h"

/* ---- token ids, or the engine's hashes ---- */

#define SPACES " \t\n\v\f\r"

/* The whole input. */
struct input {
	const char *name;
	struct ucm_tokens tokens;
	uint8_t *hashes; /* external: num_hashes of hash_bytes each */
	size_t hash_bytes, num_hashes;
};

static void take_tokens(struct input *input, const char *text, size_t len)
{
	struct ucm_tokens *tokens = &input->tokens;

	if (ucm_tokens_parse(tokens, text, len))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: byte %llu: not a token id",
			     input->name, (unsigned long long)tokens->offset);
}

static bool add_hash(struct input *input, const char *word)
{
	size_t len = strlen(word), bytes = len / 2;

	if (input->num_hashes == 0)
		input->hash_bytes = bytes;
	return (len == 32 || len == 64) && bytes == input->hash_bytes &&
	       !ucm_hash_hex(word, bytes,
			     input->hashes + input->num_hashes++ * bytes);
}

static void take_hashes(struct input *input, char *text, size_t len)
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
				     input->name, number);
	}
}

static void read_input(const struct ucm_hash_options *opt, const char *path,
		       struct input *input)
{
	bool standard = !strcmp(path, "-");
	_cleanup_free_ char *text = NULL;
	size_t len;
	int err = standard ? ucm_tool_read_fd(STDIN_FILENO, SIZE_MAX, &text, &len)
			   : ucm_tool_read(path, SIZE_MAX, &text, &len);

	input->name = standard ? "standard input" : path;
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", input->name,
			     strerror(-err));
	input->tokens.format = opt->format;
	if (opt->meta.scheme == UCM_SCHEME_EXTERNAL)
		take_hashes(input, text, len);
	else
		take_tokens(input, text, len);
}

struct job {
	const struct ucm_hash_options *opt;
	struct input input;
	size_t num_blocks;
	uint32_t first_rank, num_ranks;
	struct ucm_id *ids; /* num_blocks for each rank */
};

/* ---- ids ---- */

static struct ucm_hasher *open_hasher(const struct job *job, uint32_t rank)
{
	struct ucm_hash_meta meta = job->opt->meta;
	struct ucm_hasher *hasher;
	struct ucm_error error;

	meta.rank = rank;
	if (ucm_scheme_info(meta.scheme)->meta && !meta.model)
		ucm_tool_usage("the scheme needs --meta");
	if (meta.scheme == UCM_SCHEME_EXTERNAL && !meta.space_id)
		ucm_tool_usage("the scheme needs --space");
	if (ucm_hasher_open(&meta, &hasher, &error))
		ucm_tool_usage("%s", error.text);
	return hasher;
}

static void begin(const struct job *job, const struct ucm_hasher *hasher,
		  struct ucm_hash_state *state)
{
	const struct ucm_hash_options *opt = job->opt;

	if (opt->resume ? ucm_hash_resume(hasher, &opt->parent,
					  opt->parent_tokens, state)
			: ucm_hash_start(hasher, NULL, state, NULL))
		ucm_tool_usage("the scheme does not go on from this parent");
}

static struct ucm_hash_request request_of(const struct job *job,
					  struct ucm_hash_state *state,
					  struct ucm_id *ids)
{
	return (struct ucm_hash_request){
		.tokens = job->input.tokens.ids,
		.num_tokens = job->input.tokens.num,
		.flags = job->opt->partial ? UCM_HASH_PARTIAL : 0,
		.ids = ids,
		.room = job->num_blocks,
		.state = state,
	};
}

static void hash_tokens(const struct job *job, const struct ucm_hasher *hasher,
			struct ucm_id *ids)
{
	struct ucm_hash_state state;
	struct ucm_hash_request request = request_of(job, &state, ids);
	struct ucm_error error;

	begin(job, hasher, &state);
	if (ucm_hash_request(hasher, &request, &error))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", job->input.name,
			     error.text);
}

static void hash_rank(const struct job *job, uint32_t rank, struct ucm_id *ids)
{
	const struct input *input = &job->input;
	struct ucm_hasher *hasher = open_hasher(job, rank);

	if (job->opt->meta.scheme != UCM_SCHEME_EXTERNAL)
		hash_tokens(job, hasher, ids);
	else if (input->num_hashes && /* else of no size */
		 ucm_hash_external(hasher, job->opt->group, input->hashes,
				   input->hash_bytes, input->num_hashes, ids))
		ucm_tool_exit(UCM_EXIT_FAILED);
	ucm_hasher_close(hasher);
}

static void explain(const struct job *job, struct ucm_id *ids0)
{
	const struct ucm_hash_meta *meta = &job->opt->meta;
	bool chains = meta->scheme == UCM_SCHEME_CHAIN && !meta->mla;
	struct ucm_hasher *hasher = open_hasher(job, meta->rank);
	struct ucm_hash_request request = request_of(job, NULL, job->ids);
	struct ucm_hash_state state;

	hash_rank(job, chains ? meta->rank : 0, ids0);
	begin(job, hasher, &state);
	if (ucm_hash_explain(hasher, &request, &state, ids0))
		ucm_tool_die(UCM_EXIT_FAILED, "no memory");
	ucm_hasher_close(hasher);
}

/* ---- all of it ---- */

/* Wrong before any input is read: exit status 2. */
static void check_options(struct job *job)
{
	const struct ucm_hash_options *opt = job->opt;
	bool external = opt->meta.scheme == UCM_SCHEME_EXTERNAL;
	struct ucm_hasher *hasher;
	struct ucm_hash_state state;
	uint32_t last = opt->last_rank;

	if (external && (opt->explain || opt->resume || opt->format))
		ucm_tool_usage("external takes no --explain, --parent or "
			       "--format");
	if (opt->explain && (opt->all_ranks || opt->paths))
		ucm_tool_usage("--explain takes no --ranks or --paths");
	if (opt->all_ranks && (opt->meta.scheme == UCM_SCHEME_PREFIX ||
			       opt->meta.scheme == UCM_SCHEME_HEXCHAIN))
		ucm_tool_usage("the scheme knows no ranks");
	if (opt->all_ranks && last == UINT32_MAX)
		last = opt->meta.world_size - 1;
	if (last >= opt->meta.world_size)
		ucm_tool_usage("--ranks: there are %u", opt->meta.world_size);
	job->first_rank = opt->all_ranks ? opt->first_rank : opt->meta.rank;
	job->num_ranks = opt->all_ranks ? last - opt->first_rank + 1 : 1;
	hasher = open_hasher(job, job->first_rank);
	if (!external)
		begin(job, hasher, &state);
	ucm_hasher_close(hasher);
}

static void count_blocks(struct job *job)
{
	uint32_t size = job->opt->meta.block_size;

	job->num_blocks = job->input.num_hashes;
	if (job->opt->meta.scheme == UCM_SCHEME_EXTERNAL)
		return;
	job->num_blocks = job->input.tokens.num / size;
	if (job->opt->partial && job->input.tokens.num % size)
		job->num_blocks++;
}

static void print_id(const struct ucm_id *id, bool path, char end)
{
	char text[UCM_TREE_BELOW_LEN + 1];

	if (path)
		ucm_tree_block_below(id, text);
	else
		ucm_id_format(id, text);
	printf("%s%c", text, end);
}

static void print_ids(const struct job *job)
{
	for (size_t i = 0; i < job->num_blocks; i++) {
		for (uint32_t r = 0; r < job->num_ranks; r++)
			print_id(&job->ids[r * job->num_blocks + i],
				 job->opt->paths,
				 r + 1 < job->num_ranks ? ' ' : '\n');
	}
}

static int run(int argc, char **argv)
{
	struct ucm_hash_options *opt = &ucm_hash_opt;
	struct job job = { .opt = opt };

	opt->meta.block_size = (uint32_t)opt->block_size;
	opt->meta.mla = opt->mla;
	check_options(&job);
	read_input(opt, argc ? argv[0] : "-", &job.input);
	count_blocks(&job);
	/* one more rank: explain's ids of rank 0 */
	job.ids = ucm_tool_alloc((job.num_blocks + 1) *
				 ((size_t)job.num_ranks + 1), sizeof(*job.ids));
	for (uint32_t r = 0; r < job.num_ranks; r++)
		hash_rank(&job, job.first_rank + r,
			  job.ids + r * job.num_blocks);
	if (opt->explain)
		explain(&job, job.ids + job.num_blocks);
	else
		print_ids(&job);
	ucm_tokens_fini(&job.input.tokens);
	free(job.input.hashes);
	free(job.ids);
	return ucm_tool_flush();
}

const struct ucm_command ucm_hash_command = {
	.name = "hash",
	.does = "print the ids of the blocks of a request",
	.operands = "[FILE]",
	.about = "Print the ids of the blocks that the tokens of a request "
		 "fill, one a line, in order. FILE or standard input holds its "
		 "token ids; with the scheme external, the engine's hashes in "
		 "hex.",
	.args = ucm_hash_args,
	.most = 1,
	.run = run,
};
