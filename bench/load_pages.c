/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_pages.c - the block files, the pages, and copying by hand.
 *
 * The pages are as an engine has them that keeps a tensor for each layer's K
 * and V: a block's page is one fragment in each tensor. A block goes to another
 * page in every turn, so that no page can pass for one that was loaded.
 */
#include <config.h>

#include "bench/load_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKED 8 /* pages in a turn */
#define STAGED 32 /* blocks that run_copy() copies, again and again */

int complain(const char *object, const char *call)
{
	int err = errno ? -errno : -EIO;

	fprintf(stderr, ME ": %s: %s: %s\n", object, call, strerror(-err));
	return err;
}

uint64_t next_random(struct bench *bench)
{
	uint64_t x = bench->random += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

double seconds_of(const struct rusage *usage)
{
	return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
	       (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) /
		       1e6;
}

double cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return seconds_of(&usage);
}

int bury(struct bench *bench, const char *path)
{
	char grave[512];

	snprintf(grave, sizeof(grave), "%s/%u", bench->plain, bench->buried++);
	if (link(path, grave))
		return complain(path, "link");
	return truncate(grave, 0) ? complain(grave, "truncate") : 0;
}

/* ---- planes ---- */

static uint32_t num_planes(const struct bench *bench)
{
	return 2 * bench->block.geometry.num_layers;
}

static uint32_t plane_bytes(const struct bench *bench, uint32_t plane)
{
	return plane & 1 ? bench->block.geometry.v_bytes
			 : bench->block.geometry.k_bytes;
}

static uint64_t plane_offset(const struct bench *bench, uint32_t plane)
{
	const struct ucm_geometry *g = &bench->block.geometry;

	return plane / 2 * ((uint64_t)g->k_bytes + g->v_bytes) +
	       (plane & 1 ? g->k_bytes : 0);
}

static uint8_t *page_plane(const struct bench *bench, uint64_t page,
			   uint32_t plane)
{
	return bench->pages + plane_offset(bench, plane) * bench->num_files +
	       page * plane_bytes(bench, plane);
}

/* lent: a page's planes lie in a row. */
static int add_regions(struct bench *bench, struct ucm_layout *layout, bool lent)
{
	struct ucm_error error = { "" };
	int err = 0;

	for (uint32_t i = 0; i < num_planes(bench) && !err; i++) {
		const uint8_t *base = lent ? bench->pages +
						     plane_offset(bench, i)
					   : page_plane(bench, 0, i);
		struct ucm_region region = {
			.base = (uintptr_t)base,
			.page_stride = lent ? (int64_t)bench->payload
					    : plane_bytes(bench, i),
			.run_bytes = plane_bytes(bench, i),
			.n0 = 1,
			.n1 = 1,
			.offset = plane_offset(bench, i),
			.layer = i / 2,
		};

		if (region.run_bytes)
			err = ucm_layout_add_region(layout, &region, &error);
	}
	if (!err)
		err = ucm_layout_seal(layout, &error);
	if (!err && lent)
		err = ucm_layout_set_direct(layout, &error);
	if (err)
		fprintf(stderr, ME ": layout: %s\n", error.text);
	return err;
}

void move_on(struct bench *bench)
{
	bench->shift = (bench->shift + 7) % bench->num_files;
}

uint32_t page_of(const struct bench *bench, size_t file)
{
	return (uint32_t)((file + bench->shift) % bench->num_files);
}

/* ---- files ---- */

static int open_file(const struct bench *bench, const struct file *file)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/" UCM_TREE_BLOCKS "/%s",
		 bench->tiers, file->path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? complain(path, "open") : fd;
}

/* All files look alike; their checksums differ. */
static int learn_file(struct bench *bench, struct file *file)
{
	char bytes[UCM_BLOCK_EXT_BYTES];
	struct ucm_block block;
	struct stat st;
	int fd = open_file(bench, file);
	bool good;

	if (fd < 0)
		return fd;
	good = !fstat(fd, &st) &&
	       pread(fd, bytes, sizeof(bytes), 0) == sizeof(bytes) &&
	       !ucm_block_parse(bytes, sizeof(bytes), (uint64_t)st.st_size,
				&block) &&
	       ucm_block_file_size(&block) == (uint64_t)st.st_size &&
	       block.flags & UCM_BLOCK_HAS_CRC;
	close(fd);
	if (good && file != bench->files)
		good = ucm_geometry_equal(&block.geometry,
					  &bench->block.geometry);
	if (!good) {
		fprintf(stderr, ME ": %s: not a block as the others\n",
			file->path);
		return -EBADMSG;
	}
	if (file == bench->files) {
		bench->block = block;
		bench->file_size = (uint64_t)st.st_size;
		bench->payload = ucm_block_payload_bytes(&block.geometry);
	}
	file->crc = block.payload_crc;
	return 0;
}

