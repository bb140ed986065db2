/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_client.c - an engine, as far as the loader sees one, for tests.
 *
 *	load_client [--layers N] [--plane BYTES] [--space NAME] [--threads N]
 *		[--io auto|uring|threads] [--direct]
 *		[--verify once] [--age SECONDS]
 *		mount|tiers SOURCE
 *
 * --age: files look so much older than they are, to it alone. It has pages in memory (--direct: each in one piece, to be read into) and does
 * what it reads from standard input, a line each:
 *
 *	load FIRST NUM [DEADLINE_MS]   blocks by their numbers, into pages
 *	save FIRST NUM [DEADLINE_MS]
 *	layers FIRST NUM LAYER NUM     saves some layers of blocks
 *	part FIRST NUM LAYER NUM       loads some
 *	start load|save FIRST NUM      the same without waiting for it, with the
 *	                               last pages, so that others may have theirs
 *	wait                           until what was started is done
 *	lend local|always FIRST NUM DEADLINE_MS
 *	                               as start load, until it is done, with pages
 *	                               that may stay lent: "= failed 3 lent 2"
 *	returned                       until they are not: "= told 2 late 2", how
 *	                               often the end was told, and how many pages
 *	                               have what came late
 *	prefetch FIRST NUM             says that these will be loaded
 *	path NUMBER                    of a block, below its space
 *	group SPACE                    tells the loader of one more
 *	opens                          "= opens 16", so far
 *	unsummed                       "= unsummed 8192": bytes, so far
 *	quit                           (a daemon may have our input open as well)
 *
 * Blocks have known bytes: after a load each page must hold them, or, if the
 * block was absent, what it held before. A line "block NUMBER ID: cause" is
 * told of each that failed, and one of all at the end:
 *
 *	= ok 3 skipped 0 wrong 0 absent 1 failed 0
 */
#include <config.h>

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <ucm/load.h>

#define UNTOUCHED 0xa5

static struct ucm_geometry geometry = {
	.num_layers = 2,
	.block_size = 16,
	.order = UCM_ORDER_OPAQUE,
};
static uint32_t num_pages = 512;
static uint8_t *pages; /* [layer][plane][page], or [page][layer][plane] */
static bool direct;    /* the latter */
static struct ucm_completions *ends;
static struct ucm_loader *loader;
static unsigned group;
static enum ucm_verify verify;

struct job {
	bool is_save;
	unsigned first, num;
	uint32_t page; /* of the first */
	uint32_t first_layer, end_layer;
	struct ucm_task *task;
};

static void die(const char *what, const char *why)
{
	fprintf(stderr, "load_client: %s: %s\n", what, why);
	exit(EXIT_FAILURE);
}

/* ---- blocks ---- */

static struct ucm_id id_of(unsigned n)
{
	struct ucm_id id = { .bytes = { 0 } };
	uint64_t x = (n + 1) * UINT64_C(0x9e3779b97f4a7c15);

	for (unsigned i = 0; i < UCM_ID_BYTES; i++) {
		x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
		id.bytes[i] = (uint8_t)(x >> 56);
	}
	return id;
}

static uint8_t byte_of(unsigned n, uint32_t plane, uint64_t i)
{
	uint64_t x = ((uint64_t)n << 40) + ((uint64_t)plane << 24) + (i >> 3);

	x = (x + 1) * UINT64_C(0xd6e8feb86659fd93);
	x ^= x >> 32;
	return (uint8_t)(x >> (8 * (i & 7)));
}

static uint8_t *plane_of(uint32_t page, uint32_t plane)
{
	size_t at = direct ? (size_t)page * 2 * geometry.num_layers + plane
			   : (size_t)plane * num_pages + page;

	return pages + at * geometry.k_bytes;
}

static void fill_page(uint32_t page, unsigned n)
{
	for (uint32_t plane = 0; plane < 2 * geometry.num_layers; plane++) {
		for (uint64_t i = 0; i < geometry.k_bytes; i++)
			plane_of(page, plane)[i] = byte_of(n, plane, i);
	}
}

static bool page_is(const struct job *job, unsigned i)
{
	uint32_t page = job->page + i;
	unsigned n = job->first + i;

	for (uint32_t plane = 2 * job->first_layer; plane < 2 * job->end_layer;
	     plane++) {
		for (uint64_t at = 0; at < geometry.k_bytes; at++)
			if (plane_of(page, plane)[at] != byte_of(n, plane, at))
				return false;
	}
	return true;
}

