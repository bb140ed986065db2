/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_serve.c - what a server answers to each verb, and its start and end.
 */
#include <config.h>

#include "tests/unit/serve_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/filestamp.h"

#define MANY 2500u /* ids: three messages */

static struct ucm_client *client;
static struct fx_file file, other;
static unsigned counted;

static void close_client(void)
{
	ucm_client_close(client);
	client = NULL;
}

static void setup_peer(void)
{
	client = fx_client();
	fx_at_end(close_client);
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
}

static void setup(void)
{
	fx_setup_served();
	setup_peer();
}

static int one(enum ucm_serve_verb verb, const struct fx_file *of)
{
	return fx_one_id(client, verb, NULL, of);
}

static int call(enum ucm_serve_verb verb, uint32_t argument, void *out,
		size_t size, int *fd_out)
{
	const struct ucm_serve_request head = { .verb = verb,
						.argument = argument };

	return ucm_client_call(client, &head, NULL, 0, out, size, fd_out);
}

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

/* ---- start and end ---- */

UNIT_TEST(a_stopped_server_leaves_nothing)
{
	unsigned before;

	close_client();
	fx_stop_serving();
	before = fx_descriptors();
	fx_serve();
	client = fx_client();
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	ck_assert_uint_eq(fx_threads("ucm-accept"), 1);
	fx_stop_serving();
	ck_assert(!fx_exists(fx_socket()));
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), -ENOTCONN);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), -ENOTCONN);
	close_client();
	ck_assert_uint_eq(fx_descriptors(), before);
	ck_assert_uint_eq(fx_threads("ucm-accept"), 0);
	fx_serve();
}

UNIT_TEST(a_socket_that_somebody_listens_on_is_his)
{
	struct ucm_server *second;

	ck_assert_int_eq(ucm_server_start(&fx_terms, fx_socket(), -1, &second),
			 -EADDRINUSE);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
	ck_assert(fx_exists(fx_socket()));
}

/* As one that was killed leaves it. */
UNIT_TEST(a_dead_socket_is_replaced)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	close_client();
	fx_stop_serving();
	strcpy(address.sun_path, fx_socket());
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address,
			      sizeof(address)), 0);
	close(fd);
	ck_assert(fx_exists(fx_socket()));
	fx_serve();
	client = fx_client();
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
}

UNIT_TEST(what_is_no_socket_is_left_alone)
{
	struct ucm_server *server;
	const char *path = fx_path("$/file");
	char long_path[200];

	fx_put(path, "x", 1);
	ck_assert_int_eq(ucm_server_start(&fx_terms, path, -1, &server),
			 -EADDRINUSE);
	ck_assert(fx_exists(path));
	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = '\0';
	ck_assert_int_eq(ucm_server_start(&fx_terms, long_path, -1, &server),
			 -ENAMETOOLONG);
	ck_assert_int_eq(ucm_server_start(&fx_terms, fx_path("$/none/socket"),
					  -1, &server), -ENOENT);
}

UNIT_TEST(another_ones_socket_outlives_a_server)
{
	ck_assert_int_eq(unlink(fx_socket()), 0);
	fx_put(fx_socket(), "x", 1);
	fx_stop_serving();
	ck_assert(fx_exists(fx_socket()));
	ck_assert_int_eq(unlink(fx_socket()), 0);
	fx_serve();
}

UNIT_TEST(a_socket_that_listens_already_is_served)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	close_client();
	fx_stop_serving();
	strcpy(address.sun_path, fx_socket());
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address,
			      sizeof(address)), 0);
	ck_assert_int_eq(listen(fd, 16), 0);
	ck_assert_int_eq(ucm_server_start(&fx_terms, NULL, fd, &fx_server), 0);
	fx_at_end(fx_stop_serving);
	client = fx_client();
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 1);
}

/* ---- a flush ---- */

/* As if a bucket of the lower tier were still to be read. */
static void set_scanned(bool scanned)
{
	struct ucm_space *space = fx_set->names.spaces[0];

	if (scanned)
		ucm_space_set_scanned(space, 1, 255);
	else
		ucm_space_clear_scanned(space, 1, 255);
	atomic_store(&fx_set->scan.complete, scanned);
}