static int read_list(struct bench *bench)
{
	FILE *list = fopen(bench->list, "re");
	char line[128];
	int err = 0;

	if (!list)
		return complain(bench->list, "open");
	bench->files = calloc(bench->count, sizeof(*bench->files));
	while (!err && bench->files && bench->num_files < bench->count &&
	       fgets(line, sizeof(line), list)) {
		struct file *file = &bench->files[bench->num_files++];
		const char *name = strrchr(line, '/');

		line[strcspn(line, "\n")] = '\0';
		err = name ? ucm_tree_parse_block(name + 1, &file->id) : -EINVAL;
		ucm_tree_block_below(&file->id, file->path);
	}
	fclose(list);
	if (!err && !bench->num_files)
		err = -ENOENT;
	if (err)
		fprintf(stderr, ME ": %s: no list of blocks\n", bench->list);
	return err;
}

static void shuffle(struct bench *bench)
{
	for (size_t i = bench->num_files; i > 1; i--) {
		size_t j = next_random(bench) % i;
		struct file swap = bench->files[j];

		bench->files[j] = bench->files[i - 1];
		bench->files[i - 1] = swap;
	}
}

static void *get_memory(uint64_t len)
{
	void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	madvise(memory, len, MADV_HUGEPAGE);
	memset(memory, 0x5a, len);
	return memory;
}

int pages_open(struct bench *bench)
{
	struct ucm_error error = { "" };
	int err = read_list(bench);

	shuffle(bench);
	for (size_t i = 0; i < bench->num_files && !err; i++)
		err = learn_file(bench, &bench->files[i]);
	if (err)
		return err;
	bench->pages = get_memory(bench->num_files * bench->payload);
	bench->staging = get_memory(STAGED * bench->payload);
	if (!bench->pages || !bench->staging)
		return complain("pages", "mmap");
	err = ucm_layout_new(&bench->block.geometry, bench->num_files,
			     &bench->layout, &error);
	if (!err)
		err = ucm_layout_new(&bench->block.geometry, bench->num_files,
				     &bench->lent, &error);
	if (err)
		fprintf(stderr, ME ": layout: %s\n", error.text);
	if (!err)
		err = add_regions(bench, bench->layout, false);
	return err ? err : add_regions(bench, bench->lent, true);
}

void pages_close(struct bench *bench)
{
	for (size_t i = 0; bench->maps && i < bench->num_files; i++)
		munmap((void *)(uintptr_t)bench->maps[i], bench->file_size);
	free(bench->maps);
	if (bench->pages)
		munmap(bench->pages, bench->num_files * bench->payload);
	if (bench->gathered)
		munmap(bench->gathered, bench->num_files * bench->payload);
	if (bench->staging)
		munmap(bench->staging, STAGED * bench->payload);
	ucm_layout_free(bench->layout);
	ucm_layout_free(bench->lent);
	free(bench->files);
}

/* ---- checking ---- */

static uint32_t page_crc(const struct bench *bench, uint32_t page)
{
	uint32_t crc = 0;

	for (uint32_t i = 0; i < num_planes(bench); i++)
		crc = ucm_crc32c(crc, page_plane(bench, page, i),
				 plane_bytes(bench, i));
	return crc;
}

int check_pages(struct bench *bench)
{
	size_t num = bench->round ? CHECKED : bench->num_files;

	for (size_t i = 0; i < num && i < bench->num_files; i++) {
		size_t which = bench->round
				       ? next_random(bench) % bench->num_files
				       : i;

		if (page_crc(bench, page_of(bench, which)) ==
		    bench->files[which].crc)
			continue;
		fprintf(stderr, ME ": %s: its page has other bytes\n",
			bench->files[which].path);
		return -EIO;
	}
	return 0;
}

static uint32_t saved_crc(const struct bench *bench, const struct side *side,
			  uint32_t page)
{
	return side->lent ? ucm_crc32c(0, bench->pages + page * bench->payload,
				       bench->payload)
			  : page_crc(bench, page);
}

static enum ucm_fault judge_saved(const struct bench *bench,
				  const uint8_t *bytes, uint64_t len,
				  const struct ucm_id *id, uint32_t crc)
{
	struct ucm_block block;
	enum ucm_fault fault = ucm_block_parse(bytes, len, len, &block);

	if (!fault)
		fault = ucm_block_check_extension(&block, bytes, len);
	if (!fault && memcmp(&block.id, id, sizeof(*id)) != 0)
		fault = UCM_FAULT_NAME;
	if (!fault && ucm_block_file_size(&block) != len)
		fault = UCM_FAULT_SIZE;
	if (!fault && block.payload_crc != crc)
		fault = UCM_FAULT_PAYLOAD;
	if (!fault && ucm_crc32c(0, bytes + block.data_offset,
				 bench->payload) != block.payload_crc)
		fault = UCM_FAULT_PAYLOAD;
	return fault;
}

