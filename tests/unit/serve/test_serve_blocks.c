/* SPDX-License-Identifier: Apache-2.0 */
/* test_serve_blocks.c - blocks by descriptors: open, create, commit, cancel. */
#include <config.h>

#include "tests/unit/serve/drafts_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- reading ---- */

#define MANY 640u /* three messages */

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(many_blocks_are_opened_in_their_order)
{
	static struct fx_file files[16];
	struct ucm_serve_opened opened[MANY];
	struct ucm_id ids[MANY];
	int fds[MANY];

	for (unsigned i = 0; i < NUM_ROWS(files); i++) {
		fx_block(&files[i], i + 1, i % 2 ? FX_PAGED : FX_PACKED);
		if (i % 3)
			ck_assert_int_eq(fx_commit(&files[i]), 0);
	}
	for (unsigned i = 0; i < MANY; i++)
		ids[i] = files[i % NUM_ROWS(files)].key.id;
	ck_assert_int_eq(ucm_client_open(client, NULL, ids, MANY, fds, opened),
			 0);
	for (unsigned i = 0; i < MANY; i++) {
		const struct fx_file *of = &files[i % NUM_ROWS(files)];

		if (i % NUM_ROWS(files) % 3 == 0) {
			must(fds[i] == -ENOENT && opened[i].result == -ENOENT);
			continue;
		}
		must(fx_has_bytes(fds[i], of));
		must(opened[i].size == of->len && opened[i].directory == 0 &&
		     opened[i].flags == UCM_OPENED_LOCAL);
		must(fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
		must((fcntl(fds[i], F_GETFL) & O_ACCMODE) == O_RDONLY);
		close(fds[i]);
	}
}

UNIT_TEST(an_open_is_counted_as_a_use)
{
	int fd;

	ck_assert_int_eq(fx_commit(&file), 0);
	fd = fx_open_one(client, &file);
	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert_uint_eq(fx_entry(&file).uses, 1);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.opens), 1);
}

UNIT_TEST(a_descriptor_does_not_hold_its_block, .rows = 2)
{
	static const enum ucm_serve_verb verbs[] = { UCM_SERVE_REMOVE,
						     UCM_SERVE_EVICT };
	int fd;

	ck_assert_int_eq(fx_commit(&file), 0);
	fd = fx_open_one(client, &file);
	ck_assert_int_eq(one(verbs[_i], &file), 0);
	ck_assert_int_eq(fx_open_one(client, &file), -ENOENT);
	ck_assert(fx_has_bytes(fd, &file));
	close(fd);
}

UNIT_TEST(a_descriptor_keeps_the_bytes_of_a_block_that_was_replaced)
{
	struct fx_file again = file;
	int old, new;

	again.bytes[again.len - 1] ^= 1;
	ck_assert_int_eq(ucm_block_encode(&again.block,
					  again.bytes + again.block.data_offset,
					  again.bytes, again.block.data_offset),
			 0);
	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
	old = fx_open_one(client, &file);
	ck_assert_int_eq(one(UCM_SERVE_REMOVE, &file), 0);
	ck_assert_int_eq(fx_put_block(client, NULL, &again), 0);
	new = fx_open_one(client, &file);
	ck_assert(fx_has_bytes(old, &file));
	ck_assert(fx_has_bytes(new, &again));
	close(old);
	close(new);
}

/* ---- writing ---- */

UNIT_TEST(a_committed_block_is_there, .rows = 5)
{
	static const enum fx_kind kinds[] = { FX_PAGED, FX_PACKED, FX_PAGED_RAW,
					      FX_PACKED_RAW, FX_BARE };
	int fd;

	fx_block(&file, 1, kinds[_i]);
	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
	fd = fx_open_one(second, &file);
	ck_assert(fx_has_bytes(fd, &file));
	close(fd);
	fx_serves(&file);
	fx_all_whole("$/a");
	ck_assert_uint_eq(fx_staged(), 0);
	ck_assert_uint_eq(atomic_load(&fx_set->writers), 0);
}

UNIT_TEST(many_blocks_are_created_and_committed_at_once)
{
	static struct fx_file files[300];
	struct ucm_serve_created created[300];
	struct ucm_serve_commit commits[300];
	struct ucm_id ids[300];
	int32_t results[300];
	int fds[300];

	for (unsigned i = 0; i < 300; i++) {
		fx_block(&files[i], i + 1, FX_PACKED);
		ids[i] = files[i].key.id;
	}
	ck_assert_int_eq(fx_commit(&files[7]), 0);
	ck_assert_int_eq(ucm_client_create(client, NULL, ids, 300,
					   files[0].len, fds, created), 0);
	for (unsigned i = 0; i < 300; i++) {
		commits[i] = (struct ucm_serve_commit){
			.draft = created[i].draft };
		if (i == 7)
			continue;
		must(pwrite(fds[i], files[i].bytes, files[i].len, 0) ==
		     (ssize_t)files[i].len);
		close(fds[i]);
	}
	ck_assert_int_eq(fds[7], -EEXIST);
	ck_assert_uint_eq(created[7].draft, 0);
	ck_assert_int_eq(ucm_client_commit(client, commits, 300, results), 0);
	for (unsigned i = 0; i < 300; i++) {
		must(results[i] == (i == 7 ? -EINVAL : 0));
		fx_serves(&files[i]);
	}
	ck_assert_uint_eq(fx_staged(), 0);
}

