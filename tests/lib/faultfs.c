/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faultfs.c - a FUSE file system that tells of write errors at close(2), as
 * network file systems do, forgets what is open, and fails now and then.
 *
 *	faultfs DIR MOUNTPOINT SIGN
 *
 * It shows DIR, writes its process id to SIGN.pid, and returns when it is
 * mounted. While there is a file SIGN (an
 * absolute path), the close of a file that was opened for writing fails: with
 * ENOSPC if SIGN begins with that word, else with EIO. If it begins with EBADF, closes
 * are as ever, and reads of what was opened before it fail with that; while there is a
 * file SIGN.direct when a file is opened, its reads are not cached. It ends when it is
 * unmounted.
 *
 * A file SIGN.faults has a line for each operation that fails by chance:
 *
 *	OPERATION PERCENT EFFECT
 *
 * An operation has the name that libfuse gives it; EFFECT is an error (EIO, ESTALE,
 * ENOSPC, EACCES, ETIMEDOUT), so many milliseconds to wait before it is done, or, of
 * read, "short": half of the bytes come. (Of a file that is cached that means its end:
 * there should be SIGN.direct.)
 */
#include <config.h>

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int root;
static const char *sign;

static int result(ssize_t rc)
{
	return rc < 0 ? -errno : (int)rc;
}

/* Below the root, from the path in the mount. */
static const char *below(const char *path)
{
	return path[1] ? path + 1 : ".";
}

/* ---- what fails by chance ---- */

static const struct {
	const char *name;
	int err;
} errors[] = {
	{ "EIO", EIO }, { "ESTALE", ESTALE }, { "ENOSPC", ENOSPC },
	{ "EACCES", EACCES }, { "ETIMEDOUT", ETIMEDOUT },
};

static bool happens(unsigned percent)
{
	unsigned drawn;

	return getrandom(&drawn, sizeof(drawn), 0) == sizeof(drawn) &&
	       drawn % 100 < percent;
}

#define SHORT 1

static int take_effect(const char *effect)
{
	if (!strcmp(effect, "short"))
		return SHORT;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (!strcmp(effect, errors[i].name))
			return -errors[i].err;
	}
	usleep((useconds_t)atoi(effect) * 1000);
	return 0;
}

/* 0, SHORT, or the error that it ends with, undone. */
static int fault(const char *operation)
{
	char path[4096], name[16], effect[16];
	unsigned percent;
	int err = 0;
	FILE *rules;

	snprintf(path, sizeof(path), "%s.faults", sign);
	rules = fopen(path, "re");
	while (rules && !err &&
	       fscanf(rules, "%15s %u %15s", name, &percent, effect) == 3) {
		if (!strcmp(name, operation) && happens(percent))
			err = take_effect(effect);
	}
	if (rules)
		fclose(rules);
	return err;
}

/* ---- operations ---- */

/* Of the process that serves: it is in the background by now. */
static void write_pid(void)
{
	char path[4096];
	FILE *file;

	snprintf(path, sizeof(path), "%s.pid", sign);
	file = fopen(path, "we");
	if (!file || fprintf(file, "%d\n", (int)getpid()) < 0 || fclose(file))
		perror(path);
}

static void *op_init(struct fuse_conn_info *conn, struct fuse_config *config)
{
	(void)conn;
	write_pid();
	config->use_ino = 1;
	config->entry_timeout = config->attr_timeout = 0;
	return NULL;
}

static int op_getattr(const char *path, struct stat *st,
		      struct fuse_file_info *fi)
{
	(void)fi;
	return fault("getattr") ?: result(fstatat(root, below(path), st, AT_SYMLINK_NOFOLLOW));
}

static int op_readlink(const char *path, char *target, size_t size)
{
	ssize_t len = readlinkat(root, below(path), target, size - 1);

	if (len < 0)
		return -errno;
	target[len] = '\0';
	return 0;
}

static int op_symlink(const char *target, const char *path)
{
	return result(symlinkat(target, root, below(path)));
}

static int op_mkdir(const char *path, mode_t mode)
{
	return fault("mkdir") ?: result(mkdirat(root, below(path), mode));
}

static int op_unlink(const char *path)
{
	return fault("unlink") ?: result(unlinkat(root, below(path), 0));
}

static int op_rmdir(const char *path)
{
	return result(unlinkat(root, below(path), AT_REMOVEDIR));
}

static int op_rename(const char *from, const char *to, unsigned flags)
{
	return fault("rename") ?: result(renameat2(root, below(from), root, below(to), flags));
}

static int op_link(const char *from, const char *to)
{
	return fault("link") ?: result(linkat(root, below(from), root, below(to), 0));
}

static int op_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	(void)fi;
	return result(fchmodat(root, below(path), mode, 0));
}

static int op_chown(const char *path, uid_t uid, gid_t gid,
		    struct fuse_file_info *fi)
{
	(void)fi;
	return result(fchownat(root, below(path), uid, gid,
			       AT_SYMLINK_NOFOLLOW));
}

