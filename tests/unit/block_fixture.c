/* SPDX-License-Identifier: Apache-2.0 */
/* block_fixture.c - see block_fixture.h. */
#include <config.h>

#include "tests/unit/block_fixture.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/block/verify.h"
#include "hashing/tree.h"

const struct ucm_geometry fx_geometry = {
	.num_layers = 2, .block_size = 4, .dtype = UCM_DTYPE_FLOAT16,
	.k_bytes = 128, .v_bytes = 128, .num_kv_heads = 2, .head_dim = 8,
};

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

void fx_encode(struct fx_file *file, bool crc)
{
	struct ucm_block *block = &file->block;
	size_t payload = ucm_block_payload_bytes(&block->geometry);
	uint8_t *at = file->bytes + block->data_offset;

	file->len = ucm_block_file_size(block);
	ck_assert_uint_le(file->len, sizeof(file->bytes));
	memset(file->bytes, 0, sizeof(file->bytes));
	for (size_t i = 0; i < payload; i++)
		at[i] = (uint8_t)mix(i ^ (uint64_t)file->key.id.bytes[15] << 32);
	ck_assert_int_eq(ucm_block_encode(block, crc ? at : NULL, file->bytes,
					  block->data_offset), 0);
}

static void make_bare(struct fx_file *file)
{
	fx_encode(file, false);
	memset(file->bytes + 36, 0, 28);
	file->block.form = UCM_FORM_BARE;
}

void fx_block_of(struct fx_file *file, unsigned n, enum fx_kind kind,
		 const struct ucm_geometry *geometry)
{
	bool paged = kind == FX_PAGED || kind == FX_PAGED_RAW;
	uint64_t words[2] = { mix(n), mix(n + 1000003) };

	*file = (struct fx_file){ .block = { .geometry = *geometry } };
	memcpy(file->key.id.bytes, words, sizeof(words));
	file->block.id = file->key.id;
	file->block.form = paged ? UCM_FORM_PAGED : UCM_FORM_PACKED;
	file->block.data_offset =
		paged ? ucm_block_data_offset(geometry->num_layers) : 64;
	if (kind == FX_BARE)
		make_bare(file);
	else
		fx_encode(file, kind == FX_PAGED || kind == FX_PACKED);
}

void fx_block(struct fx_file *file, unsigned n, enum fx_kind kind)
{
	fx_block_of(file, n, kind, &fx_geometry);
}

const char *fx_name(const struct fx_file *file)
{
	char name[UCM_TREE_BELOW_LEN + 1];

	ucm_tree_block_below(&file->key.id, name);
	return fx_path("%s", name);
}

void fx_plant(const char *dir, const char *folder, const struct fx_file *file)
{
	const char *path = fx_path("%s/%s/%s", dir, folder, fx_name(file));
	const char *aside = fx_path("$/planted");

	/* at once, as a store may be looking */
	fx_put(aside, file->bytes, file->len);
	fx_mkdirs(fx_path("%s/%s/%.2s", dir, folder, fx_name(file)));
	ck_assert_int_eq(fx_rename(aside, path), 0);
}

struct fx_whole {
	struct ucm_bytes bytes;
	int number;
};

static ssize_t read_number(const struct ucm_bytes *bytes, void *buffer,
			   size_t len, uint64_t offset)
{
	const struct fx_whole *whole = bytes->from;

	return fx_pread(whole->number, buffer, len, (off_t)offset);
}

static int check_one(void *arg, const char *path)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	const char *name = strrchr(path, '/') + 1;
	struct fx_whole *whole = arg;
	struct ucm_block block;
	struct ucm_id id;
	struct stat st;
	uint32_t plane;
	int number;

	ck_assert_int_eq(fx_stat(path, &st), 0);
	if (!S_ISREG(st.st_mode) || !strcmp(name, "space.json"))
		return 0;
	ck_assert_int_eq(ucm_tree_parse_block(name, &id), 0);
	number = fx_open_path(path, O_RDONLY);
	ck_assert_int_ge(number, 0);
	whole->number = number;
	ck_assert_int_eq(ucm_verify_whole(&whole->bytes, (uint64_t)st.st_size,
					  &id, &block, &fault, &plane), 0);
	ck_assert_msg(!fault, "%s: %s", path, ucm_fault_text(fault));
	fx_close_file(number);
	return 0;
}

void fx_all_whole(const char *dir)
{
	static const char *const folders[] = { "blocks", "spaces" };
	struct fx_whole whole = { .bytes = { .read = read_number } };

	whole.bytes.from = &whole;
	for (size_t i = 0; i < NUM_ROWS(folders); i++)
		ck_assert_int_eq(fx_walk(fx_path("%s/%s", dir, folders[i]),
					 check_one, &whole), 0);
}
