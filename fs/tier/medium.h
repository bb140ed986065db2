/* SPDX-License-Identifier: Apache-2.0 */
/*
 * medium.h - what keeps block files: a directory, or anything that can do this.
 *
 * The store speaks to media and knows nothing of what they stand on. A medium
 * keeps blocks by space and id, files that are being written by a name of its
 * own choice, and a few small files of the store by name: its notes. How it
 * spells them is its own affair; dir.h is the medium that is a directory.
 *
 * An implementation embeds struct ucm_medium as its first member and fills ops.
 * The groups of ops are apart so that one that lacks a group lacks all of it.
 * "folder" below stands for a space: "blocks", or "spaces/NAME". Calls return 0
 * or -errno and may be made from any thread, except open and close, which are
 * the owner's.
 *
 * What is common to all media is here and in medium.c: the name for people, the
 * recovery state, whether it is trusted with new blocks, and files, which are
 * used by descriptor where there is one and by ops where there is none.
 */
#ifndef UCM_MEDIUM_H
#define UCM_MEDIUM_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <ucm/block.h>

#include "fs/block/bytes.h"
#include "fs/tier/config.h"
#include "fs/tier/fstype.h"
#include "fs/tier/recovery.h"

struct ucm_guard;
struct ucm_medium;

/* ---- files ---- */

/*
 * An open file of a medium. It is copied freely and closed once. Two kinds: one
 * with a descriptor, which passthrough and io_uring can use, and one that only
 * its medium can read.
 */
struct ucm_file {
	struct ucm_medium *medium;
	int fd;       /* -1: it has none, or is not open */
	void *object; /* the medium's own, where there is no descriptor */
};

#define UCM_NO_FILE ((struct ucm_file){ .fd = -1 })

static inline struct ucm_file ucm_file_of(struct ucm_medium *medium, int fd)
{
	return (struct ucm_file){ .medium = medium, .fd = fd };
}

/* Its descriptor, which stays the file's; -EOPNOTSUPP: it has none. */
static inline int ucm_file_descriptor(const struct ucm_file *file)
{
	return file->fd >= 0 ? file->fd : -EOPNOTSUPP;
}

/* Until len bytes or the end of the file: bytes read, or -errno. */
ssize_t ucm_file_read(const struct ucm_file *file, void *buffer, size_t len,
		      uint64_t offset);
/* All of it. */
int ucm_file_write(const struct ucm_file *file, const void *bytes, size_t len,
		   uint64_t offset);
int ucm_file_stat(const struct ucm_file *file, struct stat *out);
/* As utimensat(2) does; NULL: now. */
int ucm_file_set_times(const struct ucm_file *file,
		       const struct timespec times[2]);
/* What close(2) would say of what has been written; it stays open. */
int ucm_file_flush(const struct ucm_file *file);
/* Its bytes are to survive a power cut. */
int ucm_file_sync(const struct ucm_file *file);
/* What has been written is to go to the disk soon; nobody waits. */
void ucm_file_start_writing(const struct ucm_file *file);
/* Its first bytes are about to be read. */
void ucm_file_want(const struct ucm_file *file, size_t len);
/* One that is not open may be closed. */
void ucm_file_close(struct ucm_file *file);

/* For verify.h; as long as the file is open. */
struct ucm_bytes ucm_file_bytes(const struct ucm_file *file);

/* Compare all of a block's file, as the disk and not the page cache has it; see
 * ucm_verify_whole(). Its times stay. After each read pay(), unless it is NULL, gets
 * the number of bytes, and takes its time: what it returns, if it is not 0, ends
 * that. */
int ucm_file_verify(const struct ucm_file *file, const struct stat *st,
		    const struct ucm_id *id,
		    int (*pay)(void *arg, size_t bytes), void *arg,
		    struct ucm_block *block, enum ucm_fault *fault,
		    uint32_t *plane);

#define _cleanup_file_ __attribute__((cleanup(ucm_file_close)))

/* ---- what a medium can do ---- */

#define UCM_TEMP_NAME_MAX 48 /* of a file that is being written */

/* What a medium can hold. Two of the same device share their room. */
struct ucm_medium_room {
	uint64_t total_bytes, free_bytes;
	uint64_t unit;  /* bytes of the smallest piece */
	uint64_t total_files, free_files; /* inodes; total 0: no such limit */
};

/* Of files without descriptors; see ucm_file_read() and the others. */
struct ucm_file_ops {
	ssize_t (*read)(const struct ucm_file *file, void *buffer, size_t len,
			uint64_t offset);
	int (*write)(const struct ucm_file *file, const void *bytes, size_t len,
		     uint64_t offset);
	int (*stat)(const struct ucm_file *file, struct stat *out);
	int (*set_times)(const struct ucm_file *file,
			 const struct timespec times[2]);
	int (*flush)(const struct ucm_file *file);
	int (*sync)(const struct ucm_file *file);
	void (*close)(const struct ucm_file *file);
};

