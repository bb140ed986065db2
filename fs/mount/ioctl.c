/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ioctl.c - calls on .ucmfs/control: who may make them, and what they
 * bring and take. What they do is in fs/store/calls.c.
 *
 * The kernel has copied what the command's number says: in and out have the
 * size of the command's struct, which is checked all the same.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/index/budget_layout.h"
#include "fs/store/calls.h"
#include "fs/store/mover.h"
#include "fs/store/value.h"
#include "fs/tier/dir.h"
#include "fs/tier/wait.h"

_Static_assert(sizeof(struct ucm_control_batch) < 16384 &&
		       sizeof(struct ucm_control_locate) < 16384 &&
		       sizeof(struct ucm_control_path) < 16384 &&
		       sizeof(struct ucm_control_offer) < 16384 &&
		       sizeof(struct ucm_control_directory) < 16384 &&
		       sizeof(struct ucm_control_verified) < 16384,
	       "the size in a command has 14 bits");
/* Who may make a call, beside root and the daemon's user. */
enum right {
	READERS, /* whoever may read the blocks */
	OWNER,   /* of the mount's root directory */
	WRITER,  /* the same, and not when mounted read-only */
};

struct call {
	fuse_req_t req;
	struct ucm_daemon *daemon;
	const struct command *command;
};

struct command {
	unsigned number;
	enum right right;
	int (*run)(const struct call *call, void *data);
	enum ucm_calls_op op; /* run_batch */
	bool is_long;	      /* for a thread that may wait */
};

/* ---- who may ---- */

static bool is_daemons(const struct call *call)
{
	uid_t uid = fuse_req_ctx(call->req)->uid;

	return uid == 0 || uid == geteuid();
}

static int check_right(const struct call *call)
{
	const struct ucm_daemon *daemon = call->daemon;
	uid_t owner = daemon->store->names.spaces[0]->uid;

	if (call->command->right == READERS)
		return 0;
	if (!is_daemons(call) && fuse_req_ctx(call->req)->uid != owner)
		return -EPERM;
	if (call->command->right == WRITER &&
	    ucm_options_passed(daemon->options, "ro"))
		return -EROFS;
	return 0;
}

/* The space, if the caller may read its blocks. */
static int space_of(const struct call *call,
		    const struct ucm_control_head *head,
		    struct ucm_space **out)
{
	struct ucm_namespace *names = &call->daemon->store->names;
	struct ucm_space *space;
	bool hidden;

	space = *head->space ? ucm_namespace_find(names, head->space)
			     : ucm_namespace_get(names, 0);
	if (!space)
		return -ENOENT;
	pthread_mutex_lock(&space->lock);
	hidden = space->is_private &&
		 space->uid != fuse_req_ctx(call->req)->uid;
	pthread_mutex_unlock(&space->lock);
	if (hidden && !is_daemons(call))
		return -EACCES;
	*out = space;
	return 0;
}

/* What is not used must be 0, so that it may mean something one day. */
static int check_head(const struct ucm_control_head *head, uint32_t most,
		      uint32_t lease_most_ms, uint32_t flags)
{
	if (head->version != UCM_CONTROL_VERSION || head->num > most ||
	    head->lease_ms > lease_most_ms || head->flags & ~flags ||
	    !memchr(head->space, 0, sizeof(head->space)))
		return -EINVAL;
	return 0;
}

/* ---- the calls ---- */

/* Those that a batch takes. */
static uint32_t batch_flags(enum ucm_calls_op op)
{
	switch (op) {
	case UCM_BATCH_LEASE: return UCM_LEASE_RENEW;
	case UCM_BATCH_TOUCH: return UCM_TOUCH_OPENED;
	default: return 0;
	}
}

static struct ucm_calls_terms terms_of(const struct call *call,
				       const struct ucm_control_head *head)
{
	return (struct ucm_calls_terms){
		.uid = fuse_req_ctx(call->req)->uid,
		.lease_ms = head->lease_ms,
		.flags = head->flags,
	};
}

/* For the policy, which learns from what a request wants, head first. */
static struct ucm_id *copy_ids(const struct ucm_control_batch *batch)
{
	struct ucm_id *ids = calloc(batch->head.num + 1, sizeof(*ids));