int check_saved(struct bench *bench, const struct side *side, const char *dir,
		const struct ucm_move *move)
{
	char name[UCM_TREE_BELOW_LEN + 1], path[512];
	uint8_t *bytes = malloc(bench->file_size + 1);
	enum ucm_fault fault = UCM_FAULT_SHORT;
	ssize_t got = -1;
	int fd;

	ucm_tree_block_below(&move->id, name);
	snprintf(path, sizeof(path), "%s/" UCM_TREE_BLOCKS "/%s", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && bytes)
		got = read(fd, bytes, bench->file_size + 1);
	if (got > 0)
		fault = judge_saved(bench, bytes, (uint64_t)got, &move->id,
				    saved_crc(bench, side, move->page));
	if (fault)
		fprintf(stderr, ME ": %s: %s\n", path,
			got < 0 ? strerror(errno) : ucm_fault_text(fault));
	if (fd >= 0)
		close(fd);
	free(bytes);
	return fault ? -EIO : 0;
}

/* ---- copying by hand ---- */

static void copy_out(const struct bench *bench, const uint8_t *payload,
		     uint32_t page)
{
	for (uint32_t i = 0; i < num_planes(bench); i++) {
		memcpy(page_plane(bench, page, i), payload,
		       plane_bytes(bench, i));
		payload += plane_bytes(bench, i);
	}
}

static const uint8_t *map_file(const struct bench *bench, size_t which)
{
	int fd = open_file(bench, &bench->files[which]);
	struct stat st;
	void *map = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && (uint64_t)st.st_size == bench->file_size)
		map = mmap(NULL, bench->file_size, PROT_READ, MAP_SHARED, fd,
			   0);
	close(fd);
	return map == MAP_FAILED ? NULL : map;
}

static int map_all(struct bench *bench)
{
	const uint8_t **maps = calloc(bench->num_files, sizeof(*maps));

	for (size_t i = 0; maps && i < bench->num_files; i++) {
		maps[i] = map_file(bench, i);
		if (!maps[i])
			return complain(bench->files[i].path, "mmap");
		/* all its pages, as a loop that ran before has them */
		madvise((void *)(uintptr_t)maps[i], bench->file_size,
			MADV_POPULATE_READ);
	}
	bench->maps = maps;
	return maps ? 0 : -ENOMEM;
}

static void begin(struct bench *bench, struct figure *out)
{
	move_on(bench);
	out->cpu = -cpu_seconds();
	out->seconds = -(double)now_ns() / 1e9;
}

static void end(struct figure *out)
{
	out->seconds += (double)now_ns() / 1e9;
	out->cpu += cpu_seconds();
}

int run_mapped(struct bench *bench, struct side *side, struct figure *out)
{
	int err = bench->maps ? 0 : map_all(bench);

	(void)side;
	if (err)
		return err;
	begin(bench, out);
	for (size_t i = 0; i < bench->num_files; i++)
		copy_out(bench, bench->maps[i] + bench->block.data_offset,
			 page_of(bench, i));
	end(out);
	return check_pages(bench);
}

int run_mapping(struct bench *bench, struct side *side, struct figure *out)
{
	(void)side;
	begin(bench, out);
	for (size_t i = 0; i < bench->num_files; i++) {
		const uint8_t *map = map_file(bench, i);

		if (!map)
			return -EIO;
		copy_out(bench, map + bench->block.data_offset,
			 page_of(bench, i));
		munmap((void *)(uintptr_t)map, bench->file_size);
	}
	end(out);
	return check_pages(bench);
}

static uint8_t *make_gathered(const struct bench *bench)
{
	size_t len = bench->num_files * bench->payload;
	uint8_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	madvise(memory, len, MADV_HUGEPAGE);
	memset(memory, 1, len);
	return memory;
}

int run_gather(struct bench *bench, struct side *side, struct figure *out)
{
	uint8_t *at;

	(void)side;
	if (!bench->gathered)
		bench->gathered = make_gathered(bench);
	at = bench->gathered;
	if (!at)
		return complain("memory for all pages", "mmap");
	begin(bench, out);
	for (size_t i = 0; i < bench->num_files; i++) {
		for (uint32_t plane = 0; plane < num_planes(bench); plane++) {
			uint32_t len = plane_bytes(bench, plane);

			memcpy(at, page_plane(bench, page_of(bench, i), plane),
			       len);
			at += len;
		}
	}
	end(out);
	return 0;
}

int run_copy(struct bench *bench, struct side *side, struct figure *out)
{
	volatile uint32_t crc = 0;

	begin(bench, out);
	for (size_t i = 0; i < bench->num_files; i++) {
		const uint8_t *at = bench->staging +
				    i % STAGED * bench->payload;

		for (uint32_t plane = 0; plane < num_planes(bench); plane++) {
			uint32_t len = plane_bytes(bench, plane);

			if (side->verify == UCM_VERIFY_FULL)
				crc = crc + ucm_crc32c(0, at, len);
			memcpy(page_plane(bench, page_of(bench, i), plane), at,
			       len);
			at += len;
		}
	}
	end(out);
	return 0;
}
