/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retrieve.h - when blocks are chosen, by whom, and which of them are in
 * memory.
 *
 * <ucm/sparse.h> says which blocks matter to a token. Here is what it takes to
 * act on that while a request decodes:
 *
 *	method     one of six by its name, with what it is configured by
 *	request    how far a request is, and what it attends to
 *	schedule   what to do at a step: choose, load, wait, or go on as before
 *	retrieval  threads that score and select while the request goes on
 *	residency  which blocks are in the slots of fast memory, which of
 *	           them are loaded, and which have to go
 *	rows       the block tables of a batch's decode rows, in one call
 *	prefetch   which blocks the next choices may want, loaded beforehand
 *
 * Steps are counted from 1, by the tokens that have been generated; step 0 is
 * the prefill. Clocks are logical, and everything but the retrieval's threads
 * is arithmetic: the same calls give the same results on every machine.
 *
 * All calls that return int return 0 or -errno, and write nothing but *error
 * (<ucm/error.h>; NULL: not wanted) if they fail. -EINVAL: an argument is
 * wrong, and error begins with its name.
 */
#ifndef UCM_RETRIEVE_H
#define UCM_RETRIEVE_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/error.h>
#include <ucm/sized.h>
#include <ucm/sparse.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- schedules ---- */

#define UCM_LAYERS_MAX 256u
#define UCM_STRIDE_MAX 65536u

/* Layer i is bit i % 64 of word i / 64. */
struct ucm_layers {
	uint64_t bits[UCM_LAYERS_MAX / 64];
};

/*
 * When the blocks of a request are chosen anew.
 *
 * A choice is used from its first step on, for stride steps: steps 1 to stride,
 * stride + 1 to 2 * stride and so on. It is made with the queries of `queries`
 * steps in a row, the last of which is `lead` steps before its first step:
 *
 *	lead 0   with that step's own query, before it attends (GSA On-Device)
 *	lead 1   with the query of the step before: scores of step N are used in
 *	         N + 1 (ESA, GSA)
 *	more     so that retrieving and loading may take as long. UCM's own ESA
 *	         is stride - 1; KVStar takes the queries of stride steps, with
 *	         stride + 1
 *
 * The first choice is made with the last queries of the prompt, and stays until
 * the queries of enough steps are there.
 *
 * Layers in dense ("rollback") attend to all blocks; those in reuse ("skip") to
 * what the last layer before them that is in neither has chosen.
 */
struct ucm_schedule {
	uint32_t stride;     /* 1 to UCM_STRIDE_MAX */
	uint32_t lead;       /* up to 2 * stride */
	uint32_t queries;    /* 1 to stride; 1 with lead 0 */
	uint32_t num_layers; /* 1 to UCM_LAYERS_MAX */
	struct ucm_layers dense, reuse; /* no layer is in both */
};

/* What is to be done at a step, in this order. */
enum ucm_do {
	UCM_DO_KEEP_QUERY = 0x01, /* a later retrieval takes it */
	UCM_DO_SELECT = 0x02,     /* choose now, with this step's query */
	UCM_DO_SUBMIT = 0x04,     /* a retrieval, with this query (step 0: the
				   * prompt's last ones) and those kept */
	UCM_DO_BUILD = 0x08,      /* representations: of the new keys */
	UCM_DO_COLLECT = 0x10,    /* the retrieval that is due */
	UCM_DO_LOAD = 0x20,       /* what has been chosen and is not resident */
	UCM_DO_WAIT_LOADS = 0x40, /* then use the new choice */
};

enum ucm_layer_role {
	UCM_LAYER_CHOOSES = 0,
	UCM_LAYER_DENSE = 1,
	UCM_LAYER_REUSES = 2,
};

struct ucm_step {
	uint32_t role;   /* enum ucm_layer_role */
	uint32_t source; /* the layer whose choice is used; itself if it
			  * chooses or is dense */
	uint32_t begin;  /* bits of enum ucm_do: before the layer attends ... */
	uint32_t end;    /* ... and after it */
	/* Choices are known by the last step whose query they were made with; 0
	 * is the prompt's. */
	uint64_t collects; /* with UCM_DO_COLLECT: which */
	uint64_t uses;     /* which is attended with; 0 in step 0, and if
			    * dense */
};

