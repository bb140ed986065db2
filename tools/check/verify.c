/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - ucm verify: is a block what it says it is? See ucm(1).
 *
 * Threads take one item after the other: a file, a block's id, or (--all) a bucket.
 * The reading and comparing is
 * fs/block/verify's; nothing is loaded anywhere.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "fs/block/verify.h"
#include "hashing/tree.h"
#include <ucm/blocks.h>

#include "tools/lib/ids.h"
#include "tools/lib/report.h"
#include "tools/lib/store.h"
#include "tools/lib/tool.h"

#define DEFAULT_THREADS 4
#define POLL_US 100000

struct job {
	const struct ucm_store_options *opt;
	struct ucm_client *client;
	struct ucm_blocks *paths; /* is asked where a bad block is */
	struct ucm_ids ids;
	void (*check_item)(struct job *job, size_t item);
	size_t num_items;
	_Atomic size_t next, ended;
	_Atomic uint64_t blocks, bytes, intact, unchecked;
	pthread_mutex_t lock; /* guards the report */
	struct ucm_report report;
	_Atomic bool incomplete; /* not every block was looked for */
};

/* ---- one block ---- */

/* path NULL: of a block, whose path the daemon knows, and says to its owner. */
static void tell(struct job *job, const struct ucm_id *id, const char *path,
		 const struct ucm_outcome *outcome)
{
	char found[UCM_BLOCKS_PATH_MAX];

	if (!path && !ucm_blocks_path(job->paths, job->opt->space, id, found))
		path = found;
	pthread_mutex_lock(&job->lock);
	ucm_report_block(&job->report, id, path, outcome);
	pthread_mutex_unlock(&job->lock);
}

/* id NULL: no block, then; it is found out which rule it breaks. */
static void check_file(struct job *job, int fd, const struct stat *st,
		       const struct ucm_id *id, const char *path)
{
	const struct ucm_bytes bytes = ucm_bytes_of_fd(fd);
	static const struct ucm_id any;
	uint64_t size = (uint64_t)st->st_size;
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_outcome outcome = { 0 };
	struct ucm_block block;

	outcome.err = ucm_verify_whole(&bytes, size, id ? id : &any, &block,
				       &fault, &outcome.plane);
	if (!outcome.err && fault) {
		outcome.err = -EBADMSG;
		outcome.fault = (uint16_t)fault;
	}
	atomic_fetch_add(&job->blocks, 1);
	if (outcome.err) {
		tell(job, id, path, &outcome);
		return;
	}
	atomic_fetch_add(&job->bytes, size);
	atomic_fetch_add(&job->intact, 1);
	if (!(block.flags & UCM_BLOCK_HAS_CRC))
		atomic_fetch_add(&job->unchecked, 1);
}

/* false: it is not there. */
static bool check_block(struct job *job, const struct ucm_id *id)
{
	struct ucm_outcome outcome = { 0 };
	struct stat st;
	_cleanup_fd_ int fd =
		ucm_store_block_open(job->client, job->opt->space, id, &st);

	if (fd == -ENOENT)
		return false;
	if (fd >= 0) {
		check_file(job, fd, &st, id, NULL);
		return true;
	}
	outcome.err = fd;
	atomic_fetch_add(&job->blocks, 1);
	tell(job, id, NULL, &outcome);
	return true;
}

/* ---- items ---- */

static void check_id(struct job *job, size_t item)
{
	static const struct ucm_outcome absent = { .err = -ENOENT };
	const struct ucm_id *id = &job->ids.ids[item];

	if (check_block(job, id))
		return;
	atomic_fetch_add(&job->blocks, 1);
	tell(job, id, NULL, &absent);
}

/* A block that disappears meanwhile is no fault of the store. */
static void check_bucket(struct job *job, size_t item)
{
	struct ucm_ids ids = { .num = 0 };
	int err = ucm_ids_ask(job->client, job->opt->space, (unsigned)item,
			      &ids);

	for (size_t i = 0; i < ids.num; i++)
		check_block(job, &ids.ids[i]);
	ucm_ids_fini(&ids);
	if (!err || atomic_exchange(&job->incomplete, true))
		return;
	pthread_mutex_lock(&job->lock);
	ucm_tool_complain("%s: %s", job->opt->mount, strerror(-err));
	pthread_mutex_unlock(&job->lock);
}

/* A copy may have any name; then the header's is believed. false: there is
 * none. */
static bool name_file(const char *path, int fd, const struct stat *st,
		      struct ucm_id *out)
{
	struct ucm_block block;

	if (!ucm_ids_parse(path, out))
		return true;
	if (ucm_store_read_header(fd, st, &block))
		return false;
	*out = block.id;
	return true;
}

