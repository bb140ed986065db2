/* SPDX-License-Identifier: Apache-2.0 */
/* test_serve.c - what a server answers to each verb. */
#include <config.h>

#include "tests/unit/serve/peer_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/filestamp.h"

#define MANY 2500u /* ids: three messages */

static unsigned counted;

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- hello ---- */

UNIT_TEST(hello_says_what_is_served)
{
	struct ucm_serve_hello hello;
	int index, budget;

	ck_assert_int_eq(ucm_client_hello(client, &hello, &index, &budget), 0);
	ck_assert_uint_eq(hello.version, UCM_SERVE_VERSION);
	ck_assert_uint_eq(hello.flags, 0);
	ck_assert_uint_eq(hello.index_bytes, fx_terms.index_bytes);
	ck_assert_uint_eq(hello.budget_bytes, fx_terms.budget_bytes);
	ck_assert_int_eq(fcntl(index, F_GETFL) & O_ACCMODE, O_RDONLY);
	ck_assert_int_eq(fcntl(budget, F_GETFL) & O_ACCMODE, O_RDWR);
}

UNIT_TEST(what_is_written_to_the_budget_is_the_servers)
{
	struct ucm_serve_hello hello;
	char byte = 0;
	int index, budget;

	ck_assert_int_eq(ucm_client_hello(client, &hello, &index, &budget), 0);
	ck_assert_int_eq(pwrite(budget, "x", 1, 77), 1);
	ck_assert_int_eq(pread(fx_terms.budget_fd, &byte, 1, 77), 1);
	ck_assert_int_eq(byte, 'x');
}

/* Also by a descriptor that a peer opens anew. */
UNIT_TEST(no_peer_writes_to_the_index)
{
	struct ucm_serve_hello hello;
	char path[40];
	int index, budget, again;

	ck_assert_int_eq(ucm_client_hello(client, &hello, &index, &budget), 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", index);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again < 0)
		return;
	ck_assert_int_eq(pwrite(again, "x", 1, 0), -1);
	ck_assert(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, again, 0) ==
		  MAP_FAILED);
	close(again);
}

/* ---- of many blocks ---- */

UNIT_TEST(requests_of_any_number_of_blocks_are_answered)
{
	struct ucm_id *ids = calloc(MANY, sizeof(*ids));
	int32_t *results = calloc(MANY, sizeof(*results));

	for (unsigned i = 0; i < MANY; i++)
		ids[i] = i % 3 ? other.key.id : file.key.id;
	ck_assert_int_eq(ucm_client_ids(client, UCM_SERVE_LOOKUP, NULL, 0,
					ids, MANY, results), 0);
	for (unsigned i = 0; i < MANY; i++)
		must(results[i] == !(i % 3));
	free(ids);
	free(results);
}

UNIT_TEST(requests_of_no_block_say_that_they_may_be_made, .rows = 9)
{
	static const enum ucm_serve_verb verbs[] = {
		UCM_SERVE_LOOKUP, UCM_SERVE_TOUCH,  UCM_SERVE_PIN,
		UCM_SERVE_UNPIN,  UCM_SERVE_EVICT,  UCM_SERVE_REMOVE,
		UCM_SERVE_WARM,	  UCM_SERVE_CHECK,  UCM_SERVE_OPEN,
	};

	ck_assert_int_eq(ucm_client_ids(client, verbs[_i], NULL, 0, NULL, 0,
					NULL), 0);
}

UNIT_TEST(all_but_lookup_need_the_block, .rows = 7)
{
	static const enum ucm_serve_verb verbs[] = {
		UCM_SERVE_TOUCH, UCM_SERVE_PIN,	  UCM_SERVE_UNPIN,
		UCM_SERVE_EVICT, UCM_SERVE_WARM,  UCM_SERVE_CHECK,
		UCM_SERVE_REMOVE,
	};

	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &other), 0);
	ck_assert_int_eq(one(verbs[_i], &other), -ENOENT);
}