/* -EINVAL also if a layer is to reuse a choice and none is made before it. */
int ucm_schedule_check(const struct ucm_schedule *schedule,
		       struct ucm_error *error);

/* What to do at a step in a layer. */
int ucm_schedule_step(const struct ucm_schedule *schedule, uint64_t step,
		      uint32_t layer, struct ucm_step *out,
		      struct ucm_error *error);

/* ---- retrieval ---- */

/*
 * Threads that score and select, while the request goes on with the choice that
 * it has.
 *
 * A lane is what chooses for itself: a request's layer. The caller numbers
 * them. A job belongs to a lane and to a step, the last one whose query it is
 * made with; in a lane they rise. So a result is known by its step, and what
 * ucm_schedule_step() says to collect is what it is called here, too. Results
 * are taken in that order: with one, all earlier ones of its lane are stale,
 * and gone.
 *
 * All memory is made when it is opened; later calls allocate nothing. Any
 * thread may call; a lane's calls are one thread's at a time. In a child of
 * fork(2) it is as new, without jobs.
 */
struct ucm_retrieval;

#define UCM_RETRIEVAL_THREADS_MAX 64u
#define UCM_RETRIEVAL_JOBS_MAX	  65536u

/* Set size to sizeof(struct). */
struct ucm_retrieval_options {
	size_t size;
	uint32_t threads;      /* 1 to 64; UCM has 4 */
	uint32_t jobs;         /* that wait, run or have not been taken, at
				* most: 1 to 65536 */
	uint32_t lanes;        /* 1 to 2^24 */
	uint32_t max_blocks;   /* of a job, 1 to 2^24 */
	uint32_t query_floats; /* of a prepared query, at most; not 0. A word of
				* codes' takes two */
};

/* All threads are started. -EAGAIN: not as many could be; error says how many.
 */
int ucm_retrieval_open(const struct ucm_retrieval_options *options,
		       struct ucm_retrieval **out, struct ucm_error *error);

/* Jobs that run are waited for; others are dropped. NULL is harmless. */
void ucm_retrieval_close(struct ucm_retrieval *retrieval);

/*
 * What to score, and how many to select. Blocks of the windows are neither
 * scored nor read, so that the last one may grow meanwhile. The query is
 * copied, and so is what spec, codes, code_method and star point to; slab,
 * slots, star's channels and what arg points to are read until the job has been
 * taken or cancelled, and must not be written.
 *
 * One of spec, codes, star and score says what blocks are scored by.
 */
struct ucm_retrieval_job {
	uint32_t lane;
	uint64_t step;
	/* Representations, by ucm_score(). */
	const struct ucm_repr_spec *spec;
	const float *query; /* by ucm_query_prepare() for UCM_SCORE_BLOCK; with
			     * star by ucm_star_query_prepare() */
	uint32_t num_heads; /* that it was made from; not with codes */
	const struct ucm_repr_slab *slab; /* copied, but for its base */
	const int32_t *slots;             /* of its blocks; NULL: 0, 1, ... */
	/* Or what ucm_score() does not know. Write the scores of blocks begin
	 * to end - 1 to scores[0] and so on; 0, or -errno and *error. The
	 * threads call it several times for a job, and for many jobs at a
	 * time. */
	int (*score)(void *arg, size_t begin, size_t end, float *scores,
		     struct ucm_error *error);
	void *arg;
	struct ucm_budget budget; /* of up to max_blocks */
	uint32_t deadline_ms; /* from now; 0: none */
	/* Or hash codes, by ucm_code_score(): one score of a block, so per is
	 * UCM_SCORE_BLOCK, and over not UCM_CODE_EACH. */
	const struct ucm_code_spec *codes;
	const struct ucm_code_method *code_method;
	const uint64_t *code_query; /* by ucm_code_query_prepare() */
	/* Or merged channels, by ucm_star_score() for UCM_SCORE_BLOCK. */
	const struct ucm_star_spec *star;
	uint32_t num_queries; /* that query was made from */
};

/*
 * Have it done. -EAGAIN: there are as many jobs as may be; take or cancel some.
 * -EINVAL also if step is not above those of the lane before.
 */