/* Who owns a space, and who may look into it. */
struct ucm_space_owner {
	uid_t uid;
	gid_t gid;
	bool is_private;
};

struct ucm_space_ops {
	/* fn for each space but the default one; what it returns, if it is not
	 * 0, ends that. -EPERM: one is not to be trusted; error says which. */
	int (*list)(struct ucm_medium *medium,
		    int (*fn)(void *arg, const char *name,
			      const struct stat *st),
		    void *arg, struct ucm_error *error);
	/* 0: it is there; -ENOENT. */
	int (*find)(struct ucm_medium *medium, const char *folder);
	/* 0 also if it is there; sync: it survives a power cut. */
	int (*make)(struct ucm_medium *medium, const char *folder,
		    const struct ucm_space_owner *owner, bool sync);
	/* One that has just been made: nothing is in it. */
	void (*unmake)(struct ucm_medium *medium, const char *folder);
	/* 0 also if it is not there. */
	int (*set_owner)(struct ucm_medium *medium, const char *folder,
			 const struct ucm_space_owner *owner);
	/* What it takes to be removed, as far as that loses nothing: -ENOTEMPTY
	 * if more is in it than the store has put there. 0 if it is not
	 * there; so the next. */
	int (*clear)(struct ucm_medium *medium, const char *folder);
	int (*remove)(struct ucm_medium *medium, const char *folder);
	/* One bit for each bucket that it has; none if it is not there. */
	int (*buckets)(struct ucm_medium *medium, const char *folder,
		       uint64_t out[4]);
	/* The state of a bucket, which changes with the names in it: inode,
	 * ctime and mtime. -ENOENT. NULL: nothing shows that. */
	int (*stamp)(struct ucm_medium *medium, const char *folder,
		     unsigned bucket, struct stat *out);
};

enum ucm_note_how {
	UCM_NOTE_READ,
	UCM_NOTE_CHANGE, /* in place */
	UCM_NOTE_MAKE,   /* a new one, beside it; keep() ends it */
};

struct ucm_note_ops {
	/* A note of the store (folder is NULL) or of a space: a string.
	 * -EFBIG: it does not fit with its NUL. */
	int (*read)(struct ucm_medium *medium, const char *folder,
		    const char *name, char *text, size_t size);
	/* Whole or not at all, and on disk. */
	int (*replace)(struct ucm_medium *medium, const char *folder,
		       const char *name, const char *text, size_t len);

	/* Notes of the store that are too long for that. */
	int (*open)(struct ucm_medium *medium, const char *name,
		    enum ucm_note_how how, struct ucm_file *out);
	/* What was made gets its name, and is on disk. The file is closed. On
	 * failure it is gone; err: it shall be. */
	int (*keep)(struct ucm_medium *medium, const char *name,
		    struct ucm_file *file, int err);
	/* Also what was made and not kept. */
	void (*remove)(struct ucm_medium *medium, const char *name);

	/* The marks of pinned blocks; they outlive the mount. */
	int (*pin)(struct ucm_medium *medium, const char *folder,
		   const struct ucm_id *id, bool pinned);
	/* space: its name, "" for the default one. */
	void (*pins)(struct ucm_medium *medium,
		     void (*fn)(void *arg, const char *space,
				const struct ucm_id *id),
		     void *arg);
};

struct ucm_medium_ops {
	const char *kind;

	/* Before the first write: what a stopped daemon has left unfinished is
	 * removed. */
	void (*begin)(struct ucm_medium *medium);
	/* Show others that we are there, if it is time; from any thread that comes
	 * by at least every second. NULL: not needed. */
	void (*beat)(struct ucm_medium *medium);
	/* Its user is about to end: others wait for that. NULL: none does. */
	void (*ending)(struct ucm_medium *medium);
	/* All but its memory: a thread that hangs may still look at it. */
	void (*close)(struct ucm_medium *medium);
	void (*free)(struct ucm_medium *medium);

	/* The names of a bucket, each with its NUL, an empty one at the end; to
	 * free. NULL: it can only be asked for names. */
	int (*list)(struct ucm_medium *medium, const char *folder,
		    unsigned bucket, char **names_out);
	int (*find)(struct ucm_medium *medium, const char *folder,
		    const struct ucm_id *id, struct stat *out);
	/* For reading. -ENOENT; -ENXIO or -ELOOP: what has the name is no
	 * file. */
	int (*open)(struct ucm_medium *medium, const char *folder,
		    const struct ucm_id *id, struct ucm_file *out,
		    struct stat *st);
	int (*remove)(struct ucm_medium *medium, const char *folder,
		      const struct ucm_id *id);
	/* Out of the way, where people can look at it. */
	int (*set_aside)(struct ucm_medium *medium, const char *folder,
			 const struct ucm_id *id);

