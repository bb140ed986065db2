/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_fixture.c - a paged cache in memory, block files, and a loader.
 */
#include <config.h>

#include "tests/unit/load_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hashing/tree.h"

const struct ucm_geometry lf_geometry = {
	.num_layers = 4,
	.block_size = 16,
	.dtype = UCM_DTYPE_FLOAT16,
	.k_bytes = 2048,
	.v_bytes = 2048,
	.num_kv_heads = 2,
	.head_dim = 32,
	.order = UCM_ORDER_NHD,
};

struct ucm_geometry lf_geometry_of(uint32_t layers, uint32_t tokens,
				   uint32_t heads, uint32_t dim)
{
	return (struct ucm_geometry){
		.num_layers = layers,
		.block_size = tokens,
		.dtype = UCM_DTYPE_FLOAT16,
		.k_bytes = tokens * heads * dim * 2,
		.v_bytes = tokens * heads * dim * 2,
		.num_kv_heads = (uint16_t)heads,
		.head_dim = (uint16_t)dim,
		.order = UCM_ORDER_NHD,
	};
}

/* ---- the cache ---- */

void lf_cache_clear(struct lf_cache *cache)
{
	memset(cache->memory, 0xa5, cache->len);
}

void lf_cache_open(struct lf_cache *cache, const struct ucm_geometry *geometry,
		   uint32_t num_pages)
{
	struct ucm_error error = { "" };
	int64_t shape[] = { 2, num_pages, geometry->block_size,
			    geometry->num_kv_heads, geometry->head_dim };
	int64_t strides[5] = { [4] = 1 };

	*cache = (struct lf_cache){
		.geometry = *geometry,
		.num_pages = num_pages,
		.layer_bytes = 2 * (size_t)num_pages * geometry->k_bytes,
	};
	cache->len = cache->layer_bytes * geometry->num_layers;
	cache->memory = malloc(cache->len);
	ck_assert_ptr_nonnull(cache->memory);
	lf_cache_clear(cache);
	for (int i = 3; i >= 0; i--)
		strides[i] = strides[i + 1] * shape[i + 1];
	ck_assert_int_eq(
		ucm_layout_new(geometry, num_pages, &cache->layout, &error), 0);
	for (uint32_t layer = 0; layer < geometry->num_layers; layer++) {
		struct ucm_tensor tensor = {
			.size = sizeof(struct ucm_tensor),
			.name = "kv",
			.data = (uintptr_t)cache->memory +
				layer * cache->layer_bytes,
			.dims = "PBNHD",
			.shape = shape,
			.strides = strides,
			.item_bytes = 2,
			.layer = layer,
		};

		ck_assert_msg(
			!ucm_layout_add_tensor(cache->layout, &tensor, &error),
			"%s", error.text);
	}
	ck_assert_msg(!ucm_layout_seal(cache->layout, &error), "%s",
		      error.text);
}

void lf_cache_close(struct lf_cache *cache)
{
	ucm_layout_free(cache->layout);
	free(cache->memory);
}

/* Byte i of the payload in a page. */
static uint8_t *at(const struct lf_cache *cache, uint32_t page, uint64_t i)
{
	const struct ucm_geometry *g = &cache->geometry;
	uint64_t layer = i / (2 * g->k_bytes), rest = i % (2 * g->k_bytes);

	return cache->memory + layer * cache->layer_bytes +
	       (rest / g->k_bytes * cache->num_pages + page) * g->k_bytes +
	       rest % g->k_bytes;
}

struct ucm_id lf_id(unsigned n)
{
	struct ucm_id id;
	uint64_t x = (n + 1) * UINT64_C(0x9e3779b97f4a7c15);

	for (unsigned i = 0; i < UCM_ID_BYTES; i++) {
		x ^= x >> 29;
		x *= UINT64_C(0xbf58476d1ce4e5b9);
		id.bytes[i] = (uint8_t)(x >> 56);
	}
	return id;
}

uint8_t lf_byte(unsigned n, uint64_t i)
{
	uint64_t x = (i >> 3) * UINT64_C(0x9e3779b97f4a7c15) +
		     (n + 1) * UINT64_C(0xd6e8feb86659fd93);

	x ^= x >> 32;
	return (uint8_t)(x >> (8 * (i & 7)));
}