static void clear_page(uint32_t page)
{
	for (uint32_t plane = 0; plane < 2 * geometry.num_layers; plane++)
		memset(plane_of(page, plane), UNTOUCHED, geometry.k_bytes);
}

static bool is_untouched(uint32_t page)
{
	for (uint32_t plane = 0; plane < 2 * geometry.num_layers; plane++) {
		for (uint64_t i = 0; i < geometry.k_bytes; i++)
			if (plane_of(page, plane)[i] != UNTOUCHED)
				return false;
	}
	return true;
}

static size_t pages_len(void)
{
	return 2 * (size_t)geometry.num_layers * num_pages * geometry.k_bytes;
}

/* ---- tasks ---- */

static struct job start(bool is_save, unsigned first, unsigned num,
			uint32_t page, const struct ucm_request *options)
{
	struct ucm_move *moves = calloc(num + 1, sizeof(*moves));
	struct job job = { .is_save = is_save, .first = first, .num = num,
			   .page = page,
			   .first_layer = options->first_layer };
	struct ucm_request request = *options;
	struct ucm_error error = { "" };

	if (!moves || num > num_pages || page > num_pages - num)
		die("start", "too many blocks");
	for (unsigned i = 0; i < num; i++) {
		clear_page(page + i);
		moves[i] = (struct ucm_move){ .id = id_of(first + i),
					      .page = page + i };
		if (is_save)
			fill_page(page + i, first + i);
	}
	job.end_layer = request.num_layers
				? job.first_layer + request.num_layers
				: geometry.num_layers;
	request.size = sizeof(request);
	request.group = group;
	request.blocks = moves;
	request.num_blocks = num;
	if ((is_save ? ucm_save_submit : ucm_load_submit)(loader, &request,
							  &job.task, &error))
		die("submit", error.text);
	free(moves);
	return job;
}

static void tell_failure(unsigned n, const struct ucm_outcome *outcome)
{
	struct ucm_id id = id_of(n);
	char hex[UCM_ID_HEX + 1], text[128];

	ucm_id_format(&id, hex);
	ucm_outcome_text(outcome, text, sizeof(text));
	printf("block %u %s: %s\n", n, hex, text);
}

static void finish(struct job *job)
{
	unsigned ok = 0, skipped = 0, wrong = 0, absent = 0, failed = 0;
	const struct ucm_outcome *outcomes;

	ucm_task_wait(job->task, -1);
	outcomes = ucm_task_outcomes(job->task);
	for (unsigned i = 0; i < job->num; i++) {
		const struct ucm_outcome *outcome = &outcomes[i];

		if (!outcome->err && outcome->skipped)
			skipped++;
		else if (!outcome->err &&
			 (job->is_save ||
			  page_is(job, i)))
			ok++;
		else if (!outcome->err)
			wrong++;
		else if (outcome->err != -ENOENT)
			failed++;
		else if (is_untouched(job->page + i))
			absent++;
		else
			wrong++;
		if (outcome->err)
			tell_failure(job->first + i, outcome);
	}
	ucm_task_free(job->task);
	job->task = NULL;
	printf("= ok %u skipped %u wrong %u absent %u failed %u\n", ok, skipped,
	       wrong, absent, failed);
}

/* ---- pages that are lent ---- */

static struct job lend(const char *what, unsigned first, unsigned num,
		       uint32_t deadline_ms)
{
	const struct ucm_request request = {
		.deadline_ms = deadline_ms,
		.lend = strcmp(what, "local") ? UCM_LEND_ALWAYS
					      : UCM_LEND_LOCAL,
		.completions = ends,
	};
	struct job job = start(false, first, num,
			       num < num_pages ? num_pages - num : 0, &request);
	struct ucm_task *found;

	ucm_completions_take(ends, &found, 1, -1);
	printf("= failed %zu lent %zu\n", ucm_task_num_failed(job.task),
	       ucm_task_num_lent(job.task));
	return job;
}