	if (ids)
		memcpy(ids, batch->u.ids, batch->head.num * sizeof(*ids));
	return ids;
}

static int run_batch(const struct call *call, void *data)
{
	struct ucm_control_batch *batch = data;
	struct ucm_daemon *daemon = call->daemon;
	enum ucm_calls_op op = call->command->op;
	const struct ucm_calls_terms terms = terms_of(call, &batch->head);
	_cleanup_free_ struct ucm_id *asked = NULL;
	struct ucm_space *space;
	int err;

	err = check_head(&batch->head, UCM_CONTROL_IDS,
			 op == UCM_BATCH_LEASE ? UCM_CONTROL_LEASE_MAX_MS : 0,
			 batch_flags(op));
	if (!err)
		err = space_of(call, &batch->head, &space);
	if (err)
		return err;
	if (op == UCM_BATCH_LEASE && terms.lease_ms &&
	    !(terms.flags & UCM_LEASE_RENEW))
		asked = copy_ids(batch);
	/* a result is smaller than an id and never overtakes it */
	for (uint32_t i = 0; i < batch->head.num; i++) {
		struct ucm_key key = { .id = batch->u.ids[i],
				       .space = space->number };
		int result = ucm_calls_one(daemon->store, op, &key, &terms);

		if (result == -EINPROGRESS)
			return result; /* all of it is done elsewhere */
		batch->u.results[i] = result;
	}
	if (asked)
		ucm_value_asked(daemon->store, space->number, asked,
				batch->head.num);
	return 0;
}

static int run_offer(const struct call *call, void *data)
{
	struct ucm_control_offer *offer = data;
	_cleanup_free_ int32_t *results = NULL;
	struct ucm_space *space;
	int err = check_head(&offer->head, UCM_CONTROL_OFFERS, 0, 0);

	if (!err)
		err = space_of(call, &offer->head, &space);
	if (!err) /* how full they are */
		err = ucm_wait_for_any(&call->daemon->store->dirs);
	if (err)
		return err;
	results = calloc(offer->head.num + 1, sizeof(*results));
	if (!results)
		return -ENOMEM;
	err = ucm_offers_judge(call->daemon->store, space->number,
			       offer->u.blocks, offer->head.num, offer->bytes,
			       results);
	if (!err)
		memcpy(offer->u.results, results,
		       offer->head.num * sizeof(*results));
	return err;
}

static int run_verified(const struct call *call, void *data)
{
	struct ucm_control_verified *verified = data;
	struct ucm_space *space;
	int err = check_head(&verified->head, UCM_CONTROL_VERIFIED_MOST, 0, 0);

	if (!err)
		err = space_of(call, &verified->head, &space);
	if (err)
		return err;
	/* a result is smaller than a block and never overtakes it */
	for (uint32_t i = 0; i < verified->head.num; i++) {
		struct ucm_control_verified_block block = verified->u.blocks[i];
		struct ucm_key key = { .id = block.id, .space = space->number };
		int result = ucm_calls_verified(call->daemon->store, &key,
						block.stamp);

		if (result == -EINPROGRESS)
			return result; /* all of it is done elsewhere */
		verified->u.results[i] = result;
	}
	return 0;
}

static int run_locate(const struct call *call, void *data)
{
	struct ucm_control_locate *locate = data;
	const struct ucm_calls_terms terms = terms_of(call, &locate->head);
	_cleanup_free_ struct ucm_id *ids = NULL;
	struct ucm_space *space;
	int err = check_head(&locate->head, UCM_CONTROL_PLACES,
			     UCM_CONTROL_LEASE_MAX_MS,
			     UCM_LOCATE_CRC | UCM_LOCATE_PEEK);

	if (!err)
		err = space_of(call, &locate->head, &space);
	if (err)
		return err;
	/* a place is larger than an id */
	ids = malloc(sizeof(locate->u.ids));
	if (!ids)
		return -ENOMEM;
	memcpy(ids, locate->u.ids, sizeof(locate->u.ids));
	for (uint32_t i = 0; i < locate->head.num; i++) {
		struct ucm_key key = { .id = ids[i], .space = space->number };

		ucm_calls_locate(call->daemon->store, &key, &terms,
				 &locate->u.places[i]);
		if (locate->u.places[i].result == -EINPROGRESS)
			return -EINPROGRESS;
	}
	return 0;
}

