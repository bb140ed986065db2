/* SPDX-License-Identifier: Apache-2.0 */
/* test_files_node.c - nodes of files/: names, paths, locks. */
#include <config.h>

#include "fs/files/node.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/unit.h"

static struct ucm_files_nodes nodes;
static struct ucm_files_lock lock;
static char path[PATH_MAX];
static uint64_t next_ino; /* of folders */

static void set_up(void)
{
	next_ino = 1000000;
	ucm_files_nodes_init(&nodes, 1);
}

static void nothing_is_left(void)
{
	ck_assert_ptr_null(nodes.table);
	ck_assert(LIST_EMPTY(&nodes.lost));
}

static void tear_down(void)
{
	ucm_files_nodes_fini(&nodes);
}

static struct ucm_files_node *look_up(struct ucm_files_node *parent,
				      const char *name, mode_t mode,
				      uint64_t ino, unsigned links)
{
	struct stat st = { .st_mode = mode, .st_ino = ino,
			   .st_nlink = links };

	return ucm_files_looked_up(&nodes, parent, name, &st);
}

static struct ucm_files_node *folder(struct ucm_files_node *parent,
				     const char *name)
{
	return look_up(parent, name, S_IFDIR | 0755, ++next_ino, 2);
}

static struct ucm_files_node *file(struct ucm_files_node *parent,
				   const char *name, uint64_t ino)
{
	return look_up(parent, name, S_IFREG | 0644, ino, 1);
}

static void path_is(struct ucm_files_node *node, const char *want)
{
	ck_assert_int_eq(ucm_files_lock_node(&nodes, node, &lock, path), 0);
	ck_assert_str_eq(path, want);
	ucm_files_unlock(&lock);
}

/* over: the file that has the new name, or 0. */
static int move(struct ucm_files_node *what, struct ucm_files_node *to,
		const char *newname, uint64_t over)
{
	struct ucm_files_pair pair = { .parent = { what->parent, to },
				       .name = { what->name, newname } };
	int err = ucm_files_lock_pair(&nodes, &pair, what->is_dir, &lock);

	if (err)
		return err;
	ucm_files_renamed(&nodes, &pair, strdup(newname), what->ino, over, -1);
	ucm_files_unlock(&lock);
	return 0;
}

UNIT_FIXTURE(.setup = set_up, .teardown = tear_down, .timeout = 60);

UNIT_TEST(a_path_is_made_of_names)
{
	struct ucm_files_node *d = folder(&nodes.root, "d");
	struct ucm_files_node *f = file(d, "f", 7);

	path_is(&nodes.root, "files");
	path_is(f, "files/d/f");
	ck_assert_int_eq(ucm_files_lock_name(&nodes, d, "new", &lock, path), 0);
	ck_assert_str_eq(path, "files/d/new");
	ucm_files_unlock(&lock);
}

static const struct {
	const char *name;
	int err;
} wrong_names[] = {
	{ "", -EINVAL },    { ".", -EINVAL }, { "..", -EINVAL },
	{ "a/b", -EINVAL }, { "/", -EINVAL },
};

UNIT_TEST(names_are_names, .rows = NUM_ROWS(wrong_names))
{
	char name[NAME_MAX + 2];

	ck_assert_int_eq(ucm_files_lock_name(&nodes, &nodes.root,
					     wrong_names[_i].name, &lock, path),
			 wrong_names[_i].err);
	memset(name, 'x', sizeof(name));
	name[NAME_MAX + 1] = '\0';
	ck_assert_int_eq(
		ucm_files_lock_name(&nodes, &nodes.root, name, &lock, path),
		-ENAMETOOLONG);
	name[NAME_MAX] = '\0';
	ck_assert_int_eq(
		ucm_files_lock_name(&nodes, &nodes.root, name, &lock, path), 0);
	ucm_files_unlock(&lock);
}

UNIT_TEST(a_path_has_an_end)
{
	struct ucm_files_node *node = &nodes.root;
	char name[200] = "";
	int err = 0;

	memset(name, 'x', sizeof(name) - 1);
	for (unsigned i = 0; i < 30 && !err; i++) {
		node = folder(node, name);
		err = ucm_files_lock_node(&nodes, node, &lock, path);
		if (err)
			break;
		ucm_files_unlock(&lock);
		ck_assert_uint_lt(strlen(path), PATH_MAX);
	}
	ck_assert_int_eq(err, -ENAMETOOLONG);
}