UNIT_TEST(pinned_blocks_are_removed_and_not_evicted)
{
	ck_assert_int_eq(one(UCM_SERVE_PIN, &file), 0);
	ck_assert_int_eq(one(UCM_SERVE_EVICT, &file), -EPERM);
	fx_serves(&file);
	ck_assert_int_eq(one(UCM_SERVE_REMOVE, &file), 0);
	fx_misses(&file);
	ck_assert_int_eq(fx_commit(&other), 0);
	ck_assert_int_eq(one(UCM_SERVE_PIN, &other), 0);
	ck_assert_int_eq(one(UCM_SERVE_UNPIN, &other), 0);
	ck_assert_int_eq(one(UCM_SERVE_EVICT, &other), 0);
	fx_misses(&other);
}

UNIT_TEST(a_bad_block_that_is_checked_is_quarantined)
{
	char path[UCM_SERVE_PATH_MAX];
	const struct ucm_serve_request head = { .verb = UCM_SERVE_PATH };
	int fd;

	ck_assert_int_eq(one(UCM_SERVE_CHECK, &file), 0);
	ck_assert_int_eq(ucm_client_items(client, &head, NULL, &file.key.id,
					  sizeof(file.key.id), 1, path,
					  sizeof(path)), 0);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, "wrong", 5, (off_t)file.len - 4096), 5);
	close(fd);
	ck_assert_int_eq(one(UCM_SERVE_CHECK, &file), -ENOENT);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.quarantined), 1);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 0);
}

UNIT_TEST(a_block_is_warmed)
{
	ck_assert_int_eq(one(UCM_SERVE_WARM, &file), 0);
	fx_serves(&file);
}

/* ---- other items ---- */

static int locate(const struct fx_file *of, uint32_t flags,
		  struct ucm_control_place *place)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_LOCATE,
						.flags = flags };

	return ucm_client_items(client, &head, NULL, &of->key.id,
				sizeof(of->key.id), 1, place, sizeof(*place));
}

UNIT_TEST(a_place_is_that_of_the_entry)
{
	struct ucm_entry entry = fx_entry(&file);
	struct ucm_control_place place;
	struct ucm_block block;

	ck_assert_int_eq(ucm_block_parse(file.bytes, file.len, file.len,
					 &block),
			 UCM_FAULT_NONE);
	ck_assert_int_eq(locate(&file, UCM_LOCATE_CRC, &place), 0);
	ck_assert_int_eq(place.result, 0);
	ck_assert_uint_eq(place.size, file.len);
	ck_assert_uint_eq(place.tier, 0);
	ck_assert_uint_eq(place.directory, entry.dir);
	ck_assert_int_eq(place.mtime_ns, entry.mtime_ns);
	ck_assert_uint_eq(place.generation, entry.generation);
	ck_assert_uint_eq(place.flags, UCM_PLACE_CRC);
	ck_assert_uint_eq(place.crc32c, block.payload_crc);
	ck_assert_int_eq(locate(&other, UCM_LOCATE_PEEK, &place), 0);
	ck_assert_int_eq(place.result, -ENOENT);
	ck_assert_int_eq(locate(&other, 4, &place), -EINVAL);
}

UNIT_TEST(a_path_is_that_of_the_blocks_file)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_PATH };
	char path[UCM_SERVE_PATH_MAX];
	int fd;

	ck_assert_int_eq(ucm_client_items(client, &head, NULL, &file.key.id,
					  sizeof(file.key.id), 1, path,
					  sizeof(path)), 0);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert(fx_has_bytes(fd, &file));
	close(fd);
	ck_assert_int_eq(ucm_client_items(client, &head, NULL, &other.key.id,
					  sizeof(other.key.id), 1, path,
					  sizeof(path)), -ENOENT);
	ck_assert_int_eq(ucm_client_items(client, &head, NULL, NULL, 16, 0,
					  NULL, sizeof(path)), -EINVAL);
}