/* ---- a header that comes with the commit ---- */

static int commit_with(uint32_t draft, const struct fx_file *header, uint32_t len)
{
	struct ucm_serve_commit commit = { .draft = draft, .header_bytes = len };
	int32_t result = 1;
	int err;

	memcpy(commit.header, header->bytes, len);
	err = ucm_client_commit(client, &commit, 1, &result);
	return err ? err : result;
}

UNIT_TEST(a_header_that_is_sent_is_not_read)
{
	uint32_t draft = fx_draft(client, &file, file.len);

	fx_fail("read", 1, -EIO, true);
	ck_assert_int_eq(commit_with(draft, &file, UCM_BLOCK_PAGE), 0);
	fx_fail(NULL, 0, 0, false);
	fx_serves(&file);

	fx_block(&other, 2, FX_PAGED);
	draft = fx_draft(client, &other, other.len);
	fx_fail("read", 1, -EIO, true);
	ck_assert_int_eq(commit_with(draft, &other, 0), -EIO);
	fx_fail(NULL, 0, 0, false);
	fx_misses(&other);
	ck_assert_uint_eq(fx_staged(), 0);
}

enum { OTHERS_HEADER, HALF_A_HEADER, NO_EXTENSION, HALF_A_FILE, WRONG_HEADERS };

UNIT_TEST(a_header_that_is_sent_is_checked, .rows = WRONG_HEADERS)
{
	static const uint32_t lens[] = { 4096, 32, 128, 4096 };
	size_t len = _i == HALF_A_FILE ? file.len / 2 : file.len;
	uint32_t draft = fx_draft(client, &file, len);

	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(commit_with(draft, _i == OTHERS_HEADER ? &other : &file,
				     lens[_i]), -EINVAL);
	fx_misses(&file);
	fx_misses(&other);
	ck_assert_uint_eq(fx_staged(), 0);
}

UNIT_TEST(a_block_that_is_there_is_not_created)
{
	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
	ck_assert_int_eq(fx_put_block(client, NULL, &file), -EEXIST);
	ck_assert_uint_eq(fx_staged(), 0);
}

UNIT_TEST(of_two_writers_the_second_has_written_in_vain)
{
	uint32_t a = fx_draft(client, &file, file.len);
	uint32_t b = fx_draft(second, &file, file.len);

	ck_assert_int_eq(fx_commit_draft(client, a), 0);
	ck_assert_int_eq(fx_commit_draft(second, b), 0);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.commit_duplicates), 1);
	ck_assert_uint_eq(fx_staged(), 0);
	fx_serves(&file);
}

static void create_one(const struct fx_file *of, int *fd,
		       struct ucm_serve_created *created)
{
	ck_assert_int_eq(ucm_client_create(client, NULL, &of->key.id, 1,
					   of->len, fd, created), 0);
	ck_assert_int_eq(pwrite(*fd, of->bytes, of->len, 0),
			 (ssize_t)of->len);
}

UNIT_TEST(a_file_that_is_open_is_not_committed)
{
	struct ucm_serve_created created;
	int fd, copy;

	create_one(&file, &fd, &created);
	copy = dup(fd);
	ck_assert_int_eq(fx_commit_draft(client, created.draft), -EBUSY);
	close(fd);
	ck_assert_int_eq(fx_commit_draft(client, created.draft), -EBUSY);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 0);
	close(copy);
	ck_assert_int_eq(fx_commit_draft(client, created.draft), 0);
	fx_serves(&file);
}