UNIT_TEST(what_is_looked_up_again_is_the_same)
{
	struct ucm_files_node *f = file(&nodes.root, "f", 7);
	struct ucm_files_node *d = folder(&nodes.root, "d");

	ck_assert_ptr_eq(file(&nodes.root, "f", 7), f);
	ck_assert_uint_eq(f->lookups, 2);
	/* replaced by others; and one that has the number of a removed one */
	ck_assert_ptr_ne(file(&nodes.root, "f", 8), f);
	ck_assert_ptr_ne(file(&nodes.root, "g", 7), f);
	ck_assert_int_eq(ucm_files_lock_node(&nodes, f, &lock, path), -ESTALE);
	/* a folder that others moved is what it was */
	ck_assert_ptr_eq(look_up(&nodes.root, "e", S_IFDIR, d->ino, 2), d);
	path_is(d, "files/e");
}

UNIT_TEST(no_folder_is_in_itself)
{
	struct ucm_files_node *d = folder(&nodes.root, "d");
	struct ucm_files_node *e = folder(d, "e");

	/* others made it look so, while e was where it is not any more */
	ck_assert_ptr_ne(look_up(e, "d", S_IFDIR, d->ino, 2), d);
	ck_assert_int_eq(ucm_files_lock_node(&nodes, e, &lock, path), -ESTALE);
}

UNIT_TEST(a_renamed_folder_takes_along_what_is_in_it)
{
	struct ucm_files_node *d = folder(&nodes.root, "d");
	struct ucm_files_node *e = folder(d, "e"), *f = file(e, "f", 2);

	ck_assert_int_eq(move(e, &nodes.root, "new", 0), 0);
	path_is(f, "files/new/f");
	ck_assert_ptr_eq(ucm_files_known(&nodes, e->ino), e);
}

UNIT_TEST(who_is_renamed_over_is_nameless)
{
	struct ucm_files_node *x = file(&nodes.root, "x", 2);
	struct ucm_files_node *y = file(&nodes.root, "y", 3);

	ck_assert_int_eq(move(x, &nodes.root, "y", 3), 0);
	ck_assert(y->nameless);
	ck_assert(!x->nameless);
	path_is(x, "files/y");
	ck_assert_ptr_null(ucm_files_known(&nodes, 3));
}

UNIT_TEST(nothing_is_made_in_a_folder_that_is_gone)
{
	struct ucm_files_node *d = folder(&nodes.root, "d");

	ucm_files_removed(&nodes, nodes.root.ino, "d", d->ino, -1);
	ck_assert_int_eq(ucm_files_lock_name(&nodes, d, "x", &lock, path),
			 -ENOENT);
}

/* ---- several names ---- */

UNIT_TEST(all_names_of_a_file_lead_to_one_node)
{
	struct ucm_files_node *d = folder(&nodes.root, "d");
	struct ucm_files_node *f = file(&nodes.root, "x", 7);

	ck_assert_ptr_eq(look_up(d, "y", S_IFREG, 7, 2), f);
	path_is(f, "files/d/y");
	/* one that it is not known by goes */
	ucm_files_removed(&nodes, nodes.root.ino, "x", 7, -1);
	path_is(f, "files/d/y");
	ucm_files_forget(&nodes, d, 1);
	ucm_files_forget(&nodes, f, 2);
	nothing_is_left();
}

UNIT_TEST(another_name_brings_back_a_nameless_one)
{
	struct ucm_files_node *f = file(&nodes.root, "x", 7);
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ucm_files_removed(&nodes, nodes.root.ino, "x", 7, fd);
	ck_assert(f->nameless);
	ck_assert_int_eq(f->fd, fd);
	ck_assert_ptr_eq(file(&nodes.root, "y", 7), f);
	path_is(f, "files/y");
	ck_assert_int_eq(f->fd, fd); /* somebody may be using it */
	ucm_files_removed(&nodes, nodes.root.ino, "y", 7,
			  open("/dev/null", O_RDONLY | O_CLOEXEC));
	ck_assert_int_eq(f->fd, fd);
	ucm_files_forget(&nodes, f, 2);
	nothing_is_left();
	ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
}