UNIT_TEST(what_is_there_is_worth_saving)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_OFFER,
						.bytes = file.len };
	const struct ucm_control_offered offered[] = {
		{ .id = file.key.id },
		{ .id = other.key.id, .parent = file.key.id },
	};
	int32_t results[2] = { -1, -1 };

	ck_assert_int_eq(ucm_client_items(client, &head, NULL, offered,
					  sizeof(offered[0]), 2, results,
					  sizeof(results[0])), 0);
	ck_assert_int_eq(results[0], 1);
	ck_assert_int_eq(results[1], 1);
}

static int verified(const struct fx_file *of, uint64_t stamp)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_VERIFIED };
	const struct ucm_control_verified_block block = { .id = of->key.id,
							  .stamp = stamp };
	int32_t result = 1;
	int err = ucm_client_items(client, &head, NULL, &block, sizeof(block),
				   1, &result, sizeof(result));

	return err ? err : result;
}

UNIT_TEST(a_verified_file_is_known_by_its_stamp)
{
	struct stat st;
	uint64_t stamp;
	int fd = fx_open_one(client, &file);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	close(fd);
	stamp = ucm_file_stamp(&st);
	ck_assert_int_eq(verified(&file, stamp + 1), -ESTALE);
	ck_assert_int_eq(verified(&other, stamp), -ENOENT);
	ck_assert_int_eq(verified(&file, stamp), 0);
	ck_assert_int_eq(verified(&file, 0), 0);
}

/* ---- of the whole store ---- */

static void count(void *arg)
{
	(*(unsigned *)arg)++;
}

UNIT_TEST(statistics_are_counted_when_they_are_asked_for)
{
	struct ucm_control_statistics stats;

	fx_stop_serving();
	close_client();
	fx_terms.count = count;
	fx_terms.arg = &counted;
	fx_serve();
	client = fx_client();
	ck_assert_int_eq(call(UCM_SERVE_STATISTICS, 0, &stats, sizeof(stats),
			      NULL), 0);
	ck_assert_uint_eq(counted, 1);
	ck_assert_uint_eq(stats.scanned, 1);
	ck_assert_uint_eq(stats.blocks, 1);
	ck_assert_uint_eq(stats.commits, 1);
	ck_assert_uint_ge(stats.total_bytes, stats.free_bytes);
}

static int drain(const char *path, uint32_t what, struct ucm_control_drain *out)
{
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_DRAIN,
		.num = (uint32_t)strlen(path),
		.argument = what,
	};

	return ucm_client_call(client, &head, path, 1, out, sizeof(*out), NULL);
}

UNIT_TEST(a_directory_is_drained_by_its_path)
{
	struct ucm_control_drain state;

	ck_assert_int_eq(drain(fx_path("$/a"), UCM_DRAIN_ASK, &state), 0);
	ck_assert_uint_eq(state.draining, 0);
	ck_assert_uint_eq(state.blocks, 1);
	ck_assert_int_eq(drain(fx_path("$/a"), UCM_DRAIN_BEGIN, &state), 0);
	ck_assert_uint_eq(state.draining, 1);
	ck_assert_int_eq(drain(fx_path("$/a"), UCM_DRAIN_END, &state), 0);
	ck_assert_uint_eq(state.draining, 0);
	ck_assert_int_eq(drain(fx_path("$/a/"), UCM_DRAIN_ASK, &state),
			 -ENOENT);
	ck_assert_int_eq(drain("", UCM_DRAIN_ASK, &state), -ENOENT);
	ck_assert_int_eq(drain(fx_path("$/a"), UCM_DRAIN_END + 1, &state),
			 -EINVAL);
}

UNIT_TEST(what_lies_in_a_directory_is_found_by_a_rescan)
{
	fx_plant("$/a", "blocks", &other);
	ck_assert_int_eq(call(UCM_SERVE_RESCAN, 0, NULL, 0, NULL), 0);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &other), 1);
	ck_assert_uint_gt(atomic_load(&fx_set->stats.rescanned), 0);
}