static int run_path(const struct call *call, void *data)
{
	struct ucm_control_path *path = data;
	struct ucm_store *store = call->daemon->store;
	struct ucm_space *space;
	struct ucm_entry entry;
	struct ucm_key key;
	ucm_ref ref;
	int err = check_head(&path->head, 1, 0, 0);

	if (!err && path->head.num != 1)
		err = -EINVAL;
	if (!err)
		err = space_of(call, &path->head, &space);
	if (err)
		return err;
	key = (struct ucm_key){ .id = path->u.id, .space = space->number };
	err = ucm_store_peek(store, &key, &entry, &ref);
	return err ? err
		   : ucm_store_path(store, &entry, path->u.path,
				    sizeof(path->u.path));
}

static int run_statistics(const struct call *call, void *data)
{
	struct ucm_control_statistics *stats = data;

	if (stats->version != UCM_CONTROL_VERSION)
		return -EINVAL;
	ucm_iobudget_count_lookups(call->daemon);
	ucm_calls_statistics(call->daemon->store, stats);
	return 0;
}

/* No call is made on one whose server may hang. */
static int fill_directory(struct ucm_medium *medium,
			  struct ucm_control_directory *out)
{
	size_t len = strlen(medium->path);
	struct stat st;
	int err;

	if (len >= sizeof(out->path))
		return -ENAMETOOLONG;
	memcpy(out->path, medium->path, len);
	if (medium->remote)
		return 0;
	err = ucm_os_fstat(ucm_directory_fd(medium), &st);
	if (err)
		return err;
	out->flags = UCM_DIRECTORY_LOCAL;
	out->device = st.st_dev;
	out->inode = st.st_ino;
	return 0;
}

static int run_directory(const struct call *call, void *data)
{
	struct ucm_dirs *dirs = &call->daemon->store->dirs;
	struct ucm_control_directory *directory = data;
	uint32_t number = directory->number;

	if (directory->version != UCM_CONTROL_VERSION)
		return -EINVAL;
	if (number >= dirs->num)
		return -ENOENT;
	*directory = (struct ucm_control_directory){
		.version = UCM_CONTROL_VERSION,
		.number = number,
		.tier = (uint32_t)(dirs->tier_of[number] - dirs->tiers),
	};
	return fill_directory(dirs->at[number], directory);
}

static int run_budget(const struct call *call, void *data)
{
	const struct ucm_options *options = call->daemon->options;
	struct ucm_control_budget *budget = data;

	if (budget->version != UCM_CONTROL_VERSION || budget->layout)
		return -EINVAL;
	budget->layout = UCM_SHARERS_LAYOUT;
	budget->rate = options->budget;
	budget->in_flight = options->inflight;
	return 0;
}

static int run_memory(const struct call *call, void *data)
{
	struct ucm_control_memory *memory = data;
	struct stat st;
	int fd;

	if (memory->version != UCM_CONTROL_VERSION ||
	    memory->what > UCM_MEMORY_BUDGET || memory->pid || memory->fd ||
	    memory->device || memory->inode)
		return -EINVAL;
	fd = ucm_control_memory(call->daemon, memory->what == UCM_MEMORY_INDEX
						      ? "index"
						      : "budget");
	if (fd < 0)
		return fd;
	if (fstat(fd, &st))
		return -errno;
	memory->pid = getpid();
	memory->fd = fd;
	memory->device = st.st_dev;
	memory->inode = st.st_ino;
	return 0;
}

static bool is_interrupted(void *arg)
{
	return fuse_req_interrupted(arg);
}

static int run_flush(const struct call *call, void *data)
{
	struct ucm_store *store = call->daemon->store;
	int err = ucm_movers_flush(store, is_interrupted, call->req);

	(void)data;
	return err == -EINTR ? err : ucm_store_sync(store) ? -EIO : err;
}

static struct ucm_medium *drained_medium(struct ucm_store *store,
					 const char *path, unsigned *dir)
{
	for (*dir = 0; *dir < store->dirs.num; (*dir)++) {
		if (!strcmp(store->dirs.at[*dir]->path, path))
			return store->dirs.at[*dir];
	}
	return NULL;
}

