/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_source.c - where block files lie: in the tiers; and whether a daemon is
 * there. (The rest of that is tested by tests/integration/load-*.sh.)
 */
#include <config.h>

#include "gpu/source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/medium/memory/memory.h"
#include "tests/unit/fake_server.h"
#include "tests/unit/load_fixture.h"
#include "tests/unit/random.h"

static const struct ucm_source_ops *const ops = &ucm_source_tiers;

static struct ucm_source *open_tiers(const char *text)
{
	struct ucm_source *source;
	struct ucm_error error = { "" };

	ck_assert_msg(!ops->open(fx_path("%s", text), &source, &error), "%s",
		      error.text);
	return source;
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(a_directory_tells_what_it_is)
{
	int fd = open("/dev/shm", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct ucm_dir dir = { 0 };
	uint32_t align;

	ck_assert_int_ge(fd, 0);
	ucm_dir_init(&dir, fd);
	ck_assert(dir.memory && !dir.no_direct);
	close(fd);
	fd = open(fx_path("$"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ucm_dir_init(&dir, fd);
	align = ucm_dir_align(&dir, fd);
	ck_assert_uint_ge(align, 4096);
	ck_assert_uint_eq(align & (align - 1), 0);
	close(fd);
	ck_assert_uint_eq(ucm_dir_align(&dir, -1), align); /* remembered */
}

static struct ucm_given open_one(struct ucm_source *source, unsigned n)
{
	struct ucm_given given = { .fd = -EINVAL };
	struct ucm_id id = lf_id(n);

	ops->descriptors(source, "", &id, 1, &given);
	return given;
}

static unsigned directory_of(struct ucm_source *source, unsigned n)
{
	struct ucm_where where = { .directory = UCM_DIRECTORIES };
	struct ucm_id id = lf_id(n);

	return ops->where(source, "", &id, &where) ? where.directory
						   : UCM_DIRECTORIES;
}

/* A block is found wherever it lies; no other tier hides it, nor does a folder. */
UNIT_TEST(every_directory_is_looked_into)
{
	static const char *const paths[] = { "$/a", "$/b", "$/c" };
	struct ucm_source *source;
	struct ucm_given given;

	lf_tier("a=$/a,$/b:c=$/c");
	source = open_tiers("a=$/a,$/b:c=$/c");
	for (unsigned n = 0; n < 30; n++) {
		struct ucm_id id = lf_id(n);

		must(directory_of(source, n) == UCM_DIRECTORIES);
		must(open_one(source, n).fd == -ENOENT);
		must(ops->look(source, "", &id) == 0);
		lf_plant(paths[n % 3], &lf_geometry, n);
		must(directory_of(source, n) == n % 3);
		given = open_one(source, n);
		must(given.fd >= 0 && given.directory == n % 3 && given.local);
		close(given.fd);
		must(ops->look(source, "", &id) == 1);
	}
	lf_plant("$/c", &lf_geometry, 0); /* in two: the first tier's */
	given = open_one(source, 0);
	must(given.fd >= 0 && given.directory == 0);
	close(given.fd);
	ck_assert(!ops->lost(source));
	ops->close(source);
}

/* What a broken directory has may be the block: that is no miss, unless another
 * one has it. */
UNIT_TEST(a_directory_that_cannot_say_is_no_miss)
{
	struct ucm_source *source;
	struct ucm_given given;
	struct ucm_id id;

	lf_tier("a=$/a:c=$/c");
	source = open_tiers("a=$/a:c=$/c");
	id = lf_id(0);
	lf_plant("$/a", &lf_geometry, 0);
	ck_assert_int_eq(unlink(lf_path("$/a", 0)), 0);
	fx_fail("open", 1, -EIO, true);
	ck_assert_int_eq(open_one(source, 0).fd, -EIO);
	lf_plant("$/c", &lf_geometry, 0);
	fx_fail("open", 1, -EIO, true);
	given = open_one(source, 0);
	ck_assert_int_ge(given.fd, 0);
	close(given.fd);
	ck_assert_int_eq(ops->look(source, "", &id), 1);
	ops->close(source);
}

static const char *const bad[] = {
	"", "$/nowhere", "a=", "$/a,", "$/file", "a=$/a:a=$/b",
};

UNIT_TEST(bad_tiers_are_refused_with_the_cause, .rows = NUM_ROWS(bad))
{
	struct ucm_source *source = NULL;
	struct ucm_error error = { "" };

	lf_tier("a=$/a:b=$/b");
	fx_put(fx_path("$/file"), "x", 1);
	ck_assert_int_lt(ops->open(fx_path("%s", bad[_i]), &source, &error), 0);
	ck_assert_ptr_null(source);
	ck_assert_str_ne(error.text, "");
	ck_assert_int_lt(ops->open(fx_path("%s", bad[_i]), &source, NULL), 0);
}

UNIT_TEST(what_is_no_mount_is_refused)
{
	struct ucm_source *source = NULL;
	struct ucm_error error = { "" };

	ck_assert_int_eq(ucm_source_socket.open(fx_path("$"), &source, &error),
			 -ENOTCONN);
	ck_assert_ptr_nonnull(strstr(error.text, "no mount of ucmfs"));
	ck_assert_int_eq(
		ucm_source_socket.open(fx_path("$/nowhere"), &source, &error),
		-ENOENT);
	fx_put(fx_path("$/file"), "x", 1);
	ck_assert_int_eq(
		ucm_source_socket.open(fx_path("$/file"), &source, &error),
		-ENOTCONN);
	ck_assert_ptr_null(source);
}

UNIT_TEST(spaces_are_there_or_not)
{
	struct ucm_source *source;

	lf_tier("$/a");
	fx_mkdirs(fx_path("$/a/spaces/llama"));
	source = open_tiers("$/a");
	ck_assert_int_eq(ops->check_space(source, ""), 0);
	ck_assert_int_eq(ops->check_space(source, "llama"), 0);
	ck_assert_int_eq(ops->check_space(source, "qwen"), -ENOENT);
	ops->close(source);
}

static int draft_of(struct ucm_source *source, unsigned n,
		    struct ucm_draft **draft)
{
	struct ucm_id id = lf_id(n);

	return ops->create(source, "", &id, 0, draft);
}

/* Returns what was written. */
static struct ucm_block write_block(int fd, unsigned n, size_t less)
{
	struct ucm_block block;
	size_t len;
	uint8_t *bytes = lf_file(&lf_geometry, n, FX_PAGED, &len);

	ck_assert_int_eq(pwrite(fd, bytes, len - less, 0), len - less);
	ck_assert_int_eq(ucm_block_parse(bytes, len, len, &block), 0);
	free(bytes);
	return block;
}

UNIT_TEST(drafts_become_blocks_or_nothing)
{
	struct ucm_source *source;
	struct ucm_draft *draft;
	int fd;

	lf_tier("$/a");
	source = open_tiers("$/a");
	/* dropped */
	fd = draft_of(source, 1, &draft);
	ck_assert_int_ge(fd, 0);
	write_block(fd, 1, 0);
	ops->drop(source, draft);
	close(fd);
	ck_assert(!fx_exists(lf_path("$/a", 1)));
	/* not whole */
	fd = draft_of(source, 1, &draft);
	write_block(fd, 1, 1);
	ck_assert_int_eq(ops->commit(source, draft, fd, NULL, 0), -EINVAL);
	ck_assert(!fx_exists(lf_path("$/a", 1)));
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 0);
	/* whole */
	fd = draft_of(source, 1, &draft);
	write_block(fd, 1, 0);
	ck_assert_int_eq(ops->commit(source, draft, fd, NULL, 0), 0);
	close(fd);
	ck_assert(lf_saved("$/a", &lf_geometry, 1));
	/* once */
	ck_assert_int_eq(draft_of(source, 1, &draft), -EEXIST);
	ck_assert_uint_eq(fx_count_files(fx_path("$/a/.ucmfs/tmp")), 0);
	ops->close(source);
}

static bool can_create(void *arg)
{
	struct ucm_draft *draft;
	int fd = draft_of(arg, 2, &draft);

	if (fd < 0)
		return false;
	ops->drop(arg, draft);
	close(fd);
	return true;
}

/* A daemon that has the tiers keeps others from writing, for as long. */
/* By a process that has no socket. */
UNIT_TEST(tiers_in_use_are_tried_again)
{
	struct ucm_source *source;
	struct ucm_draft *draft;

	lf_tier("$/a");
	fx_store("$/a");
	source = open_tiers("$/a");
	ck_assert_int_eq(draft_of(source, 1, &draft), -EBUSY);
	fx_close();
	fx_wait(can_create, source);
	ops->close(source);
}

UNIT_TEST(several_save_at_once)
{
	struct ucm_source *first, *second;
	struct ucm_draft *draft;
	struct ucm_block block;
	int fd;

	lf_tier("$/a");
	first = open_tiers("$/a");
	second = open_tiers("$/a");
	ck_assert(can_create(first));
	fd = draft_of(second, 1, &draft);
	ck_assert_int_ge(fd, 0);
	block = write_block(fd, 1, 0);
	ck_assert_int_eq(ops->commit(second, draft, fd, NULL, 0), 0);
	close(fd);
	ck_assert_int_eq(draft_of(first, 1, &draft), -EEXIST);
	ck_assert_int_eq(ops->remove(first, "", &block.id), 0);
	fd = draft_of(second, 1, &draft);
	ck_assert_int_ge(fd, 0);
	ops->drop(second, draft);
	close(fd);
	ops->close(first);
	ops->close(second);
}

/* ---- look-ups, with a source that is an array ---- */

#define MOST 300

struct ucm_source {
	int look_err; /* 0: looks say what is there */
	bool there[MOST], unknown[MOST];
	bool has_index;
	unsigned asked; /* questions to the index */
	unsigned looked; /* each of these is one block */
};

static size_t number_of(const struct ucm_id *id)
{
	return (size_t)id->bytes[0] << 8 | id->bytes[1];
}

static int array_look(struct ucm_source *source, const char *space,
		      const struct ucm_id *id)
{
	(void)space;
	source->looked++;
	return source->look_err ? source->look_err
				: source->there[number_of(id)];
}

static int array_prefix(struct ucm_source *source, const char *space,
			const struct ucm_id *ids, size_t num, size_t *count_out,
			bool *unknown_out)
{
	size_t i = 0, at = number_of(ids);

	(void)space;
	source->asked++;
	if (!source->has_index)
		return -ENOTCONN;
	while (i < num && source->there[at + i] && !source->unknown[at + i])
		i++;
	*count_out = i;
	*unknown_out = i < num && source->unknown[at + i];
	return 0;
}

static const struct ucm_source_ops array_ops = {
	.name = "array", .look = array_look, .prefix = array_prefix,
};

static struct ucm_id array_ids[MOST];

static struct ucm_source *new_array(bool has_index)
{
	struct ucm_source *source = calloc(1, sizeof(*source));

	ck_assert_ptr_nonnull(source);
	source->has_index = has_index;
	for (size_t i = 0; i < MOST; i++) {
		source->there[i] = true;
		array_ids[i].bytes[0] = (uint8_t)(i >> 8);
		array_ids[i].bytes[1] = (uint8_t)i;
	}
	return source;
}

static size_t prefix_of(struct ucm_source *source)
{
	size_t count = MOST + 1;

	source->asked = source->looked = 0;
	ck_assert_int_eq(ucm_source_prefix(&array_ops, source, "", array_ids,
					   MOST, &count), 0);
	return count;
}

UNIT_TEST(a_prefix_is_one_question)
{
	struct ucm_source *source = new_array(true);

	ck_assert_uint_eq(prefix_of(source), MOST);
	ck_assert_uint_eq(source->asked, 1);
	source->there[200] = false;
	ck_assert_uint_eq(prefix_of(source), 200);
	ck_assert_uint_eq(source->asked, 1);
	ck_assert_uint_eq(source->looked, 0);
	free(source);
}

UNIT_TEST(what_the_index_does_not_know_is_looked_at)
{
	struct ucm_source *source = new_array(true);

	source->unknown[0] = source->unknown[7] = true;
	source->unknown[MOST - 1] = true;
	ck_assert_uint_eq(prefix_of(source), MOST);
	ck_assert_uint_eq(source->looked, 3);
	source->there[7] = false;
	ck_assert_uint_eq(prefix_of(source), 7);
	ck_assert_uint_eq(source->asked, 2);
	ck_assert_uint_eq(source->looked, 2);
	free(source);
}

UNIT_TEST(without_an_index_places_are_looked_at_up_to_the_first_gap)
{
	struct ucm_source *source = new_array(false);

	source->there[20] = false;
	ck_assert_uint_eq(prefix_of(source), 20);
	ck_assert_uint_eq(source->asked, 1);
	ck_assert_uint_eq(source->looked, 21);
	free(source);
}

UNIT_TEST(a_prefix_is_what_each_lookup_says)
{
	struct ucm_source *source = new_array(true);
	uint64_t random = random_case(0);

	for (int round = 0; round < 200; round++) {
		uint8_t found[MOST];
		size_t want = 0;

		for (size_t i = 0; i < MOST; i++) {
			source->there[i] = random_next(&random) % 64 != 0;
			source->unknown[i] = random_next(&random) % 16 == 0;
		}
		ck_assert_int_eq(ucm_source_lookup(&array_ops, source, "",
						   array_ids, MOST, found), 0);
		while (want < MOST && found[want])
			want++;
		ck_assert_uint_eq(prefix_of(source), want);
	}
	free(source);
}

UNIT_TEST(a_prefix_that_cannot_be_learned_is_an_error)
{
	struct ucm_source *source = new_array(false);
	size_t count = 77;

	source->look_err = -EBADF;
	ck_assert_int_eq(ucm_source_prefix(&array_ops, source, "", array_ids, 1,
					   &count), -EBADF);
	ck_assert_uint_eq(count, 77);
	ck_assert_int_eq(ucm_source_prefix(&array_ops, source, "", array_ids, 0,
					   &count), 0);
	ck_assert_uint_eq(count, 0);
	free(source);
}

/* ---- a daemon ---- */

static bool is_back(void *source)
{
	return ucm_source_socket.lost(source);
}

/* For all that ask together, not for the first of them alone. */
UNIT_TEST(a_daemon_that_is_back_is_back_for_all)
{
	struct fake_server server = FAKE_SERVER;
	struct ucm_source *source;

	fake_server_start(&server, fx_path("$/s"));
	ck_assert_int_eq(
		ucm_source_socket.open(fx_path("$/s"), &source, NULL), 0);
	fake_server_stop(&server);
	for (unsigned i = 0; i < 3; i++)
		ck_assert(!is_back(source));
	ck_assert(fx_logged("the daemon has gone"));
	ck_assert_int_eq(unlink(fx_path("$/s")), 0);
	server = FAKE_SERVER;
	fake_server_start(&server, fx_path("$/s"));
	fx_wait(is_back, source);
	ck_assert(fx_logged("the daemon is back"));
	fx_clear_log();
	for (unsigned i = 0; i < 3; i++)
		ck_assert(is_back(source));
	ck_assert(!fx_logged("the daemon"));
	ucm_source_socket.close(source);
	fake_server_stop(&server);
}

static void all_are_there(const struct ucm_serve_request *request,
			  const void *items, struct fake_answer *out)
{
	const struct ucm_serve_created there = { .result = -EEXIST };

	(void)items;
	ck_assert_uint_eq(request->verb, UCM_SERVE_CREATE);
	for (uint32_t i = 0; i < request->num; i++)
		fake_put(out, &there, sizeof(there));
}

static void opens_from_nowhere(const struct ucm_serve_request *request,
			       const void *items, struct fake_answer *out)
{
	const struct ucm_serve_opened opened = { .directory = UINT16_MAX };

	(void)items;
	if (request->verb != UCM_SERVE_OPEN) {
		out->result = -ENOENT;
		return;
	}
	fake_put(out, &opened, sizeof(opened));
	out->fd = STDERR_FILENO;
}

/* There are fewer directories. */
UNIT_TEST(a_directory_that_cannot_be_is_not_known)
{
	struct fake_server server = FAKE_SERVER;
	struct ucm_id id = lf_id(1);
	struct ucm_source *source;
	struct ucm_given given;

	server.answer = opens_from_nowhere;
	fake_server_start(&server, fx_path("$/s"));
	ck_assert_int_eq(
		ucm_source_socket.open(fx_path("$/s"), &source, NULL), 0);
	ucm_source_socket.descriptors(source, "", &id, 1, &given);
	ck_assert_int_ge(given.fd, 0);
	ck_assert_uint_eq(given.directory, UCM_DIRECTORIES);
	close(given.fd);
	ucm_source_socket.close(source);
	fake_server_stop(&server);
}

/* It knows none of the connections of before, whichever is next. */
UNIT_TEST(a_daemon_that_is_back_takes_the_first_block)
{
	struct fake_server server = FAKE_SERVER;
	struct ucm_id id = lf_id(1);
	struct ucm_source *source;
	struct ucm_draft *draft;

	server.answer = all_are_there;
	fake_server_start(&server, fx_path("$/s"));
	ck_assert_int_eq(
		ucm_source_socket.open(fx_path("$/s"), &source, NULL), 0);
	for (unsigned i = 0; i < 5; i++)
		ck_assert_int_eq(ucm_source_socket.create(source, "", &id, 0,
							  &draft),
				 -EEXIST);
	fake_server_stop(&server);
	ck_assert_int_eq(unlink(fx_path("$/s")), 0);
	server = FAKE_SERVER;
	server.answer = all_are_there;
	fake_server_start(&server, fx_path("$/s"));
	ck_assert_int_eq(
		ucm_source_socket.create(source, "", &id, 0, &draft), -EEXIST);
	ucm_source_socket.close(source);
	fake_server_stop(&server);
}