int ucm_retrieval_submit(struct ucm_retrieval *retrieval,
			 const struct ucm_retrieval_job *job,
			 struct ucm_error *error);

struct ucm_retrieval_result {
	uint32_t *blocks; /* the caller's, room of them: ascending */
	size_t room;
	float *scores; /* the caller's, num_scores of them; NULL: not wanted. Of
			* the windows' blocks: the least score */
	size_t num_scores;
	/* written: */
	uint32_t num;        /* selected */
	uint32_t num_blocks; /* that there were */
	uint64_t newest;     /* the last step of the lane that was submitted;
			      * above the one asked for: this is stale */
	uint64_t wait_ns, run_ns; /* how long it waited for a thread, and ran */
};

/*
 * Take the result of a lane's step, waiting for it; timeout_ms < 0 is for ever.
 *
 * -ETIMEDOUT: not done yet, or an earlier one of its lane is still being read;
 * it goes on, and can be asked for again. Earlier ones are stale when it is
 * done. -ETIME: its own deadline has passed. -ESTALE: a later one has been
 * taken, or was done when it was asked for.
 * -ENOENT: none was submitted. -EBADMSG: scoring or selecting has found something
 * wrong, which error says; others: what it has said.
 * After -ETIMEDOUT and -EINVAL the job is still there, after all else it is
 * gone; but after -ESTALE a thread may still read what it was given, until a
 * later take of the lane or its cancel has succeeded.
 */
int ucm_retrieval_take(struct ucm_retrieval *retrieval, uint32_t lane,
		       uint64_t step, int timeout_ms,
		       struct ucm_retrieval_result *out,
		       struct ucm_error *error);

/*
 * Forget all jobs of a lane. When it returns, nothing of theirs is read any
 * more: one that runs is waited for, which takes as long as some thousand
 * blocks. The lane is as new: the next request's steps may begin at 0.
 */
int ucm_retrieval_cancel(struct ucm_retrieval *retrieval, uint32_t lane,
			 struct ucm_error *error);

struct ucm_retrieval_stats {
	uint64_t submitted, taken, refused, failed, late, cancelled, stale;
	uint32_t waiting, running, done; /* now; done: not taken */
};

void ucm_retrieval_get_stats(struct ucm_retrieval *retrieval,
			     struct ucm_retrieval_stats *out);

/* ---- residency ---- */

/*
 * The slots of a request's layer (or of all layers, if they choose together):
 * places for blocks in fast memory, fewer than there are blocks. Whoever wants
 * blocks is told what to load into which slot, and what goes for it; whoever
 * attends is given the slots of blocks that are loaded, and of no others.
 *
 *	FREE       nothing
 *	LOADING    a load is under way
 *	LOADED     may be attended to. Pinned while somebody does: then it stays
 *	CANCELLED  a load is under way that nobody waits for: free when it ends
 *	GOING      dropped, and still pinned: free when it is released
 *
 * It lies in the caller's memory and is one thread's at a time: what loads have
 * ended is told to it by that thread.
 */
struct ucm_resident;

/* What goes first, of the blocks that are loaded, neither wanted nor pinned: */
enum ucm_evict {
	UCM_EVICT_LRU = 0,    /* what has been wanted least recently */
	UCM_EVICT_SCORE = 1,  /* the lowest score */
	UCM_EVICT_HYBRID = 2, /* the lowest score_weight * score +
			       * recency_weight / (age + 1) */
	UCM_EVICTS
};

#define UCM_RESIDENT_MAX (1u << 24)

/*
 * Scores are brought to 0 ... 1 by the least and the largest of those that are
 * given together; the age of a block is `now` less that of the last plan that
 * wanted it. Both are looked at in single precision, ages up to 2^24; of equal
 * blocks the one in the lower slot goes.
 */
struct ucm_resident_config {
	uint32_t num_blocks; /* 1 to UCM_RESIDENT_MAX; numbers are lower */
	uint32_t num_slots;  /* 1 to UCM_RESIDENT_MAX */
	uint32_t evict;      /* enum ucm_evict */
	double score_weight, recency_weight; /* HYBRID; GSA: .7 and .3 */
	double hysteresis; /* 0 to 1: see ucm_resident_favour() */
};