UNIT_TEST(a_checkpoint_is_made)
{
	ck_assert_int_eq(call(UCM_SERVE_CHECKPOINT, 0, NULL, 0, NULL), 0);
	ck_assert_int_eq(call(UCM_SERVE_CHECKPOINT, 1, NULL, 0, NULL), -EINVAL);
}

/* ---- texts ---- */

static char *text(void *arg, uint32_t what, size_t *len_out)
{
	char *made;

	(void)arg;
	if (what == UCM_TEXT_CONFIG)
		return NULL;
	*len_out = (size_t)asprintf(&made, "text %u", what);
	return made;
}

static void serve_texts(void)
{
	fx_stop_serving();
	close_client();
	fx_terms.text = text;
	fx_serve();
	client = fx_client();
}

UNIT_TEST(texts_come_as_descriptors)
{
	char got[16] = "";
	int fd = -1;

	ck_assert_int_eq(call(UCM_SERVE_TEXT, UCM_TEXT_STATS, NULL, 0, &fd),
			 -ENOENT);
	serve_texts();
	ck_assert_int_eq(call(UCM_SERVE_TEXT, UCM_TEXT_METRICS, NULL, 0, &fd),
			 0);
	ck_assert_int_eq(pread(fd, got, sizeof(got), 0), 6);
	ck_assert_str_eq(got, "text 2");
	close(fd);
	ck_assert_int_eq(call(UCM_SERVE_TEXT, UCM_TEXT_CONFIG, NULL, 0, &fd),
			 -ENOENT);
	ck_assert_int_eq(call(UCM_SERVE_TEXT, 5, NULL, 0, &fd), -EINVAL);
}

/* The answer of an error has nothing with it. */
UNIT_TEST(a_text_that_cannot_be_written_is_none)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_TEXT };
	struct ucm_serve_answer answer;
	int fd, fds[UCM_SERVE_DESCRIPTORS] = { -1 };

	serve_texts();
	fd = fx_dial();
	fx_fail("write", 1, -ENOSPC, true);
	ck_assert_int_eq(fx_ask(fd, &head, sizeof(head), &answer, NULL, 0, fds),
			 sizeof(answer));
	ck_assert_int_eq(answer.result, -ENOSPC);
	ck_assert_uint_eq(answer.descriptors, 0);
	ck_assert_int_eq(fds[0], -1);
	close(fd);
}

/* ---- spaces ---- */

static int mkspace(const char *name, uint32_t mode)
{
	struct ucm_serve_request head = { .verb = UCM_SERVE_MKSPACE,
					  .argument = mode };

	return ucm_client_items(client, &head, name, NULL, 0, 0, NULL, 0);
}

static int space_of(const char *name, struct ucm_serve_space *out)
{
	struct ucm_serve_request head = { .verb = UCM_SERVE_SPACE };

	snprintf(head.space, sizeof(head.space), "%s", name);
	return ucm_client_call(client, &head, NULL, 0, out, sizeof(*out), NULL);
}

UNIT_TEST(blocks_of_a_new_space_are_its_own)
{
	struct ucm_serve_space space;

	ck_assert_int_eq(space_of("s", &space), -ENOENT);
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_LOOKUP, "s", &file),
			 -ENOENT);
	ck_assert_int_eq(mkspace("s", 0755), 0);
	ck_assert_int_eq(mkspace("s", 0755), -EEXIST);
	ck_assert_int_eq(space_of("s", &space), 0);
	ck_assert_uint_eq(space.number, 1);
	ck_assert_uint_eq(space.flags, UCM_SPACE_PUBLISHED);
	ck_assert_int_eq(fx_put_block(client, "s", &other), 0);
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_LOOKUP, "s", &other), 1);
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_LOOKUP, "s", &file), 0);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &other), 0);
}

/* ---- lists ---- */