static int op_utimens(const char *path, const struct timespec times[2],
		      struct fuse_file_info *fi)
{
	(void)fi;
	return fault("utimens") ?: result(utimensat(root, below(path), times, AT_SYMLINK_NOFOLLOW));
}

/* The word in it, or "". */
static void read_sign(char word[7])
{
	FILE *in = fopen(sign, "re");

	if (!in || !fgets(word, 7, in))
		word[0] = '\0';
	word[strcspn(word, "\n")] = '\0';
	if (in)
		fclose(in);
}

/* By descriptor: opened while the sign says that others are forgotten. */
static _Atomic bool is_fresh[4096];

static bool forgets(void)
{
	char word[7];

	read_sign(word);
	return !strcmp(word, "EBADF");
}

static void note_open(struct fuse_file_info *fi)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s.direct", sign);
	fi->direct_io = !access(path, F_OK);
	if (fi->fh < 4096)
		is_fresh[fi->fh] = forgets();
}

static int open_in(const char *path, int flags, mode_t mode,
		   struct fuse_file_info *fi)
{
	int fd = openat(root, below(path), flags | O_CLOEXEC, mode);

	if (fd < 0)
		return -errno;
	fi->fh = (uint64_t)fd;
	note_open(fi);
	return 0;
}

static int op_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	return fault("create") ?: open_in(path, fi->flags | O_CREAT, mode, fi);
}

static int op_open(const char *path, struct fuse_file_info *fi)
{
	return fault("open") ?: open_in(path, fi->flags, 0, fi);
}

static int op_read(const char *path, char *buffer, size_t size, off_t off,
		   struct fuse_file_info *fi)
{
	int effect, got;

	(void)path;
	if (fi->fh < 4096 && !is_fresh[fi->fh] && forgets())
		return -EBADF;
	effect = fault("read");
	if (effect < 0)
		return effect;
	got = result(pread((int)fi->fh, buffer, size, off));
	return effect == SHORT && got > 1 ? got / 2 : got;
}

static int op_write(const char *path, const char *buffer, size_t size,
		    off_t off, struct fuse_file_info *fi)
{
	(void)path;
	return fault("write") ?: result(pwrite((int)fi->fh, buffer, size, off));
}

static int op_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
	struct fuse_file_info opened = { 0 };
	int err = fi ? 0 : open_in(path, O_WRONLY, 0, &opened);

	if (!err)
		err = result(ftruncate((int)(fi ? fi : &opened)->fh, size));
	if (!fi)
		close((int)opened.fh);
	return err;
}

static int error_of_sign(void)
{
	char word[7];

	if (access(sign, F_OK) || forgets())
		return 0;
	read_sign(word);
	return strcmp(word, "ENOSPC") ? -EIO : -ENOSPC;
}

/* The flags of the open do not come with it. */
static int op_flush(const char *path, struct fuse_file_info *fi)
{
	int flags = fcntl((int)fi->fh, F_GETFL);

	(void)path;
	return (flags & O_ACCMODE) == O_RDONLY ? 0 : error_of_sign();
}

static int op_fsync(const char *path, int datasync, struct fuse_file_info *fi)
{
	(void)path;
	(void)datasync;
	return result(fsync((int)fi->fh));
}

static int op_release(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	return result(close((int)fi->fh));
}

static int op_readdir(const char *path, void *out, fuse_fill_dir_t fill,
		      off_t off, struct fuse_file_info *fi,
		      enum fuse_readdir_flags flags)
{
	int err = fault("readdir"), fd;
	struct dirent *entry;
	DIR *dir;

	(void)off;
	(void)fi;
	(void)flags;
	if (err)
		return err;
	fd = openat(root, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return -errno;
	while ((entry = readdir(dir))) {
		struct stat st = { .st_ino = entry->d_ino,
				   .st_mode = DTTOIF(entry->d_type) };

		fill(out, entry->d_name, &st, 0, 0);
	}
	closedir(dir);
	return 0;
}

static int op_statfs(const char *path, struct statvfs *st)
{
	(void)path;
	return result(fstatvfs(root, st));
}

static const struct fuse_operations operations = {
	.init = op_init, .getattr = op_getattr,
	.readlink = op_readlink, .symlink = op_symlink,
	.mkdir = op_mkdir, .unlink = op_unlink, .rmdir = op_rmdir,
	.rename = op_rename, .link = op_link,
	.chmod = op_chmod, .chown = op_chown, .utimens = op_utimens,
	.create = op_create, .open = op_open, .truncate = op_truncate,
	.read = op_read, .write = op_write,
	.flush = op_flush, .fsync = op_fsync, .release = op_release,
	.readdir = op_readdir, .statfs = op_statfs,
};

int main(int argc, char **argv)
{
	char *of_fuse[] = { argv[0], argc == 4 ? argv[2] : NULL, NULL };

	if (argc != 4) {
		fprintf(stderr, "usage: faultfs DIR MOUNTPOINT SIGN\n");
		return 2;
	}
	sign = argv[3];
	umask(0);
	root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0) {
		perror(argv[1]);
		return 1;
	}
	return fuse_main(2, of_fuse, &operations, NULL);
}