/* Bytes of memory that it takes; 0 if config is wrong. */
size_t ucm_resident_bytes(const struct ucm_resident_config *config);

/* All slots are free. memory is aligned to 8, and the caller frees it. */
int ucm_resident_begin(const struct ucm_resident_config *config, void *memory,
		       struct ucm_resident **out, struct ucm_error *error);

/* A load that is to be made. Its end is told with slot and ticket. */
struct ucm_fill {
	uint32_t block, slot, ticket;
};

struct ucm_wanted {
	const uint32_t *blocks; /* each once; the first ones get slots first */
	size_t num;             /* at most num_slots */
	const float *scores;    /* of blocks 0 to num_scores - 1, all finite;
				 * NULL: as they were */
	size_t num_scores;      /* at most num_blocks */
	uint64_t now;           /* a clock that never goes back: the step */
};

struct ucm_swap {
	struct ucm_fill *loads;    /* the caller's, room of them */
	struct ucm_fill *evicted;  /* the same; what was in their slots */
	size_t room;               /* at least as many as are wanted */
	/* written: */
	size_t num_loads, num_evicted;
	size_t num_loaded; /* of the wanted: there already ... */
	size_t num_coming; /* ... under way from before ... */
	size_t num_left;   /* ... and without a slot: all are pinned, loading or
			    * wanted. Ask again when loads have ended */
};

/*
 * Make room for what is wanted. Blocks in evicted are no longer there when this
 * returns. -ENOSPC: more blocks than slots.
 */
int ucm_resident_plan(struct ucm_resident *resident,
		      const struct ucm_wanted *want, struct ucm_swap *out,
		      struct ucm_error *error);

/* The same for what may be wanted later. No block goes for it that the last
 * plan has wanted, and it does not make blocks younger. */
int ucm_resident_plan_ahead(struct ucm_resident *resident,
			    const struct ucm_wanted *want, struct ucm_swap *out,
			    struct ucm_error *error);

/*
 * A load has ended: well, or with an error; then nothing is in its slot.
 * -ESTALE: the ticket is not of a load under way (its end has been told
 * before).
 */
int ucm_resident_ended(struct ucm_resident *resident, uint32_t slot,
		       uint32_t ticket, int load_err, struct ucm_error *error);

/* The loads under way of these blocks are not waited for any more: out (room
 * for num) is what to cancel. Their slots are free when their ends have been
 * told. */
int ucm_resident_cancel(struct ucm_resident *resident, const uint32_t *blocks,
			size_t num, struct ucm_fill *out, size_t *num_out,
			struct ucm_error *error);

/* The same, and those that are loaded go: now, or when they are released. NULL:
 * all there are; out then has room for num_slots. */
int ucm_resident_drop(struct ucm_resident *resident, const uint32_t *blocks,
		      size_t num, struct ucm_fill *out, size_t *num_out,
		      struct ucm_error *error);

/*
 * A slot for a block that the caller writes itself, such as the one that grows.
 * It is loaded, and pinned until it is released: when there is a copy of it to
 * be loaded from. *evicted_out: the block that went, or UINT32_MAX. -EEXIST: it
 * is there or under way. -ENOBUFS: no block may go.
 */
int ucm_resident_put(struct ucm_resident *resident, uint32_t block,
		     uint64_t now, uint32_t *slot_out, uint32_t *evicted_out,
		     struct ucm_error *error);

/*
 * To attend: of these blocks those that are loaded, in their order, and their
 * slots, which are pinned. Room for num each. What is not loaded is left out:
 * *num_out tells.
 */
int ucm_resident_take(struct ucm_resident *resident, const uint32_t *blocks,
		      size_t num, uint32_t *blocks_out, uint32_t *slots_out,
		      size_t *num_out, struct ucm_error *error);

/* Whoever has taken them no longer attends to them. -EINVAL, and none is: one
 * of them is not pinned so often. */
int ucm_resident_release(struct ucm_resident *resident, const uint32_t *slots,
			 size_t num, struct ucm_error *error);

/*
 * So that blocks of nearly equal scores do not replace each other step by step:
 * before ucm_select(), add hysteresis times the difference of the least and the
 * largest of the scores to those of blocks that are loaded or under way.
 */