bool lf_page_is(const struct lf_cache *cache, uint32_t page, uint32_t first,
		uint32_t end, unsigned n)
{
	uint64_t layer_bytes = 2 * (uint64_t)cache->geometry.k_bytes;

	for (uint64_t i = first * layer_bytes; i < end * layer_bytes; i++) {
		if (*at(cache, page, i) != lf_byte(n, i))
			return false;
	}
	return true;
}

bool lf_page_untouched(const struct lf_cache *cache, uint32_t page,
		       uint32_t first, uint32_t end)
{
	uint64_t layer_bytes = 2 * (uint64_t)cache->geometry.k_bytes;

	for (uint64_t i = first * layer_bytes; i < end * layer_bytes; i++) {
		if (*at(cache, page, i) != 0xa5)
			return false;
	}
	return true;
}

void lf_fill_page(struct lf_cache *cache, uint32_t page, unsigned n)
{
	uint64_t len = ucm_block_payload_bytes(&cache->geometry);

	for (uint64_t i = 0; i < len; i++)
		*at(cache, page, i) = lf_byte(n, i);
}

/* ---- files ---- */

uint8_t *lf_file(const struct ucm_geometry *geometry, unsigned n,
		 enum fx_kind kind, size_t *len_out)
{
	struct ucm_block block = {
		.id = lf_id(n),
		.geometry = *geometry,
		.form = kind == FX_PAGED || kind == FX_PAGED_RAW
				? UCM_FORM_PAGED
				: UCM_FORM_PACKED,
		.data_offset = UCM_BLOCK_HEADER_BYTES,
	};
	uint64_t payload = ucm_block_payload_bytes(geometry), size;
	bool crc = kind == FX_PAGED || kind == FX_PACKED;
	uint8_t *bytes;

	if (block.form == UCM_FORM_PAGED)
		block.data_offset =
			ucm_block_data_offset(geometry->num_layers);
	size = ucm_block_file_size(&block);
	bytes = calloc(1, size);
	ck_assert_ptr_nonnull(bytes);
	for (uint64_t i = 0; i < payload; i++)
		bytes[block.data_offset + i] = lf_byte(n, i);
	ck_assert_int_eq(ucm_block_encode(&block,
					  crc ? bytes + block.data_offset
					      : NULL,
					  bytes, size),
			 0);
	if (kind == FX_BARE)
		memset(bytes + 36, 0, 28);
	*len_out = size;
	return bytes;
}

const char *lf_path(const char *dir, unsigned n)
{
	struct ucm_id id = lf_id(n);
	char name[UCM_TREE_BELOW_LEN + 1];

	ucm_tree_block_below(&id, name);
	return fx_path("%s/blocks/%s", dir, name);
}

void lf_plant(const char *dir, const struct ucm_geometry *geometry, unsigned n)
{
	const char *path = lf_path(dir, n);
	size_t len;
	uint8_t *bytes = lf_file(geometry, n, FX_PAGED, &len);
	char folder[512];

	snprintf(folder, sizeof(folder), "%s", path);
	*strrchr(folder, '/') = '\0';
	fx_mkdirs(folder);
	fx_put(path, bytes, len);
	free(bytes);
}

bool lf_saved(const char *dir, const struct ucm_geometry *geometry, unsigned n)
{
	size_t len;
	uint8_t *want = lf_file(geometry, n, FX_PAGED, &len);
	uint32_t offset = ucm_block_data_offset(geometry->num_layers);
	uint8_t *got = calloc(1, len + 1);
	FILE *file = fopen(lf_path(dir, n), "r");
	bool same = file && fread(got, 1, len + 1, file) == len;

	if (file)
		fclose(file);
	/* all but the time of its creation, and the checksums over that */
	same = same && !memcmp(got, want, 60) &&
	       !memcmp(got + 128, want + 128, len - 128) && offset;
	free(want);
	free(got);
	return same;
}

unsigned lf_open_files(const char *part)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned num = 0;

	ck_assert_ptr_nonnull(dir);
	while ((entry = readdir(dir))) {
		char path[512];
		ssize_t len = readlinkat(dirfd(dir), entry->d_name, path,
					 sizeof(path) - 1);

		path[len > 0 ? len : 0] = '\0';
		num += strstr(path, part) != NULL;
	}
	closedir(dir);
	return num;
}

void lf_tier(const char *dir)
{
	fx_store(dir);
	fx_close();
}