UNIT_TEST(a_file_that_is_mapped_is_not_committed)
{
	struct ucm_serve_created created;
	char *bytes;
	int fd;

	create_one(&file, &fd, &created);
	bytes = mmap(NULL, file.len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert(bytes != MAP_FAILED);
	close(fd);
	ck_assert_int_eq(fx_commit_draft(client, created.draft), -EBUSY);
	munmap(bytes, file.len);
	ck_assert_int_eq(fx_commit_draft(client, created.draft), 0);
	fx_serves(&file);
}

/* Also where nobody has received it yet. */
UNIT_TEST(a_file_whose_descriptor_is_on_its_way_is_not_committed)
{
	struct {
		struct ucm_serve_request head;
		struct ucm_id id;
	} create = { { .verb = UCM_SERVE_CREATE, .num = 1, .bytes = 8192 },
		     file.key.id };
	struct {
		struct ucm_serve_request head;
		struct ucm_serve_commit item;
	} commit = { { .verb = UCM_SERVE_COMMIT, .num = 1 }, { .draft = 1 } };
	struct {
		struct ucm_serve_answer head;
		int32_t result;
	} answer;
	struct ucm_serve_created created;
	struct ucm_serve_answer head;
	int fd = fx_dial(), fds[UCM_SERVE_DESCRIPTORS] = { -1 };

	ck_assert_int_eq(send(fd, &create, sizeof(create), 0), sizeof(create));
	/* the answer to the create comes first */
	ck_assert_int_eq(fx_ask(fd, &commit, sizeof(commit), &head, &created,
				sizeof(created), fds),
			 sizeof(head) + sizeof(created));
	ck_assert_uint_eq(created.draft, 1);
	ck_assert_int_eq(recv(fd, &answer, sizeof(answer), 0), sizeof(answer));
	ck_assert_int_eq(answer.result, -EBUSY);
	close(fds[0]);
	close(fd);
}

/* What is wrong with it, and what is said then. */
static void damage(struct fx_file *of, int what)
{
	switch (what) {
	case 0: /* empty */
		of->len = 0;
		break;
	case 1: /* the last byte is missing */
		of->len--;
		break;
	case 2: /* no header */
		memset(of->bytes, 0xff, 64);
		break;
	case 3: /* another block's */
		memcpy(of->bytes, other.bytes, other.len);
		break;
	case 4: /* a header, and nothing else */
		of->len = 64;
		break;
	case 5: /* more than the block */
		of->len += 4096;
		break;
	}
}

UNIT_TEST(what_is_no_whole_block_is_not_committed, .rows = 6)
{
	uint32_t draft;

	damage(&file, _i);
	draft = fx_draft(client, &file, file.len);
	ck_assert_int_eq(fx_commit_draft(client, draft), -EINVAL);
	ck_assert_int_eq(one(UCM_SERVE_LOOKUP, &file), 0);
	ck_assert_uint_eq(fx_staged(), 0);
	/* it is gone */
	ck_assert_int_eq(fx_commit_draft(client, draft), -EINVAL);
}

UNIT_TEST(a_block_of_another_geometry_is_not_committed)
{
	struct ucm_geometry wide = fx_geometry;
	uint32_t draft;

	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
	wide.k_bytes *= 2;
	wide.v_bytes *= 2;
	wide.head_dim *= 2;
	fx_block_of(&other, 2, FX_PAGED, &wide);
	draft = fx_draft(client, &other, other.len);
	ck_assert_int_eq(fx_commit_draft(client, draft), -EINVAL);
	ck_assert_uint_eq(fx_staged(), 0);
}

UNIT_TEST(only_its_peer_commits_a_file)
{
	const struct ucm_serve_commit long_header = {
		.draft = 1,
		.header_bytes = UCM_BLOCK_PAGE + 1,
	};
	uint32_t draft = fx_draft(client, &file, file.len);
	int32_t result;

	ck_assert_int_eq(fx_commit_draft(second, draft), -EINVAL);
	ck_assert_int_eq(ucm_client_cancel(second, &draft, 1), 0);
	ck_assert_int_eq(fx_commit_draft(client, 0), -EINVAL);
	ck_assert_int_eq(fx_commit_draft(client, draft + 1), -EINVAL);
	ck_assert_int_eq(ucm_client_commit(client, &long_header, 1, &result), 0);
	ck_assert_int_eq(result, -EINVAL);
	ck_assert_int_eq(fx_commit_draft(client, draft), 0);
	ck_assert_int_eq(fx_commit_draft(client, draft), -EINVAL);
	fx_serves(&file);
}

UNIT_TEST(a_cancelled_file_is_gone)
{
	uint32_t drafts[] = { fx_draft(client, &file, 100), 77,
			      fx_draft(client, &other, 100) };

	ck_assert_uint_eq(fx_staged(), 2);
	ck_assert_int_eq(ucm_client_cancel(client, drafts, 3), 0);
	ck_assert_uint_eq(fx_staged(), 0);
	ck_assert_int_eq(fx_commit_draft(client, drafts[0]), -EINVAL);
	ck_assert_int_eq(fx_put_block(client, NULL, &file), 0);
}

static bool is_one(void *arg)
{
	(void)arg;
	return ucm_server_peers(fx_server) == 1;
}

UNIT_TEST(a_peer_that_goes_takes_its_files_with_it)
{
	uint32_t draft = fx_draft(second, &file, file.len);

	fx_draft(client, &file, file.len);
	fx_draft(client, &other, 10);
	ck_assert_uint_eq(fx_staged(), 3);
	ucm_client_close(client);
	client = NULL;
	fx_wait(is_one, NULL);
	ck_assert_uint_eq(fx_staged(), 1);
	ck_assert_int_eq(fx_commit_draft(second, draft), 0);
	fx_serves(&file);
	fx_misses(&other);
}

UNIT_TEST(a_server_that_stops_drops_what_is_not_committed)
{
	fx_draft(client, &file, file.len);
	fx_stop_serving();
	ck_assert_uint_eq(fx_staged(), 0);
	ck_assert_int_eq(fx_put_block(client, NULL, &other), -ENOTCONN);
	fx_serve();
}

UNIT_TEST(a_peer_has_so_many_files_and_no_more)
{
	struct ucm_serve_created created[UCM_SERVE_DESCRIPTORS];
	struct ucm_id ids[UCM_SERVE_DESCRIPTORS] = { { { 0 } } };
	int fds[UCM_SERVE_DESCRIPTORS];
	unsigned num = 0, refused = 0;
	uint32_t last = 0;

	for (unsigned i = 0; i < UCM_SERVE_DESCRIPTORS; i++)
		memcpy(ids[i].bytes, &i, sizeof(i));
	while (!refused) {
		ck_assert_int_eq(ucm_client_create(client, NULL, ids,
						   UCM_SERVE_DESCRIPTORS, 4096,
						   fds, created), 0);
		for (unsigned i = 0; i < UCM_SERVE_DESCRIPTORS; i++) {
			must(fds[i] >= 0 || fds[i] == -EMFILE);
			num += fds[i] >= 0;
			refused += fds[i] < 0;
			if (fds[i] < 0)
				continue;
			last = created[i].draft;
			close(fds[i]);
		}
	}
	ck_assert_uint_eq(num, UCM_SERVE_DRAFTS);
	ck_assert_uint_eq(fx_staged(), UCM_SERVE_DRAFTS);
	ck_assert_int_eq(fx_put_block(client, NULL, &file), -EMFILE);
	ck_assert_int_eq(fx_put_block(second, NULL, &file), 0);
	ck_assert_int_eq(ucm_client_cancel(client, &last, 1), 0);
	ck_assert_int_eq(fx_put_block(client, NULL, &other), 0);
}

UNIT_TEST(a_file_of_a_space_that_is_removed_is_none)
{
	const struct ucm_serve_request head = { .verb = UCM_SERVE_MKSPACE,
						.argument = 0755 };
	struct ucm_serve_created created;
	struct ucm_space *space;
	int fd;

	ck_assert_int_eq(ucm_client_items(client, &head, "s", NULL, 0, 0, NULL,
					  0), 0);
	ck_assert_int_eq(ucm_client_create(client, "s", &file.key.id, 1,
					   file.len, &fd, &created), 0);
	ck_assert_int_eq(pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	close(fd);
	space = ucm_namespace_find(&fx_set->names, "s");
	ck_assert_int_eq(ucm_store_rmdir(fx_set, space), 0);
	ck_assert_int_eq(fx_commit_draft(client, created.draft), -ENOENT);
	ck_assert_uint_eq(fx_staged(), 0);
}

/* ---- a lease that is broken ---- */

struct looking {
	const char *path;
	_Atomic bool stop;
};

/* Opens each new file that it sees, as a backup would. */
static void *look_main(void *arg)
{
	const struct looking *looking = arg;

	while (!atomic_load(&looking->stop)) {
		DIR *dir = opendir(looking->path);
		struct dirent *entry;

		while (dir && (entry = readdir(dir))) {
			int fd = openat(dirfd(dir), entry->d_name,
					O_RDONLY | O_CLOEXEC);

			if (fd >= 0)
				close(fd);
		}
		if (dir)
			closedir(dir);
		sched_yield();
	}
	return NULL;
}

UNIT_TEST(others_may_look_at_a_file_while_it_is_committed)
{
	struct looking looking = { .path = fx_path("$/a/.ucmfs/tmp") };
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, look_main,
					&looking), 0);
	for (unsigned i = 0; i < 500; i++) {
		uint32_t draft = fx_draft(client, &file, file.len);
		int err;

		do /* a reader is in the way, too, where the kernel says so */
			err = fx_commit_draft(client, draft);
		while (err == -EBUSY);
		ck_assert_int_eq(err, 0);
		must(!one(UCM_SERVE_REMOVE, &file));
	}
	atomic_store(&looking.stop, true);
	pthread_join(thread, NULL);
	ck_assert_uint_eq(fx_staged(), 0);
}