int ucm_resident_favour(const struct ucm_resident *resident, float *scores,
			size_t num, struct ucm_error *error);

/* Since ucm_resident_begin(); "ahead" is by ucm_resident_plan_ahead(). */
struct ucm_resident_stats {
	uint64_t hits;      /* wanted, and loaded or under way */
	uint64_t loads, loads_ahead;
	uint64_t evictions;
	uint64_t failed;    /* loads that ended with an error */
	uint64_t cancelled; /* loads nobody waited for */
	uint32_t num_loaded, num_loading, num_free; /* slots, now */
};

void ucm_resident_get_stats(const struct ucm_resident *resident,
			    struct ucm_resident_stats *out);

/* ---- methods ---- */

enum ucm_method {
	UCM_METHOD_ESA = 0,
	UCM_METHOD_GSA = 1,
	UCM_METHOD_GSA_ON_DEVICE = 2,
	UCM_METHOD_KVSTAR = 3,
	UCM_METHOD_BLEND = 4,
	UCM_METHOD_REROPE = 5,
	UCM_METHODS
};

/* What a method keeps of a block, so as to find it. */
enum ucm_keeps {
	UCM_KEEPS_REPR = 0,     /* a representation, of kind pooling */
	UCM_KEEPS_CODES = 1,    /* hash codes */
	UCM_KEEPS_CHANNELS = 2, /* channels that are large, tokens merged */
	UCM_KEEPS_NOTHING = 3,  /* it chooses no blocks */
};

struct ucm_sparse_method {
	uint32_t method;   /* enum ucm_method: its place in the table */
	uint32_t keeps;    /* enum ucm_keeps */
	const char *name;  /* as in UCM's configurations: "GSAOnDevice" */
	const char *alias; /* as people say: "GSA On-Device" */
};

/* By its name or alias; NULL: there is no such method. */
const struct ucm_sparse_method *ucm_sparse_find(const char *name);

#define UCM_COMPUTE_MAX 64u

/* Blend: of the tokens at a layer, this part is computed again. */
struct ucm_compute {
	uint32_t layer;
	double ratio;
};

/*
 * What a method is configured by. Only fields of its own keys are looked at,
 * and ucm_retrieve(3) has the keys. The others are 0.
 */
struct ucm_sparse_config {
	uint32_t method; /* enum ucm_method */
	struct ucm_budget_config budget;
	uint32_t min_blocks; /* a prompt of fewer stays dense */
	uint32_t pooling;    /* enum ucm_repr_kind */
	struct ucm_schedule schedule;
	/* GSA */
	uint32_t prefetch_enabled, prefetch_ahead, prefetch_workers;
	double score_weight, recency_weight;
	/* GSA On-Device */
	uint32_t hash_bits, hash_reduction_heads;
	/* KVStar */
	double kept_channels; /* a part of them */
	uint32_t merged_tokens;
	/* Blend */
	uint32_t num_compute;
	struct ucm_compute compute[UCM_COMPUTE_MAX];
	double hkvd_threshold, min_match_ratio, rope_theta;
	uint32_t chunk_tokens, recompute_boundary, position_correction;
	/* ReRoPE */
	uint32_t rerope_window, training_length;
};

/* The defaults of a method, for a model of so many layers, and blocks of so
 * many tokens. */
int ucm_sparse_defaults(const struct ucm_sparse_method *method,
			uint32_t block_size, uint32_t num_layers,
			struct ucm_sparse_config *out, struct ucm_error *error);

/* Set one key. -ENOENT: the method has no such key. */
int ucm_sparse_set(struct ucm_sparse_config *config, const char *key,
		   const char *value, struct ucm_error *error);

/* Do its values agree with each other? */
int ucm_sparse_check(const struct ucm_sparse_config *config,
		     struct ucm_error *error);

/*
 * Read "METHOD", "METHOD:key=value,key=value", or a dictionary in JSON as UCM's
 * configurations have it:
 *
 *	{"sparse_type": "GSA", "GSA": {"topk_ratio": 0.3}}
 *	{"ucm_sparse_method": "GSA", "ucm_sparse_config": {"GSA": {...}}}
 *	{"ESA": {"retrieval_stride": 16}}
 *
 * len: of the text, which need not end with a NUL. Defaults for what is not
 * said; checked. -ENOENT: no such method or key. -ENOMEM.
 */