	/* A new file, open for reading and writing, by nobody else. */
	int (*put)(struct ucm_medium *medium,
		   char name_out[UCM_TEMP_NAME_MAX], struct ucm_file *out);
	/* Once more, for reading and writing; and a look at it. */
	int (*put_again)(struct ucm_medium *medium, const char *name,
			 struct ucm_file *out);
	int (*look)(struct ucm_medium *medium, const char *name,
		    struct stat *out);
	/* It becomes a block, which all who come so far may read. -EEXIST if
	 * there is one; -ENOENT if there is no such space. sync: see
	 * UCM_DURABILITY_FULL. */
	int (*commit)(struct ucm_medium *medium, const char *name,
		      const char *folder, const struct ucm_id *id, bool sync);
	void (*drop)(struct ucm_medium *medium, const char *name);

	int (*room)(struct ucm_medium *medium, struct ucm_medium_room *out);
	/* All that was committed survives a power cut. What failed once may
	 * succeed the next time, and be lost. */
	int (*sync)(struct ucm_medium *medium);
	/* Its own clock, by which its files have their times. */
	int (*now)(struct ucm_medium *medium, int64_t *ns_out);

	const struct ucm_file_ops *files; /* NULL: all have descriptors */
	const struct ucm_space_ops *spaces;
	const struct ucm_note_ops *notes;
};

/* Others write there, too: no lock, and times that show nothing. */
#define UCM_MEDIUM_SHARED 0x1u
/* Errors of writes are reported when the file is closed. */
#define UCM_MEDIUM_REPORTS_AT_CLOSE 0x2u
/* What it has is gone when the machine restarts: nothing in it is ever synced, and
 * what is to last does not lie here alone. */
#define UCM_MEDIUM_VOLATILE 0x4u
/* The time of a change is what somebody has set (fstype.h): a file that looks as it
 * was may be another. */
#define UCM_MEDIUM_NO_CTIME 0x8u

struct ucm_medium {
	const struct ucm_medium_ops *ops;
	unsigned flags; /* UCM_MEDIUM_* */
	char *path;     /* its name for people; of a directory, absolute */
	uint8_t uuid[16];
	dev_t dev;      /* media of one device share their room */
	_Atomic bool readonly; /* also of one that is fenced: */
	_Atomic bool fenced;   /* another daemon has taken it over */
	bool remote;    /* a server has it, which may not answer */
	enum ucm_fskind kind; /* for people: what it stands on */
	struct ucm_guard *guard; /* NULL: calls may take for ever */
	struct ucm_recovery recovery;
	_Atomic int64_t retry_s; /* no new files before this time: it failed */
	/* Never left clean, so that the next mount checks: it is written to when
	 * we are gone, or a torn block could not be moved aside. */
	_Atomic bool abandoned;
	_Atomic bool draining; /* nothing new: what it has goes elsewhere */
	_Atomic uint64_t stays; /* draining: blocks that have no room elsewhere */
	_Atomic bool unreadable; /* the last listing failed, which is logged */

	/* What is in it, and promised; tier.c's, with entry.c for the blocks. */
	struct ucm_limit limit;
	struct ucm_medium_room seen; /* when it was last asked; tier.c's */
	_Atomic uint64_t blocks;  /* in the index, of those that lie here */
	_Atomic uint64_t used;    /* bytes of them on disk */
	_Atomic uint64_t alone;   /* of them, those that lie nowhere else */
	_Atomic uint64_t alone_bytes;
	_Atomic uint64_t withheld; /* of those, which are to stay so */
	_Atomic uint64_t withheld_bytes;
	_Atomic int64_t files;    /* bytes of files/; about, see files.h */
	_Atomic uint64_t writing; /* bytes promised to files being written */
	_Atomic uint64_t guessed; /* of them, where nobody knows the size */
};

/* ---- its life ---- */

/* Open it as config says, and read its recovery state. */
int ucm_medium_open(const char *path, bool readonly,
		    const struct ucm_config *config, struct ucm_medium **out,
		    struct ucm_error *error);

/* Before the first write: it is marked as in use. */
int ucm_medium_begin(struct ucm_medium *medium);

/* clean: everything in it is known to be good. Its memory stays until it is
 * freed. NULL is harmless to both. */
void ucm_medium_close(struct ucm_medium *medium, bool clean);
void ucm_medium_free(struct ucm_medium *medium);

#endif