/* How many blocks of a space begin with that byte; the last of them to *id. */
static size_t listed(const char *space, unsigned first, struct ucm_id *id)
{
	struct ucm_serve_request head = { .verb = UCM_SERVE_LIST,
					  .argument = first };
	size_t num = 0;
	int fd;

	strcpy(head.space, space);
	ck_assert_int_eq(ucm_client_call(client, &head, NULL, 0, NULL, 0, &fd),
			 0);
	while (pread(fd, id, sizeof(*id), (off_t)(num * sizeof(*id))) ==
	       sizeof(*id))
		num++;
	close(fd);
	return num;
}

UNIT_TEST(blocks_are_listed_by_their_first_byte)
{
	struct ucm_id id;
	size_t all = 0;

	ck_assert_int_eq(mkspace("s", 0755), 0);
	ck_assert_int_eq(fx_put_block(client, "s", &other), 0);
	ck_assert_uint_eq(listed("s", other.key.id.bytes[0], &id), 1);
	ck_assert_mem_eq(&id, &other.key.id, sizeof(id));
	for (unsigned first = 0; first < 256; first++)
		all += listed("s", first, &id);
	ck_assert_uint_eq(all, 1);
	ck_assert_uint_eq(listed("", file.key.id.bytes[0], &id), 1);
	ck_assert_mem_eq(&id, &file.key.id, sizeof(id));
	ck_assert_int_eq(fx_one_id(client, UCM_SERVE_REMOVE, "s", &other), 0);
	ck_assert_uint_eq(listed("s", other.key.id.bytes[0], &id), 0);
}

UNIT_TEST(a_private_space_is_not_published)
{
	struct ucm_serve_space space;

	ck_assert_int_eq(mkspace("s", 0700), 0);
	ck_assert_int_eq(space_of("s", &space), 0);
	ck_assert_uint_eq(space.flags, 0);
	ck_assert_int_eq(space_of("", &space), 0);
	ck_assert_uint_eq(space.number, 0);
	ck_assert_uint_eq(space.flags, UCM_SPACE_PUBLISHED);
}

UNIT_TEST(names_of_spaces_are_checked, .rows = 6)
{
	static const struct {
		const char *name;
		int want;
	} rows[] = {
		{ "", -EEXIST },  { "..", -EINVAL }, { ".hidden", -EINVAL },
		{ "a/b", -EINVAL }, { "a\nb", -EINVAL }, { NULL, -ENAMETOOLONG },
	};
	char longest[UCM_SERVE_SPACE_MAX] = "";
	const char *name = rows[_i].name;

	if (!name)
		name = memset(longest, 'x', sizeof(longest) - 1);
	ck_assert_int_eq(mkspace(name, 0755), rows[_i].want);
}

/* ---- read-only ---- */

UNIT_TEST(a_read_only_store_is_only_read)
{
	static const enum ucm_serve_verb writes[] = {
		UCM_SERVE_PIN,	UCM_SERVE_UNPIN, UCM_SERVE_EVICT,
		UCM_SERVE_WARM, UCM_SERVE_CHECK, UCM_SERVE_REMOVE,
	};
	struct ucm_serve_created created;
	struct ucm_serve_hello hello;
	int index, budget, fd;

	fx_stop_serving();
	close_client();
	fx_terms.readonly = true;
	fx_serve();
	client = fx_client();
	ck_assert_int_eq(ucm_client_hello(client, &hello, &index, &budget), 0);
	ck_assert_uint_eq(hello.flags, UCM_SERVE_READONLY);
	for (unsigned i = 0; i < NUM_ROWS(writes); i++)
		ck_assert_int_eq(one(writes[i], &file), -EROFS);
	ck_assert_int_eq(mkspace("s", 0755), -EROFS);
	ck_assert_int_eq(ucm_client_create(client, NULL, &other.key.id, 1, 8192,
					   &fd, &created), -EROFS);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	fd = fx_open_one(client, &file);
	ck_assert(fx_has_bytes(fd, &file));
	close(fd);
}
