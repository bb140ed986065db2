/* SPDX-License-Identifier: Apache-2.0 */
/* store_fixture.c - see store_fixture.h. */
#include <config.h>

#include "tests/unit/store_fixture.h"

#include "tests/unit/memory_medium.h"

#include <errno.h>
#include <string.h>

struct ucm_store *fx_set;

void fx_open(void)
{
	struct ucm_error error = { "" };

	ck_assert_ptr_null(fx_set);
	ck_assert_msg(!ucm_store_open(&fx_config, &fx_set, &error), "%s",
		      error.text);
	fx_at_end(fx_close);
}

void fx_open_still(void)
{
	fx_open();
	ck_assert_int_eq(ucm_store_begin(fx_set), 0);
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++)
		fx_set->keepers[dir].pins_known = true;
}

void fx_start_only(void)
{
	ck_assert_int_eq(ucm_store_start(fx_set), 0);
}

void fx_start(void)
{
	fx_start_only();
	fx_wait_scanned();
}

void fx_close(void)
{
	ucm_store_close(fx_set);
	fx_set = NULL;
}

void fx_store(const char *source)
{
	fx_configure(source);
	fx_open();
	fx_start();
}

void fx_configure_lru(const char *source)
{
	fx_configure(source);
	fx_option("policy", "lru");
}

void fx_still_store(const char *source)
{
	fx_configure_lru(source);
	fx_open_still();
}

struct fx_file fx_files[FX_FILES];

void fx_setup_files(void)
{
	fx_setup();
	for (unsigned i = 0; i < FX_FILES; i++)
		fx_block(&fx_files[i], i + 1, FX_PAGED);
}

void fx_commit_files(unsigned first, unsigned num)
{
	for (unsigned i = first; i < first + num; i++)
		ck_assert_int_eq(fx_commit(&fx_files[i]), 0);
}

static bool is_scanned(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->scan.complete);
}

static bool is_settled(void *arg)
{
	return is_scanned(arg) && !atomic_load(&fx_set->doubts);
}

void fx_wait_scanned(void)
{
	fx_wait(is_scanned, NULL);
}

void fx_wait_settled(void)
{
	fx_wait(is_settled, NULL);
}

/* ---- files by number ---- */

static int number_of(int err, const struct ucm_file *file)
{
	if (err)
		return err;
	return file->fd >= 0 ? file->fd : memory_number(file->object);
}

static struct ucm_file file_of(const struct ucm_temp *temp, int number)
{
	struct ucm_file file = ucm_file_of(temp->medium, number);

	if (number >= FX_NUMBERS) {
		file.fd = -1;
		file.object = memory_object(number);
	}
	return file;
}

int fx_create(const struct ucm_key *key, uint64_t bytes, struct ucm_temp *temp)
{
	struct ucm_file file;

	return number_of(ucm_store_create(fx_set, key, bytes, temp, &file),
			 &file);
}

int fx_reopen(const struct ucm_temp *temp)
{
	struct ucm_file file;

	return number_of(ucm_store_reopen(fx_set, temp, &file), &file);
}

int fx_open_block_held(ucm_ref ref, struct ucm_entry *entry,
		       struct ucm_open *open)
{
	struct ucm_file file;

	return number_of(ucm_store_open_block(fx_set, ref, entry, &file, open),
			 &file);
}

int fx_open_block(ucm_ref ref, struct ucm_entry *entry)
{
	return fx_open_block_held(ref, entry, NULL);
}

int fx_commit_temp(struct ucm_temp *temp, int number,
		   const struct ucm_key *key, enum ucm_commit_when when)
{
	const struct ucm_file file = file_of(temp, number);

	return ucm_store_commit_evicting(fx_set, temp, &file, key, when);
}

bool fx_unchanged(const struct ucm_temp *temp, int number)
{
	const struct ucm_file file = file_of(temp, number);
	bool changed;

	ucm_store_changed(temp, &file, &changed);
	return !changed;
}

void fx_recheck(const struct ucm_temp *temp, int number)
{
	const struct ucm_file file = file_of(temp, number);

	ucm_store_recheck(fx_set, temp, &file);
}

void fx_rest(struct ucm_temp *temp, int number)
{
	const struct ucm_file file = file_of(temp, number);

	ucm_store_rest(temp, &file);
}

/* ---- all at once ---- */

int fx_commit(const struct fx_file *file)
{
	struct ucm_temp temp;
	int fd = fx_create(&file->key, 0, &temp);
	int err;

	if (fd < 0)
		return fd;
	err = fx_pwrite(fd, file->bytes, file->len, 0) == (ssize_t)file->len
		      ? 0 : -EIO;
	if (!err)
		err = fx_commit_temp(&temp, fd, &file->key,
				       UCM_COMMIT_NOW);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	return err;
}

int fx_find(const struct fx_file *file)
{
	struct ucm_entry entry;
	ucm_ref ref;

	return ucm_store_find(fx_set, &file->key, &entry, &ref);
}

bool fx_is_indexed(const struct fx_file *file)
{
	return ucm_index_find(fx_set->index, &file->key, NULL, NULL);
}

ucm_ref fx_ref(const struct fx_file *file)
{
	ucm_ref ref;

	must(ucm_index_find(fx_set->index, &file->key, NULL, &ref));
	return ref;
}

struct ucm_entry fx_entry(const struct fx_file *file)
{
	struct ucm_entry entry;

	must(ucm_index_find(fx_set->index, &file->key, &entry, NULL));
	return entry;
}

static void edit_atime(struct ucm_entry *entry, void *arg)
{
	entry->atime_s = *(const uint32_t *)arg;
}

void fx_age(const struct fx_file *file, uint32_t seconds)
{
	uint32_t then = ucm_value_now() - seconds;

	must(ucm_index_edit(fx_set->index, fx_ref(file), edit_atime, &then));
}

void fx_misses(const struct fx_file *file)
{
	ck_assert_int_eq(fx_find(file), -ENOENT);
}

void fx_serves(const struct fx_file *file)
{
	uint8_t bytes[sizeof(file->bytes)];
	struct ucm_entry entry;
	ucm_ref ref;
	int fd;

	ck_assert_int_eq(ucm_store_find(fx_set, &file->key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.size, file->len);
	fd = fx_open_block(ref, &entry);
	ck_assert_msg(fd >= 0, "open: %s", strerror(-fd));
	ck_assert_int_eq(fx_pread(fd, bytes, sizeof(bytes), 0),
			 (ssize_t)file->len);
	ck_assert_mem_eq(bytes, file->bytes, file->len);
	fx_close_file(fd);
}