/* Before all is scanned nothing is copied below, where it may be already: so a
 * flush waits. */
static int begin_flush(void)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_FLUSH };
	int fd = fx_dial();

	ck_assert_int_eq(send(fd, &head, sizeof(head), 0), sizeof(head));
	return fd;
}

static bool is_taken(void *fd)
{
	int bytes;

	return !ioctl(*(int *)fd, SIOCOUTQ, &bytes) && !bytes;
}

static int end_of(int fd)
{
	struct ucm_serve_answer head = { .result = 1 };
	ssize_t got = recv(fd, &head, sizeof(head), 0);

	close(fd);
	return got > 0 ? head.result : -ENOTCONN;
}

static void setup_lru(void)
{
	fx_setup();
	fx_configure_lru("only=$/a");
	fx_open();
	fx_start();
	fx_set_terms();
	fx_serve();
	setup_peer();
}

UNIT_FIXTURE(.setup = setup_lru, .teardown = fx_teardown);

/* file, and other, which is not there. */
static void expect_both(void)
{
	const struct ucm_id ids[] = { file.key.id, other.key.id };
	int32_t results[2];

	ck_assert_int_eq(ucm_client_ids(client, UCM_SERVE_TOUCH, NULL,
					UCM_TOUCH_EXPECTED, ids, 2, results),
			 0);
	ck_assert_int_eq(results[0], 0);
	ck_assert_int_eq(results[1], -ENOENT);
}

/* The policy counts a request once, however often it asks, and with the open after
 * it; the entry counts the open alone. */
UNIT_TEST(what_is_expected_is_one_use)
{
	uint8_t wanted = fx_entry(&file).wanted;

	expect_both();
	ck_assert_uint_eq(fx_entry(&file).wanted, wanted + 1);
	expect_both();
	ck_assert_uint_eq(fx_entry(&file).uses, 0);
	ck_assert_int_eq(one(UCM_SERVE_TOUCH, &file), 0);
	ck_assert_uint_eq(fx_entry(&file).uses, 1);
	ck_assert_uint_eq(fx_entry(&file).wanted, wanted + 1);
}

static void setup_back(void)
{
	fx_setup();
	fx_configure("fast=$/a:slow=$/b");
	fx_option("write", "fast:back");
	fx_open();
	fx_start();
	fx_set_terms();
	fx_serve();
	setup_peer();
}

UNIT_FIXTURE(.setup = setup_back, .teardown = fx_teardown);

UNIT_TEST(a_flush_copies_what_lies_above)
{
	ck_assert_int_eq(call(UCM_SERVE_FLUSH, 0, NULL, 0, NULL), 0);
	ck_assert_uint_ne(fx_entry(&file).copy, 0);
}

UNIT_TEST(a_flush_is_answered_when_all_is_below)
{
	int fd;

	set_scanned(false);
	ck_assert_int_eq(fx_commit(&other), 0);
	fd = begin_flush();
	fx_wait(is_taken, &fd);
	ck_assert_uint_eq(fx_entry(&other).copy, 0);
	set_scanned(true);
	ck_assert_int_eq(end_of(fd), 0);
	ck_assert_uint_ne(fx_entry(&other).copy, 0);
}

UNIT_TEST(a_flush_ends_when_its_peer_has_gone)
{
	int fd;

	close_client();
	fx_wait_alone();
	set_scanned(false);
	ck_assert_int_eq(fx_commit(&other), 0);
	fd = begin_flush();
	fx_wait(is_taken, &fd);
	ck_assert_uint_eq(ucm_server_peers(fx_server), 1);
	close(fd);
	fx_wait_alone();
	ck_assert_uint_eq(fx_entry(&other).copy, 0);
	set_scanned(true);
}

UNIT_TEST(a_flush_ends_when_the_server_stops)
{
	int fd;

	set_scanned(false);
	ck_assert_int_eq(fx_commit(&other), 0);
	fd = begin_flush();
	fx_wait(is_taken, &fd);
	fx_stop_serving();
	ck_assert_int_eq(end_of(fd), -ENOTCONN);
	ck_assert_uint_eq(fx_entry(&other).copy, 0);
	set_scanned(true);
	fx_serve();
}