UNIT_TEST(what_is_forgotten_takes_no_room)
{
	struct ucm_files_node *d = folder(&nodes.root, "d"), *e, *f;

	e = folder(d, "e");
	f = file(e, "f", 2);
	file(e, "f", 2);
	ck_assert_uint_eq(HASH_COUNT(nodes.table), 3);
	ucm_files_forget(&nodes, e, 1); /* it has a child */
	ucm_files_forget(&nodes, d, 1);
	ucm_files_forget(&nodes, f, 1);
	ck_assert_uint_eq(HASH_COUNT(nodes.table), 3);
	path_is(f, "files/d/e/f");
	ucm_files_forget(&nodes, f, 1);
	nothing_is_left();
	ucm_files_forget(&nodes, &nodes.root, 1000);
	path_is(&nodes.root, "files");
}

UNIT_TEST(the_table_grows)
{
	static struct ucm_files_node *made[5000];
	char name[16];

	for (unsigned i = 0; i < NUM_ROWS(made); i++) {
		snprintf(name, sizeof(name), "%u", i);
		made[i] = file(&nodes.root, name, i + 2);
	}
	for (unsigned i = 0; i < NUM_ROWS(made); i++) {
		must(ucm_files_known(&nodes, i + 2) == made[i]);
		ucm_files_forget(&nodes, made[i], 1);
	}
	nothing_is_left();
}

/* ---- threads ---- */

#define ROUNDS 20000

static struct ucm_files_node *folders[2], *moved;
static atomic_bool ended;

/* The file goes to and fro, between the folders and two names. */
static void *mover(void *arg)
{
	static const char *const names[] = { "x", "y" };

	(void)arg;
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct ucm_files_pair pair = {
			.parent = { folders[i & 1], folders[~i & 1] },
			.name = { names[i & 1], names[~i & 1] },
		};
		struct ucm_files_lock mine;

		must(!ucm_files_lock_pair(&nodes, &pair, false, &mine));
		ucm_files_renamed(&nodes, &pair, strdup(pair.name[1]),
				  moved->ino, 0, -1);
		ucm_files_unlock(&mine);
	}
	atomic_store(&ended, true);
	return NULL;
}

static void *folder_mover(void *arg)
{
	static const char *const names[] = { "d0", "other" };

	(void)arg;
	for (unsigned i = 0; !atomic_load(&ended); i++) {
		struct ucm_files_pair pair = {
			.parent = { &nodes.root, &nodes.root },
			.name = { names[i & 1], names[~i & 1] },
		};
		struct ucm_files_lock mine;

		must(!ucm_files_lock_pair(&nodes, &pair, true, &mine));
		must(!mine.num); /* it is alone */
		ucm_files_renamed(&nodes, &pair, strdup(pair.name[1]),
				  folders[0]->ino, 0, -1);
		ucm_files_unlock(&mine);
	}
	return NULL;
}

static void *reader(void *arg)
{
	static const char *const paths[] = {
		"files/d0/x",
		"files/other/x",
		"files/d1/y",
	};

	(void)arg;
	while (!atomic_load(&ended)) {
		struct ucm_files_lock mine;
		char now[PATH_MAX];
		bool known = false;

		must(!ucm_files_lock_node(&nodes, moved, &mine, now));
		ucm_files_unlock(&mine);
		for (unsigned i = 0; i < NUM_ROWS(paths); i++)
			known |= !strcmp(now, paths[i]);
		must(known);
	}
	return NULL;
}

UNIT_TEST(a_node_is_found_wherever_it_is_moved)
{
	void *(*const roles[])(void *) = { mover, folder_mover, reader,
					   reader };
	pthread_t threads[NUM_ROWS(roles)];

	folders[0] = folder(&nodes.root, "d0");
	folders[1] = folder(&nodes.root, "d1");
	moved = file(folders[0], "x", 2);
	atomic_store(&ended, false);
	for (unsigned i = 0; i < NUM_ROWS(roles); i++)
		must(!pthread_create(&threads[i], NULL, roles[i], NULL));
	for (unsigned i = 0; i < NUM_ROWS(roles); i++)
		pthread_join(threads[i], NULL);
}
