/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fixture.c - see serve_fixture.h. */
#include <config.h>

#include "tests/unit/serve_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/index/memory.h"

struct ucm_server_terms fx_terms;
struct ucm_server *fx_server;
static char socket_path[108];

static void close_memory(void)
{
	close(fx_terms.budget_fd);
}

void fx_set_terms(void)
{
	struct ucm_index_memory *live = ucm_index_live(fx_set->index);

	fx_terms = (struct ucm_server_terms){
		.store = fx_set,
		.others = true,
		.index_fd = live->fd,
		.index_bytes = ucm_index_memory_size(live),
		.budget_fd = ucm_os_memory_of("budget",
					      UCM_CONTROL_BUDGET_BYTES),
		.budget_bytes = UCM_CONTROL_BUDGET_BYTES,
	};
	ck_assert_int_ge(fx_terms.budget_fd, 0);
	fx_at_end(close_memory);
	snprintf(socket_path, sizeof(socket_path), "%s", fx_path("$/socket"));
}

const char *fx_socket(void)
{
	return socket_path;
}

void fx_stop_serving(void)
{
	ck_assert(ucm_server_stop(fx_server, 10000));
	fx_server = NULL;
}

void fx_serve(void)
{
	ck_assert_int_eq(ucm_server_start(&fx_terms, fx_socket(), -1,
					  &fx_server), 0);
	fx_at_end(fx_stop_serving);
}

void fx_setup_served(void)
{
	fx_setup();
	fx_store("fast=$/a:slow=$/b");
	fx_set_terms();
	fx_serve();
}

static bool is_alone(void *arg)
{
	(void)arg;
	return ucm_server_peers(fx_server) == 0;
}

void fx_wait_alone(void)
{
	fx_wait(is_alone, NULL);
}

/* ---- peers ---- */

struct ucm_client *fx_client(void)
{
	struct ucm_client *client;

	ck_assert_int_eq(ucm_client_connect(fx_socket(), &client), 0);
	return client;
}

int fx_dial(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const char *path = fx_socket();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(strlen(path) < sizeof(address.sun_path));
	strcpy(address.sun_path, path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&address,
				 sizeof(address)), 0);
	return fd;
}

static void take_fds(struct msghdr *message, int *fds)
{
	struct cmsghdr *head = CMSG_FIRSTHDR(message);
	unsigned num = 0;

	for (; head; head = CMSG_NXTHDR(message, head)) {
		size_t len = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		int got[UCM_SERVE_DESCRIPTORS];

		memcpy(got, CMSG_DATA(head), len * sizeof(int));
		for (size_t i = 0; i < len; i++) {
			if (fds)
				fds[num++] = got[i];
			else
				close(got[i]);
		}
	}
}

ssize_t fx_ask(int fd, const void *message, size_t size,
	       struct ucm_serve_answer *head, void *items, size_t room,
	       int *fds)
{
	struct iovec parts[] = { { head, sizeof(*head) }, { items, room } };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(UCM_SERVE_DESCRIPTORS * sizeof(int))];
	} control;
	struct msghdr answer = {
		.msg_iov = parts,
		.msg_iovlen = 2,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got;

	if (send(fd, message, size, MSG_NOSIGNAL) < 0)
		return -errno;
	got = recvmsg(fd, &answer, MSG_CMSG_CLOEXEC);
	if (got < 0)
		return -errno;
	take_fds(&answer, fds);
	must(!(answer.msg_flags & MSG_CTRUNC));
	return got;
}

/* ---- blocks ---- */

static int write_all(int fd, const struct fx_file *file, size_t len)
{
	ssize_t put = pwrite(fd, file->bytes, len, 0);

	return (close(fd) || put != (ssize_t)len) ? -EIO : 0;
}

int fx_commit_draft(struct ucm_client *client, uint32_t draft)
{
	const struct ucm_serve_commit commit = { .draft = draft };
	int32_t result = 1;
	int err = ucm_client_commit(client, &commit, 1, &result);

	return err ? err : result;
}

int fx_put_block(struct ucm_client *client, const char *space,
		 const struct fx_file *file)
{
	struct ucm_serve_created created;
	int fd;
	int err = ucm_client_create(client, space, &file->key.id, 1, file->len,
				    &fd, &created);

	if (!err)
		err = fd < 0 ? fd : write_all(fd, file, file->len);
	return err ? err : fx_commit_draft(client, created.draft);
}

uint32_t fx_draft(struct ucm_client *client, const struct fx_file *file,
		  size_t len)
{
	struct ucm_serve_created created;
	int fd;

	ck_assert_int_eq(ucm_client_create(client, NULL, &file->key.id, 1,
					   file->len, &fd, &created), 0);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write_all(fd, file, len), 0);
	return created.draft;
}

int fx_open_one(struct ucm_client *client, const struct fx_file *file)
{
	int fd;
	int err = ucm_client_open(client, NULL, &file->key.id, 1, &fd, NULL);

	return err ? err : fd;
}

bool fx_has_bytes(int fd, const struct fx_file *file)
{
	uint8_t bytes[sizeof(file->bytes)];

	return pread(fd, bytes, sizeof(bytes), 0) == (ssize_t)file->len &&
	       !memcmp(bytes, file->bytes, file->len);
}

int fx_one_id(struct ucm_client *client, enum ucm_serve_verb verb,
	      const char *space, const struct fx_file *file)
{
	int32_t result = 0;
	int err = ucm_client_ids(client, verb, space, 0, &file->key.id, 1,
				 &result);

	return err ? err : result;
}

/* ---- what is left ---- */

unsigned fx_staged(void)
{
	unsigned num = 0;

	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++)
		num += fx_count_files(fx_path("%s/.ucmfs/tmp",
					      fx_set->dirs.at[dir]->path));
	return num;
}

/* Which directories open when the first file is made there, and keep. */
static bool is_folder_of_drafts(const char *name)
{
	char path[300], target[300];
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/self/fd/%s", name);
	len = readlink(path, target, sizeof(target) - 1);
	target[len < 0 ? 0 : len] = '\0';
	return len > 15 && !strncmp(target + len - 14, "/.ucmfs/tmp/", 12);
}

unsigned fx_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	const struct dirent *entry;
	unsigned num = 0;

	ck_assert_ptr_nonnull(dir);
	while ((entry = readdir(dir)))
		num += !is_folder_of_drafts(entry->d_name);
	closedir(dir);
	return num - 3; /* ".", ".." and its own */
}

static bool are_few(void *arg)
{
	return fx_descriptors() <= *(unsigned *)arg;
}

void fx_wait_descriptors(unsigned num)
{
	fx_wait(are_few, &num);
}

static bool is_called(const char *tid, const char *name)
{
	char path[300], text[32] = "";
	FILE *in;

	snprintf(path, sizeof(path), "/proc/self/task/%s/comm", tid);
	in = fopen(path, "re");
	if (!in)
		return false;
	if (!fgets(text, sizeof(text), in))
		text[0] = '\0';
	fclose(in);
	text[strcspn(text, "\n")] = '\0';
	return !strcmp(text, name);
}

unsigned fx_threads(const char *name)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	unsigned num = 0;

	ck_assert_ptr_nonnull(dir);
	while ((entry = readdir(dir)))
		num += is_called(entry->d_name, name);
	closedir(dir);
	return num;
}