static void check_argument(struct job *job, size_t item)
{
	const char *path = job->opt->args[item];
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct ucm_outcome outcome = { 0 };
	struct ucm_id id;
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		outcome.err = -errno;
	else if (!S_ISREG(st.st_mode))
		outcome.err = S_ISDIR(st.st_mode) ? -EISDIR : -ENXIO;
	if (!outcome.err) {
		check_file(job, fd, &st,
			   name_file(path, fd, &st, &id) ? &id : NULL, path);
		return;
	}
	atomic_fetch_add(&job->blocks, 1);
	tell(job, ucm_ids_parse(path, &id) ? NULL : &id, path, &outcome);
}

/* ---- all of them ---- */

static void *work(void *arg)
{
	struct job *job = arg;
	size_t item;

	while ((item = atomic_fetch_add(&job->next, 1)) < job->num_items) {
		job->check_item(job, item);
		atomic_fetch_add(&job->ended, 1);
	}
	return NULL;
}

static void show_progress(struct job *job)
{
	uint64_t total = job->opt->all ? 0 : job->num_items;

	while (atomic_load(&job->ended) < job->num_items) {
		usleep(POLL_US);
		pthread_mutex_lock(&job->lock);
		ucm_progress_tell(&job->report.progress, atomic_load(&job->blocks),
				    total, atomic_load(&job->bytes));
		pthread_mutex_unlock(&job->lock);
	}
}

static void run_threads(struct job *job)
{
	unsigned most = job->opt->threads ? (unsigned)job->opt->threads
					  : DEFAULT_THREADS, num = 0;
	pthread_t *threads = ucm_tool_alloc(most, sizeof(*threads));
	int err = 0;

	while (!err && num < most && num < job->num_items) {
		err = pthread_create(&threads[num], NULL, work, job);
		num += !err;
	}
	if (num && job->report.progress.terminal)
		show_progress(job);
	for (unsigned i = 0; i < num; i++)
		pthread_join(threads[i], NULL);
	free(threads);
	if (!num && err) /* fewer than wanted do as well */
		ucm_tool_die(UCM_EXIT_FAILED, "%s", strerror(err));
}

/* ---- the command ---- */

static void prepare(struct job *job)
{
	const struct ucm_store_options *opt = job->opt;
	int err;

	if (!opt->mount) {
		job->check_item = check_argument;
		job->num_items = (size_t)opt->num_args;
		return;
	}
	job->client = ucm_store_connect(opt);
	err = ucm_blocks_open(opt->mount, &job->paths);
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", opt->mount,
			     strerror(-err));
	job->check_item = opt->all ? check_bucket : check_id;
	if (!opt->all)
		ucm_ids_read(opt->num_args ? opt->args[0] : "-", &job->ids);
	job->num_items = opt->all ? UCM_BUCKETS : job->ids.num;
}

static int verify(struct job *job)
{
	int err;

	prepare(job);
	run_threads(job);
	err = ucm_report_end(&job->report,
			     (struct ucm_count[]){
				     { "intact", job->intact },
				     { "unchecked", job->unchecked },
				     { NULL, 0 } },
			     job->blocks, job->bytes);
	return err || job->incomplete || job->blocks != job->intact;
}

static const struct ucm_arg args[] = {
	UCM_ARGS(ucm_store_where),
	{ "all", .to = &ucm_store_opt.all,
	  .help = "every block of the space" },
	{ 0 },
};

static int check_options(int argc, char **argv)
{
	const struct ucm_store_options *opt = &ucm_store_opt;

	ucm_store_options_take(argc, argv);
	if (opt->mount)
		return ucm_args_limit(argc, argv, !opt->all);
	if (opt->all || *opt->space)
		ucm_tool_usage("--all and --space need --mount or --tiers");
	if (!argc)
		ucm_tool_usage("no FILE, and no --mount or --tiers");
	return -1;
}

static int run(int argc, char **argv)
{
	struct job job = {
		.opt = &ucm_store_opt,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	int err = check_options(argc, argv);

	if (err >= 0)
		return err;
	ucm_report_init(&job.report, job.opt->json, stdout);
	err = verify(&job);
	ucm_blocks_close(job.paths);
	ucm_client_close(job.client);
	ucm_ids_fini(&job.ids);
	ucm_report_fini(&job.report);
	return err ? UCM_EXIT_FAILED : 0;
}

const struct ucm_command ucm_verify_command = {
	.name = "verify",
	.does = "check blocks, and show what is damaged",
	.operands = "FILE...\n"
		    "--mount MOUNT | --tiers SOURCE [IDS | --all]",
	.about = "Read blocks and compare them with their headers and "
		 "checksums: the FILEs; or, of a store, the blocks that IDS or "
		 "standard input lists, or all of a space. Nothing is repaired "
		 "or removed.",
	.args = args,
	.end = "Exit status 1: a block is absent or damaged.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