static int run_drain(const struct call *call, void *data)
{
	struct ucm_store *store = call->daemon->store;
	struct ucm_control_drain *drain = data;
	struct ucm_medium *medium;
	unsigned dir;

	if (drain->version != UCM_CONTROL_VERSION ||
	    drain->what > UCM_DRAIN_END ||
	    !memchr(drain->path, 0, sizeof(drain->path)))
		return -EINVAL;
	medium = drained_medium(store, drain->path, &dir);
	if (!medium)
		return -ENOENT;
	if (medium->readonly)
		return -EROFS;
	if (drain->what != UCM_DRAIN_ASK)
		ucm_movers_drain(store, dir, drain->what == UCM_DRAIN_BEGIN);
	drain->draining = atomic_load(&medium->draining);
	drain->blocks = atomic_load(&medium->blocks);
	drain->bytes = atomic_load(&medium->used);
	drain->stays = drain->blocks ? atomic_load(&medium->stays) : 0;
	return 0;
}

static int run_rescan(const struct call *call, void *data)
{
	(void)data;
	return ucm_calls_rescan(call->daemon->store, is_interrupted, call->req);
}

static int run_checkpoint(const struct call *call, void *data)
{
	(void)data;
	return ucm_store_checkpoint(call->daemon->store);
}

static const struct command commands[] = {
	{ UCM_CONTROL_LOOKUP, READERS, run_batch, UCM_BATCH_LOOKUP, false },
	{ UCM_CONTROL_TOUCH, READERS, run_batch, UCM_BATCH_TOUCH, false },
	{ UCM_CONTROL_LEASE, READERS, run_batch, UCM_BATCH_LEASE, false },
	{ UCM_CONTROL_OFFER, READERS, run_offer, 0, false },
	{ UCM_CONTROL_LOCATE, READERS, run_locate, 0, false },
	{ UCM_CONTROL_STATISTICS, READERS, run_statistics, 0, false },
	{ UCM_CONTROL_PATH, OWNER, run_path, 0, false },
	{ UCM_CONTROL_VERIFIED, OWNER, run_verified, 0, false },
	{ UCM_CONTROL_PIN, WRITER, run_batch, UCM_BATCH_PIN, false },
	{ UCM_CONTROL_UNPIN, WRITER, run_batch, UCM_BATCH_UNPIN, false },
	{ UCM_CONTROL_EVICT, WRITER, run_batch, UCM_BATCH_EVICT, true },
	{ UCM_CONTROL_CHECK, WRITER, run_batch, UCM_BATCH_CHECK, true },
	{ UCM_CONTROL_WARM, WRITER, run_batch, UCM_BATCH_WARM, false },
	{ UCM_CONTROL_DIRECTORY, READERS, run_directory, 0, false },
	{ UCM_CONTROL_BUDGET, READERS, run_budget, 0, false },
	{ UCM_CONTROL_MEMORY, OWNER, run_memory, 0, false },
	{ UCM_CONTROL_DRAIN, OWNER, run_drain, 0, false },
	{ UCM_CONTROL_FLUSH, OWNER, run_flush, 0, true },
	{ UCM_CONTROL_RESCAN, OWNER, run_rescan, 0, true },
	{ UCM_CONTROL_CHECKPOINT, OWNER, run_checkpoint, 0, true },
};

static const struct command *find_command(unsigned number)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (commands[i].number == number)
			return &commands[i];
	}
	return NULL;
}

/* in is not ours to write to: *out is a copy, with what the call brings. */
int ucm_control_call(fuse_req_t req, unsigned number, const void *in,
		     size_t in_size, size_t out_size, void **out)
{
	struct call call = { .req = req,
			     .daemon = ucm_daemon_of(req),
			     .command = find_command(number) };
	size_t size = _IOC_SIZE(number);
	int err;

	if (!call.command)
		return -ENOTTY;
	if (in_size != size || out_size != size)
		return -EINVAL;
	err = check_right(&call);
	if (!err && call.command->is_long)
		err = ucm_wait_long_for_any(&call.daemon->store->dirs);
	if (err)
		return err;
	if (size) {
		*out = malloc(size);
		if (!*out)
			return -ENOMEM;
		memcpy(*out, in, size);
	}
	return call.command->run(&call, *out);
}