/* ---- memory ---- */

char lf_memory[32];

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	return ftw->level ? remove(path) : 0;
}

void lf_empty_memory(void)
{
	if (*lf_memory)
		nftw(lf_memory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

bool lf_open_memory(void)
{
	strcpy(lf_memory, "/dev/shm/ucm_test.XXXXXX");
	if (mkdtemp(lf_memory))
		return true;
	*lf_memory = '\0';
	return unit_skip("tiers in memory: /dev/shm: %s", strerror(errno));
}

static void remove_memory(void)
{
	lf_empty_memory();
	rmdir(lf_memory);
}

UNIT_PROGRAM(.end = remove_memory);

/* ---- I/O that is held up, or goes wrong ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool holding;
	enum ucm_io_op held_op;
	off_t held_from, held_end;
	unsigned held_skip, held, gate;
	enum ucm_io_op fail_op;
	unsigned fail_nth; /* 0: none */
	int fail_err;
	bool fail_once;
	ino_t at_file; /* 0: all */
	off_t at;
	int at_err; /* 0: none */
	enum ucm_io_op short_op;
	size_t short_most;
	unsigned short_times;
} faults = { .lock = PTHREAD_MUTEX_INITIALIZER,
	     .changed = PTHREAD_COND_INITIALIZER };

static void pass_gate(const struct ucm_io *io)
{
	unsigned gate = faults.gate;

	if (!faults.holding || io->op != faults.held_op ||
	    io->offset < faults.held_from || io->offset >= faults.held_end)
		return;
	if (faults.held_skip) {
		faults.held_skip--;
		return;
	}
	faults.held++;
	pthread_cond_broadcast(&faults.changed);
	while (faults.holding && faults.gate == gate)
		pthread_cond_wait(&faults.changed, &faults.lock);
	faults.held--;
}

static bool is_nth(const struct ucm_io *io)
{
	if (!faults.fail_nth || io->op != faults.fail_op)
		return false;
	if (faults.fail_nth > 1) {
		faults.fail_nth--;
		return false;
	}
	if (faults.fail_once)
		faults.fail_nth = 0;
	return true;
}

static bool reaches(const struct ucm_io *io)
{
	struct stat st;

	return faults.at_err && io->op == UCM_IO_READ &&
	       io->offset <= faults.at &&
	       io->offset + (off_t)io->len > faults.at &&
	       (!faults.at_file ||
		(!fstat(io->fd, &st) && st.st_ino == faults.at_file));
}

static ssize_t fault(const struct ucm_io *io, ssize_t result)
{
	pthread_mutex_lock(&faults.lock);
	pass_gate(io);
	if (is_nth(io)) {
		result = faults.fail_err;
	} else if (reaches(io)) {
		result = faults.at_err;
	} else if (faults.short_times && io->op == faults.short_op &&
		   result > (ssize_t)faults.short_most) {
		faults.short_times--;
		result = (ssize_t)faults.short_most;
	}
	pthread_mutex_unlock(&faults.lock);
	return result;
}

void lf_faults(void)
{
	ucm_ring_fault = fault;
}

static void hold(enum ucm_io_op op, unsigned skip, off_t from, off_t end)
{
	pthread_mutex_lock(&faults.lock);
	faults.holding = true;
	faults.held_op = op;
	faults.held_skip = skip;
	faults.held_from = from;
	faults.held_end = end;
	pthread_mutex_unlock(&faults.lock);
}

void lf_hold(enum ucm_io_op op, unsigned skip)
{
	hold(op, skip, 0, INT64_MAX);
}

void lf_hold_at(enum ucm_io_op op, off_t from, off_t end)
{
	hold(op, 0, from, end);
}

void lf_wait_held(unsigned num)
{
	struct timespec until;
	int late = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	pthread_mutex_lock(&faults.lock);
	while (!late && faults.held < num)
		late = pthread_cond_timedwait(&faults.changed, &faults.lock,
					      &until);
	pthread_mutex_unlock(&faults.lock);
	ck_assert_msg(!late, "fewer than %u operations are held", num);
}

void lf_let_pass(unsigned more)
{
	pthread_mutex_lock(&faults.lock);
	faults.gate++;
	faults.held_skip = more;
	pthread_cond_broadcast(&faults.changed);
	pthread_mutex_unlock(&faults.lock);
}

void lf_release(void)
{
	pthread_mutex_lock(&faults.lock);
	faults.holding = false;
	pthread_cond_broadcast(&faults.changed);
	pthread_mutex_unlock(&faults.lock);
}

void lf_fail(enum ucm_io_op op, unsigned nth, int err, bool only_once)
{
	pthread_mutex_lock(&faults.lock);
	faults.fail_op = op;
	faults.fail_nth = nth;
	faults.fail_err = err;
	faults.fail_once = only_once;
	pthread_mutex_unlock(&faults.lock);
}

void lf_fail_at(const char *path, off_t at, int err)
{
	struct stat st = { .st_ino = 0 };

	ck_assert(!path || !stat(path, &st));
	pthread_mutex_lock(&faults.lock);
	faults.at_file = st.st_ino;
	faults.at = at;
	faults.at_err = err;
	pthread_mutex_unlock(&faults.lock);
}

void lf_shorten(enum ucm_io_op op, size_t most, unsigned times)
{
	pthread_mutex_lock(&faults.lock);
	faults.short_op = op;
	faults.short_most = most;
	faults.short_times = times;
	pthread_mutex_unlock(&faults.lock);
}

/* ---- the loader ---- */

enum ucm_io_kind lf_io(enum ucm_io_kind io)
{
#ifdef __SANITIZE_THREAD__
	(void)io;
	return UCM_IO_THREADS;
#else
	return io;
#endif
}

struct ucm_loader_limits lf_limits;

struct ucm_loader *lf_loader(const char *tiers, const struct lf_cache *cache,
			     const struct ucm_loader_options *options)
{
	const struct ucm_loader_limits limits = lf_limits;
	struct ucm_loader_options own = { 0 };
	struct ucm_loader *loader;
	struct ucm_error error = { "" };
	unsigned group;

	if (options)
		own = *options;
	own.size = sizeof(own);
	own.io = lf_io(own.io);
	if (!own.mount)
		own.tiers = fx_path("%s", tiers);
	if (!own.staging_bytes)
		own.staging_bytes = 16 << 20;
	lf_limits = (struct ucm_loader_limits){ 0 };
	ck_assert_msg(!ucm_loader_open_within(&own, &limits, &loader, &error),
		      "%s", error.text);
	ck_assert_msg(!ucm_loader_add_group(loader, cache->layout, NULL, &group,
					    &error),
		      "%s", error.text);
	ck_assert_uint_eq(group, 0);
	return loader;
}

struct ucm_task *lf_submit(struct ucm_loader *loader, bool is_save,
			   unsigned first, unsigned num,
			   const struct ucm_request *options)
{
	struct ucm_move *blocks = calloc(num ? num : 1, sizeof(*blocks));
	struct ucm_request request = { 0 };
	struct ucm_task *task = NULL;
	struct ucm_error error = { "" };
	int err;

	if (options)
		request = *options;
	for (unsigned i = 0; i < num; i++) {
		blocks[i].id = lf_id(first + i);
		blocks[i].page = i;
	}
	request.size = sizeof(request);
	request.blocks = blocks;
	request.num_blocks = num;
	err = (is_save ? ucm_save_submit : ucm_load_submit)(loader, &request,
							    &task, &error);
	ck_assert_msg(!err, "%s", error.text);
	free(blocks);
	return task;
}

static int move(struct ucm_loader *loader, bool is_save, unsigned first,
		unsigned num, const struct ucm_request *options,
		struct ucm_outcome *outcomes)
{
	struct ucm_task *task =
		lf_submit(loader, is_save, first, num, options);
	int result = ucm_task_wait(task, 20000);

	ck_assert_int_ne(result, -ETIMEDOUT);
	if (outcomes)
		memcpy(outcomes, ucm_task_outcomes(task),
		       num * sizeof(*outcomes));
	ucm_task_free(task);
	return result;
}

int lf_load(struct ucm_loader *loader, unsigned first, unsigned num,
	    const struct ucm_request *options, struct ucm_outcome *outcomes)
{
	return move(loader, false, first, num, options, outcomes);
}

int lf_save(struct ucm_loader *loader, unsigned first, unsigned num,
	    const struct ucm_request *options, struct ucm_outcome *outcomes)
{
	return move(loader, true, first, num, options, outcomes);
}