int ucm_sparse_parse(const char *text, size_t len, uint32_t block_size,
		     uint32_t num_layers, struct ucm_sparse_config *out,
		     struct ucm_error *error);

/* ---- what a method keeps ---- */

/* What the keys and queries of a model's layer are, and how what is kept of the
 * keys is stored. */
struct ucm_sparse_model {
	uint32_t num_heads;   /* of keys; MLA: 1 */
	uint32_t query_heads; /* a multiple of them */
	uint32_t head_dim;    /* MLA: 576, say */
	uint32_t rope_dim;    /* MLA: the last channels, 64, say; or else 0 */
	uint32_t dtype;       /* enum ucm_dtype; hash codes have none */
	uint64_t seed;        /* of hash codes: alike where they are compared */
};

/*
 * What a configuration's method keeps of the blocks of such a model, as the calls
 * of <ucm/sparse.h> take it. -EINVAL also if the method keeps something else.
 *
 * Hash codes are those of tokens, and the score of a block is that of its nearest
 * token, added up over the key heads. The query heads of a group are merged; with
 * rope_dim, as many as hash_reduction_head_num says. The last channels then have
 * their part of hash_bits beside them: hash_bits * rope_dim / (head_dim -
 * rope_dim), up to a multiple of 8.
 *
 * channels: of ucm_star_channels(), which takes the same spec; NULL until then.
 */
int ucm_sparse_repr_spec(const struct ucm_sparse_config *config,
			 const struct ucm_sparse_model *model,
			 struct ucm_repr_spec *out, struct ucm_error *error);
int ucm_sparse_code_spec(const struct ucm_sparse_config *config,
			 const struct ucm_sparse_model *model,
			 struct ucm_code_spec *out,
			 struct ucm_code_method *method_out,
			 struct ucm_error *error);
int ucm_sparse_star_spec(const struct ucm_sparse_config *config,
			 const struct ucm_sparse_model *model,
			 const uint16_t *channels, struct ucm_star_spec *out,
			 struct ucm_error *error);

/* ---- requests ---- */

enum ucm_request_state {
	UCM_REQUEST_NONE = 0,
	UCM_REQUEST_PREFILL,
	UCM_REQUEST_DECODE,
};

/*
 * How far a request is. The struct is the caller's, who reads it and leaves
 * writing to the calls below. Zeroed, there is no request.
 */
struct ucm_sparse_request {
	const struct ucm_sparse_config *config; /* stays until the end */
	uint32_t state;                         /* enum ucm_request_state */
	uint32_t prompt_tokens;
	uint32_t tokens; /* that there are so far */
	uint32_t dense;  /* 1: it attends to all its blocks */
	uint64_t step;
	struct ucm_budget budget; /* of all its tokens */
	/* sums over the steps: their quotient is ucm_sparse_ratio, and 1 less
	 * that the memory that is saved */
	uint64_t blocks_attended, blocks_in_all;
};

/* prompt_tokens: at least 1. -EINVAL also if there is a request. */
int ucm_sparse_begin(struct ucm_sparse_request *request,
		     const struct ucm_sparse_config *config,
		     uint32_t prompt_tokens, struct ucm_error *error);

/* So many more tokens of the prompt have been computed, or loaded. With the
 * last ones, step 0 is what is to be done now: *done_out is 1. */
int ucm_sparse_prefill(struct ucm_sparse_request *request, uint32_t tokens,
		       uint32_t *done_out, struct ucm_error *error);

/* The next step begins, with so many new tokens (1, or more if they are
 * guessed). Then ask for each layer. */
int ucm_sparse_step(struct ucm_sparse_request *request, uint32_t tokens,
		    struct ucm_error *error);

/* What to do at this step in a layer, as ucm_schedule_step() says; a dense
 * request only builds what it keeps. */
int ucm_sparse_layer(const struct ucm_sparse_request *request, uint32_t layer,
		     struct ucm_step *out, struct ucm_error *error);