/* It has been told of once. */
static void tell_returned(struct job *job)
{
	unsigned told = 1, late = 0;
	struct ucm_task *found;

	ucm_task_wait_returned(job->task, -1);
	while (ucm_completions_take(ends, &found, 1, 0))
		told++;
	for (unsigned i = 0; i < job->num; i++)
		late += page_is(job, i);
	ucm_task_free(job->task);
	job->task = NULL;
	printf("= told %u late %u\n", told, late);
}

/* ---- commands ---- */

static void tell_path(unsigned n)
{
	struct ucm_id id = id_of(n);
	char hex[UCM_ID_HEX + 1];

	ucm_id_format(&id, hex);
	printf("= %.2s/%s.bin\n", hex, hex);
}

/* "= found 3", or the error. */
static void tell_found(unsigned first, unsigned num)
{
	struct ucm_id *ids = calloc(num + 1, sizeof(*ids));
	uint8_t *found = calloc(num + 1, 1);
	unsigned sum = 0;
	int err = ids && found ? 0 : -ENOMEM;

	for (unsigned i = 0; i < num && !err; i++)
		ids[i] = id_of(first + i);
	if (!err)
		err = ucm_loader_lookup(loader, group, ids, num, found);
	for (unsigned i = 0; i < num && !err; i++)
		sum += found[i];
	if (err)
		printf("= %s\n", strerror(-err));
	else
		printf("= found %u\n", sum);
	free(ids);
	free(found);
}

static void prefetch(unsigned first, unsigned num)
{
	for (unsigned i = first; i < first + num; i++) {
		struct ucm_id id = id_of(i);

		ucm_loader_prefetch(loader, group, &id, 1);
	}
	puts("= said");
}

static struct ucm_layout *make_layout(void);

/* "= group 1", or the error; transfers go to the one of the start. */
static void tell_group(const char *space)
{
	struct ucm_layout *layout = make_layout();
	unsigned number;
	struct ucm_error error = { "" };
	int err;

	err = ucm_loader_add_group(loader, layout, space, &number, &error);
	if (err)
		printf("= %s\n", strerror(-err));
	else
		printf("= group %u\n", number);
	ucm_layout_free(layout);
}

static void tell_opens(void)
{
	struct ucm_loader_stats stats;

	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	printf("= opens %llu\n", (unsigned long long)stats.opens);
}

static void tell_unsummed(void)
{
	struct ucm_loader_stats stats;

	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	printf("= unsummed %llu\n", (unsigned long long)stats.unsummed_bytes);
}

static void run_line(const char *line, struct job *started)
{
	struct job job;

	struct ucm_request request = { .verify = verify };
	unsigned first, num, layer = 0, layers = 0;
	char what[16], more[16] = "", space[64];

	if (sscanf(line, "start %15s %u %u", more, &first, &num) == 3) {
		*started = start(!strcmp(more, "save"), first, num,
				 num < num_pages ? num_pages - num : 0,
				 &request);
		puts("= started");
	} else if (sscanf(line, "lend %15s %u %u %u", what, &first, &num,
			  &layer) == 4) {
		*started = lend(what, first, num, layer);
	} else if (!strncmp(line, "returned", 8) && started->task) {
		tell_returned(started);
	} else if (!strncmp(line, "wait", 4) && started->task) {
		finish(started);
	} else if (!strncmp(line, "opens", 5)) {
		tell_opens();
	} else if (!strncmp(line, "unsummed", 8)) {
		tell_unsummed();
	} else if (sscanf(line, "group %63s", space) == 1) {
		tell_group(space);
	} else if (sscanf(line, "path %u", &first) == 1) {
		tell_path(first);
	} else if (sscanf(line, "lookup %u %u", &first, &num) == 2) {
		tell_found(first, num);
	} else if (sscanf(line, "prefetch %u %u", &first, &num) == 2) {
		prefetch(first, num);
	} else if (sscanf(line, "%15s %u %u %u %u", what, &first, &num, &layer,
			  &layers) == 5 &&
		   (!strcmp(what, "layers") || !strcmp(what, "part"))) {
		request.first_layer = layer;
		request.num_layers = layers;
		job = start(!strcmp(what, "layers"), first, num, 0, &request);
		finish(&job);
	} else if (sscanf(line, "%15s %u %u %u", what, &first, &num,
			  &request.deadline_ms) >= 3 &&
		   (!strcmp(what, "load") || !strcmp(what, "save"))) {
		job = start(!strcmp(what, "save"), first, num, 0, &request);
		finish(&job);
	} else {
		die("no command", line);
	}
}

