/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_serve.c - requests of any bytes, by one peer after another, of several users:
 * each is answered as ucm-serve(7) says, and a peer that has gone leaves no draft.
 *
 * The store is a real one, of two directories in memory, and stays from input to input.
 * The first byte of an input is the user. A message is a head (what becomes of the
 * files that CREATE gives; the length) and its bytes.
 */
#include <config.h>

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/osfile.h"
#include "fs/config/config.h"
#include "fs/serve/peer.h"
#include "tests/fuzz/require.h"

#define WRITE_BLOCK 1u /* what CREATE gives becomes a whole block */
#define WRITE_BYTES 2u /* or something */
#define STAYS_OPEN 4u  /* and is closed late */

static char root[] = "/dev/shm/ucmfs-fuzz.XXXXXX";
static struct ucm_config config;
static struct ucm_store *store;
static struct ucm_server_terms terms;

static const struct ucm_geometry geometry = {
	.num_layers = 2, .block_size = 4, .dtype = UCM_DTYPE_FLOAT16,
	.k_bytes = 128, .v_bytes = 128, .num_kv_heads = 2, .head_dim = 8,
};

/* ---- the store ---- */

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *walk)
{
	(void)st, (void)type, (void)walk;
	return remove(path);
}

static void end(void)
{
	ucm_store_close(store);
	ucm_config_fini(&config);
	nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static char *text(void *arg, uint32_t what, size_t *len_out)
{
	(void)arg, (void)what;
	*len_out = 4;
	return strdup("text");
}

static void no_log(enum ucm_log_level level, const char *line)
{
	(void)level, (void)line;
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct ucm_error error = { "" };
	char source[200];

	(void)argc, (void)argv;
	ucm_log_set(no_log, UCM_LOG_ERROR);
	REQUIRE(mkdtemp(root));
	ucm_config_init(&config);
	snprintf(source, sizeof(source), "%s/a", root);
	REQUIRE(!mkdir(source, 0700));
	snprintf(source, sizeof(source), "%s/b", root);
	REQUIRE(!mkdir(source, 0700));
	snprintf(source, sizeof(source), "fast=%s/a:slow=%s/b", root, root);
	REQUIRE(!ucm_config_source(&config, source, &error));
	REQUIRE(!ucm_config_set(&config, "checkpoint", "0", &error));
	REQUIRE(!ucm_store_open(&config, &store, &error));
	atexit(end);
	REQUIRE(!ucm_store_start(store));
	while (!atomic_load(&store->scan.complete))
		sched_yield();
	terms = (struct ucm_server_terms){
		.store = store,
		.others = true,
		.index_fd = -1,
		.budget_fd = ucm_os_memory_of("budget",
					      UCM_CONTROL_BUDGET_BYTES),
		.budget_bytes = UCM_CONTROL_BUDGET_BYTES,
		.text = text,
	};
	return 0;
}

static unsigned num_temps;

static int count_temp(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)path, (void)st, (void)ftw;
	num_temps += type == FTW_F;
	return 0;
}

static unsigned temps_in(const char *dir)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s/.ucmfs/tmp", root, dir);
	num_temps = 0;
	REQUIRE(!nftw(path, count_temp, 4, FTW_PHYS));
	return num_temps;
}

/* ---- a peer ---- */

/* Files that are closed when the next message has been answered. */
static int open_fds[UCM_SERVE_DESCRIPTORS];
static unsigned num_open;

static void close_late(void)
{
	while (num_open)
		REQUIRE(!close(open_fds[--num_open]));
}

static void write_block(int fd, const struct ucm_id *id)
{
	static uint8_t bytes[32768];
	struct ucm_block block = {
		.geometry = geometry,
		.id = *id,
		.form = UCM_FORM_PAGED,
		.data_offset = ucm_block_data_offset(geometry.num_layers),
	};

	memset(bytes, id->bytes[0], sizeof(bytes));
	REQUIRE(!ucm_block_encode(&block, bytes + block.data_offset, bytes,
				  block.data_offset));
	REQUIRE(pwrite(fd, bytes, ucm_block_file_size(&block), 0) > 0);
}

/* Of a CREATE, or any other answer. */
static void use_descriptors(const struct ucm_exchange *exchange, unsigned how)
{
	const struct ucm_serve_created *created = exchange->out;
	const struct ucm_id *ids = exchange->items;
	unsigned at = 0;

	if (exchange->num_fds && exchange->request->verb == UCM_SERVE_CREATE) {
		for (uint32_t i = 0; i < exchange->request->num; i++) {
			if (created[i].result)
				continue;
			if (how & WRITE_BLOCK)
				write_block(exchange->fds[at], &ids[i]);
			else if (how & WRITE_BYTES)
				REQUIRE(pwrite(exchange->fds[at], ids, 16,
					       how) == 16);
			at++;
		}
		REQUIRE(at == exchange->num_fds);
	}
	for (unsigned i = 0; i < exchange->num_fds; i++) {
		REQUIRE(fcntl(exchange->fds[i], F_GETFD) == FD_CLOEXEC);
		if (how & STAYS_OPEN)
			open_fds[num_open++] = exchange->fds[i];
		else
			REQUIRE(!close(exchange->fds[i]));
	}
}

static void check_answer(const struct ucm_exchange *exchange,
			 const struct ucm_serve_answer *head)
{
	REQUIRE(head->result <= 0 && head->result > -4096);
	REQUIRE(head->descriptors == exchange->num_fds);
	REQUIRE(exchange->num_fds <= UCM_SERVE_DESCRIPTORS);
	REQUIRE(sizeof(*head) + exchange->out_size <= UCM_SERVE_MESSAGE_MAX);
	REQUIRE(!head->result ||
		(!head->num && !exchange->out_size && !exchange->num_fds));
}

static void ask(struct ucm_peer *peer, unsigned how, const uint8_t *bytes,
		size_t size)
{
	struct ucm_serve_answer head = { 0 };
	struct ucm_exchange exchange = { .peer = peer };
	/* exactly: what is behind it is found */
	uint8_t *message = malloc(size < sizeof(struct ucm_serve_request)
					  ? sizeof(struct ucm_serve_request)
					  : size);

	REQUIRE(message);
	memcpy(message, bytes, size);
	exchange.request = (void *)message;
	exchange.items = message + sizeof(struct ucm_serve_request);
	ucm_peer_serve(&exchange, size, &head);
	close_late();
	check_answer(&exchange, &head);
	use_descriptors(&exchange, how);
	free(exchange.out);
	free(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uid_t users[] = { 0, 4321, 4322 };
	struct ucm_peer peer = { .terms = &terms };
	int ends[2];

	if (size < 1)
		return 0;
	REQUIRE(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	close(ends[1]); /* so that what takes long ends */
	peer.fd = ends[0];
	peer.uid = peer.gid = users[*data % 3];
	data++, size--;
	while (size >= 3) {
		unsigned how = data[0];
		size_t len = data[1] | (size_t)data[2] << 8;

		data += 3, size -= 3;
		if (len > size)
			len = size;
		ask(&peer, how, data, len);
		data += len, size -= len;
	}
	close_late();
	ucm_peer_drop(&peer, 0);
	REQUIRE(!peer.drafts);
	close(ends[0]);
	REQUIRE(!temps_in("a") && !temps_in("b"));
	return 0;
}