/* It has all its tokens. Its retrievals have been collected or cancelled. */
int ucm_sparse_finish(struct ucm_sparse_request *request,
		      struct ucm_error *error);

/* The same in any state. Cancel its retrievals (ucm_retrieval_cancel()) and
 * drop its blocks (ucm_resident_drop()). */
void ucm_sparse_abort(struct ucm_sparse_request *request);

/* Before it begins: for how many blocks there must be slots, if so many tokens
 * are generated; all if it will be dense. */
int ucm_sparse_slots(const struct ucm_sparse_config *config,
		     uint32_t prompt_tokens, uint32_t output_tokens,
		     uint32_t *out, struct ucm_error *error);

/* ---- rows of a batch ---- */

/*
 * The block tables that an attention backend takes for the decode rows of a
 * batch, made in one call a layer and step: each row is scored by its query,
 * ucm_select() takes the best blocks, and ucm_select_table() names their pages.
 *
 * A block is a page of the engine's. What is kept of page p is in slot p of
 * slab, and is shared by all rows whose tables name it.
 *
 * What is attended to, whatever its score:
 *
 *	- the blocks of the windows, and the last block, also if windows has none:
 *	  local_blocks is taken as at least 1
 *	- blocks whose page has nothing that is kept, by `built`. They are not
 *	  counted: topk of the others are taken, or all if there are fewer. topk is
 *	  what ucm_budget_blocks() says for all blocks between the windows
 *
 * Scores are those of a block, as a retrieval's (struct ucm_retrieval_job).
 */

#define UCM_SPARSE_ROWS_MAX   65536u
#define UCM_SPARSE_BLOCKS_MAX (1u << 24) /* of a row */

/* What a layer keeps of its pages: one of spec, encoder and star says. */
struct ucm_sparse_pages {
	const struct ucm_repr_spec *spec;
	const void *encoder; /* by ucm_code_encoder_make(); with code_method */
	const struct ucm_code_method *code_method;
	const struct ucm_star_spec *star;
	const struct ucm_repr_slab *slab;
	const uint8_t *built; /* of each slot; 0: nothing is in it. NULL: there
			       * is something in all */
};

struct ucm_sparse_rows {
	size_t num;                 /* up to UCM_SPARSE_ROWS_MAX */
	struct ucm_query query;     /* of the first row ... */
	int64_t stride_query;       /* ... and of the others, elements apart */
	const int32_t *tables;      /* of pages: block i of row r is at
				     * r * stride_table + i */
	size_t stride_table;        /* at least max_blocks */
	const int32_t *lengths;     /* of each row: its tokens; may be 0 */
	const uint8_t *dense;       /* of each row; 1: it attends to all its
				     * blocks. NULL: no row does */
	uint32_t max_blocks;        /* of a row, up to UCM_SPARSE_BLOCKS_MAX */
};

/* What the backend is given instead. tables and lengths are the caller's, and
 * neither overlap each other nor anything that is read; a table's entries after
 * those of its length are left as they are. */
struct ucm_sparse_tables {
	int32_t *tables;
	size_t stride_table; /* at least rows' max_blocks */
	int32_t *lengths;
	/* written, sums over the rows: their quotient is ucm_sparse_ratio */
	uint64_t blocks_attended, blocks_in_all;
};

/* Bytes of work memory; 0 if an argument is wrong. Of rows, num, max_blocks and
 * the query's num_heads are looked at. */
size_t ucm_sparse_select_bytes(const struct ucm_sparse_pages *pages,
			       const struct ucm_sparse_rows *rows);

/*
 * Choose for all rows. config: as for ucm_budget_blocks(); block_size is that of
 * what is kept. work: work_bytes of them, aligned to 8; any thread may call, with
 * its own.
 *
 * The table and length of a row that attends to all its blocks (it is in dense,
 * or the budget says so, as with a ratio of 1) are copied, and neither its query
 * nor its pages are looked at. -EINVAL also if a score is NaN, or a page has no
 * slot; error says in which row.
 */
int ucm_sparse_select(const struct ucm_sparse_pages *pages,
		      const struct ucm_budget_config *config,
		      const struct ucm_sparse_rows *rows, void *work,
		      size_t work_bytes, struct ucm_sparse_tables *out,
		      struct ucm_error *error);