/* ---- setting up ---- */

static struct ucm_layout *make_layout(void)
{
	struct ucm_layout *layout;
	struct ucm_error error = { "" };

	if (ucm_layout_new(&geometry, num_pages, &layout, &error))
		die("layout", error.text);
	for (uint32_t plane = 0; plane < 2 * geometry.num_layers; plane++) {
		struct ucm_region region = {
			.base = (uintptr_t)plane_of(0, plane),
			.page_stride = direct ? 2 * geometry.num_layers *
							geometry.k_bytes
					      : geometry.k_bytes,
			.run_bytes = geometry.k_bytes,
			.n0 = 1,
			.n1 = 1,
			.offset = (uint64_t)plane * geometry.k_bytes,
			.layer = plane / 2,
		};

		if (ucm_layout_add_region(layout, &region, &error))
			die("region", error.text);
	}
	if (ucm_layout_seal(layout, &error) ||
	    (direct && ucm_layout_set_direct(layout, &error)))
		die("layout", error.text);
	return layout;
}

static void open_loader(const struct ucm_loader_options *options,
			const char *space)
{
	struct ucm_layout *layout = make_layout();
	struct ucm_error error = { "" };

	if (ucm_loader_open(options, &loader, &error))
		die("open", error.text);
	if (ucm_loader_add_group(loader, layout, space, &group, &error))
		die("group", error.text);
	ucm_layout_free(layout);
}

/* The library's as well: only its rule for the age of files asks this clock. */
static time_t age_s;

int clock_gettime(clockid_t clock, struct timespec *out)
{
	int result = (int)syscall(SYS_clock_gettime, clock, out);

	if (!result && clock == CLOCK_REALTIME_COARSE)
		out->tv_sec += age_s;
	return result;
}

static const struct option long_options[] = {
	{ "layers", required_argument, NULL, 'l' },
	{ "plane", required_argument, NULL, 'p' },
	{ "space", required_argument, NULL, 's' },
	{ "threads", required_argument, NULL, 't' },
	{ "io", required_argument, NULL, 'i' },
	{ "verify", required_argument, NULL, 'v' },
	{ "direct", no_argument, NULL, 'd' },
	{ "age", required_argument, NULL, 'a' },
	{ 0 },
};

static const char *parse(int argc, char **argv,
			 struct ucm_loader_options *options)
{
	const char *space = NULL;
	int c;

	geometry.k_bytes = geometry.v_bytes = 2048;
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case 'l':
			geometry.num_layers =
				(uint32_t)strtoul(optarg, NULL, 0);
			break;
		case 'p':
			geometry.k_bytes = geometry.v_bytes =
				(uint32_t)strtoul(optarg, NULL, 0);
			break;
		case 's': space = optarg; break;
		case 'v':
			if (strcmp(optarg, "once"))
				die("--verify", "once");
			verify = UCM_VERIFY_ONCE;
			break;
		case 'd': direct = true; break;
		case 'a': age_s = (time_t)strtoul(optarg, NULL, 0); break;
		case 't':
			options->threads = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'i':
			options->io = *optarg == 'u'   ? UCM_IO_URING
				      : *optarg == 't' ? UCM_IO_THREADS
						       : UCM_IO_AUTO;
			break;
		default: exit(EXIT_FAILURE);
		}
	}
	if (argc - optind != 2)
		die("usage", "load_client [options] mount|tiers SOURCE");
	if (!strcmp(argv[optind], "mount"))
		options->mount = argv[optind + 1];
	else
		options->tiers = argv[optind + 1];
	return space;
}

int main(int argc, char **argv)
{
	struct ucm_loader_options options = { .size = sizeof(options) };
	const char *space = parse(argc, argv, &options);
	struct job job = { .task = NULL };
	char line[256];

	pages = aligned_alloc(4096, pages_len());
	if (!pages || ucm_completions_new(&ends))
		die("pages", "out of memory");
	open_loader(&options, space);
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("= ready");
	while (fgets(line, sizeof(line), stdin) && strcmp(line, "quit\n"))
		run_line(line, &job);
	ucm_task_free(job.task);
	ucm_loader_close(loader);
	ucm_completions_free(ends);
	free(pages);
	return EXIT_SUCCESS;
}
