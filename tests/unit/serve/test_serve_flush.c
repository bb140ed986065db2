/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_serve_flush.c - requests that are counted once, and flushes that wait.
 */
#include <config.h>

#include "common/clock.h"
#include "tests/unit/serve/peer_fixture.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

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

UNIT_FIXTURE(.setup = setup_lru, .teardown = fx_teardown);

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

/* Nor does one count that wants it kept. */
UNIT_TEST(what_is_kept_for_a_time_is_no_use)
{
	const struct ucm_serve_request head = {
		.verb = UCM_SERVE_TOUCH,
		.flags = UCM_TOUCH_EXPECTED,
		.argument = 60000,
	};
	uint8_t wanted = fx_entry(&file).wanted;
	int32_t result = -1;

	ck_assert_int_eq(ucm_client_items(client, &head, NULL, &file.key.id, 16,
					  1, &result, sizeof(result)), 0);
	ck_assert_int_eq(result, 0);
	ck_assert_uint_eq(fx_entry(&file).wanted, wanted);
	ck_assert(ucm_expected_has(&fx_set->holds.expected, fx_ref(&file),
				   ucm_monotonic_ms() + 50000));
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