/* ---- prefetch ---- */

/*
 * Which blocks the next choices are likely to want, and loads of them at low
 * priority. It is asked step by step, in this order:
 *
 *	ucm_prefetch_set()     what this choice wants (set_blocks_table_info)
 *	ucm_resident_plan()    loads of what it misses: first of all
 *	ucm_prefetch_run()     guess, and plan loads (run_async_prefetch_bs)
 *	ucm_prefetch_loads()   which they are (obtain_load_blocks)
 *	ucm_prefetch_cancels() which of the earlier ones were wrong
 *	ucm_prefetch_misses()  what nobody had guessed (obtain_miss_idxs)
 *
 * In brackets is what UCM's GSAPrefetchEngineC calls them.
 *
 * A block's score s is expected to go on as it has: m is the mean of its last
 * changes, the latest counting for a half, the one before for a quarter and so
 * on. Guessed for the next choice but a (1 or 2) are the blocks with the
 * highest s + a * trend * m, of those that are not wanted now; for 2 those that
 * are not guessed for 1. What is guessed and already there is kept.
 *
 * The loads are data: the caller turns them into tasks of its loader, with
 * UCM_LOAD_PREFETCH, after those of ucm_resident_plan(), cancels what is to be
 * cancelled, and tells ucm_resident_ended() how each has ended. Nothing is
 * attended to before that.
 *
 * It lies in the caller's memory, as its residency does, and is one thread's at
 * a time.
 */
struct ucm_prefetch;

struct ucm_prefetch_config {
	uint32_t num_blocks; /* as the residency's */
	uint32_t ahead;      /* choices: 1 or 2 */
	uint32_t blocks;     /* guessed for each of them, at least 1; together
			      * no more than num_blocks */
	double trend;        /* 0 to 1; 0.5 where nothing is known */
};

size_t ucm_prefetch_bytes(const struct ucm_prefetch_config *config);
int ucm_prefetch_begin(const struct ucm_prefetch_config *config, void *memory,
		       struct ucm_prefetch **out, struct ucm_error *error);

/*
 * What the choice of a step wants, and the scores it was made by. step rises;
 * want's now is not looked at, and nothing is kept of its pointers. Before
 * ucm_resident_plan(), so that what was guessed can be told from what was not.
 */
int ucm_prefetch_set(struct ucm_prefetch *prefetch,
		     const struct ucm_resident *resident,
		     const struct ucm_wanted *want, uint64_t step,
		     struct ucm_error *error);

/* For each of num, with the residency beside it. */
int ucm_prefetch_run(struct ucm_prefetch *const *prefetches,
		     struct ucm_resident *const *residents, size_t num,
		     struct ucm_error *error);

/* Of the last run: valid until the next. The first num_next of them are for the
 * next choice, the others for the one after it; each by their numbers. */
const struct ucm_fill *ucm_prefetch_loads(const struct ucm_prefetch *prefetch,
					  size_t *num_out, size_t *num_next);

/* Loads of earlier runs to be cancelled: neither wanted nor guessed any more.
 * Valid until the next run. */
const struct ucm_fill *ucm_prefetch_cancels(const struct ucm_prefetch *prefetch,
					    size_t *num_out);

/* Numbers, in the list of ucm_prefetch_set(), of blocks that were neither there
 * nor under way. Valid until the next one. */
const uint32_t *ucm_prefetch_misses(const struct ucm_prefetch *prefetch,
				    size_t *num_out);

/*
 * Of the blocks that were loaded ahead, the part that was of use (hit rate):
 * (used + late) / loads. Of those that had to be loaded, the part that was
 * guessed: (used + late) / (used + late + missed).
 */
struct ucm_prefetch_stats {
	uint64_t loads;     /* planned */
	uint64_t used;      /* wanted for the first time, and there */
	uint64_t late;      /* wanted, and still under way */
	uint64_t missed;    /* wanted, and not guessed */
	uint64_t cancelled; /* while under way */
	uint64_t wasted;    /* failed, or gone unused */
};

void ucm_prefetch_get_stats(const struct ucm_prefetch *prefetch,
			    struct ucm_prefetch_stats *out);

#ifdef __cplusplus
}
#endif

#endif
