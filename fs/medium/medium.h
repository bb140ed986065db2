/* SPDX-License-Identifier: Apache-2.0 */
/*
 * medium.h - what keeps block files: a directory, or anything that can do this.
 *
 * A medium has few operations, those of a small file system: names are paths below
 * it, as hashing/tree.h spells them, and a file is written before it gets the
 * name that others look for. What the names mean is said once, above them, for all
 * media: blocks and files that are being written in blocks.c, spaces in
 * spaces.c, notes in notes.c. dir.h is the medium that is a directory.
 *
 * What an implementation promises:
 *
 * - It embeds struct ucm_medium as its first member, allocated with malloc, and
 *   fills ops, path, dev, kind, flags and readonly. The folders of its tree
 *   (dir.h) are there when it has been opened for writing.
 * - Operations return 0 or -errno, and may be called from any thread at any time
 *   between open and close. -ENOENT is an answer: there is no such name. All else
 *   says nothing of the name: it could not be asked.
 * - No name leads out of the medium, and none is a link that is followed.
 * - link() and open() of UCM_OPEN_NEW decide between those who want one name:
 *   one of them gets it, and all others -EEXIST. rename() replaces at once what had the
 *   name. Who has opened a file keeps it, whatever becomes of its name.
 * - What sync() has returned for survives a power cut; nothing else needs to.
 *
 * What is common to all media is in medium.c: the recovery state, whether it is
 * trusted with new blocks; and files (file.c), which are used by descriptor where
 * there is one and by operations where there is none.
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

#include "common/fstype.h"
#include "fs/block/bytes.h"
#include "fs/config/config.h"
#include "fs/medium/recovery.h"
#include "fs/medium/temp.h"

struct ucm_guard;
struct ucm_hosts;
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
enum ucm_sync {
	UCM_SYNC_FLUSH, /* what close(2) would say of what has been written */
	UCM_SYNC_DATA,  /* its bytes are to survive a power cut */
	UCM_SYNC_ALL,   /* all of it is */
};
int ucm_file_sync(const struct ucm_file *file, enum ucm_sync what);
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
	int (*sync)(const struct ucm_file *file, enum ucm_sync what);
	void (*close)(const struct ucm_file *file);
};

/* Who owns a space, and who may look into it. */
struct ucm_space_owner {
	uid_t uid;
	gid_t gid;
	bool is_private;
};

enum ucm_beat {
	UCM_BEAT_SHOW,   /* if it is time, show others that we are there */
	UCM_BEAT_CHECK,  /* is it still ours? */
	UCM_BEAT_ENDING, /* its user is about to end: others wait for that */
	UCM_BEAT_SHARED, /* from now on other daemons use it, too (shared/hosts.h) */
};

enum ucm_open_how {
	UCM_OPEN_READ,
	UCM_OPEN_CHANGE, /* for reading and writing */
	UCM_OPEN_NEW,    /* the same; it is made, and nobody else may read it */
	UCM_OPEN_OVER,   /* for writing; it is made, or emptied */
};

struct ucm_medium_ops {
	/* -EROFS: another daemon has taken it over, readonly and fenced say from
	 * now on. NULL: no other one can use it. */
	int (*beat)(struct ucm_medium *medium, enum ucm_beat what);
	/* All but its memory: a thread that hangs may still look at it. */
	void (*close)(struct ucm_medium *medium);
	int (*room)(struct ucm_medium *medium, struct ucm_medium_room *out);

	/* The names in a folder, each with its NUL, an empty one at the end; to
	 * free. */
	int (*list)(struct ucm_medium *medium, const char *folder,
		    char **names_out);
	/* Of a folder, inode, ctime and mtime change with the names in it, unless
	 * the medium is UCM_MEDIUM_SHARED. */
	int (*stat)(struct ucm_medium *medium, const char *path,
		    struct stat *out);
	/* st: what it is, of one that is opened to be read. -ENXIO or -ELOOP:
	 * what has that name is no file. */
	int (*open)(struct ucm_medium *medium, const char *path,
		    enum ucm_open_how how, struct ucm_file *out, struct stat *st);
	/* A file of UCM_OPEN_NEW gets this name as well, and all who come so far
	 * may read it: -EEXIST; -ENOENT, there is no such folder. */
	int (*link)(struct ucm_medium *medium, const char *path,
		    const char *name);
	int (*rename)(struct ucm_medium *medium, const char *from,
		      const char *to);
	/* A folder that is not empty: -ENOTEMPTY. */
	int (*remove)(struct ucm_medium *medium, const char *path,
		      bool is_folder);
	int (*mkdir)(struct ucm_medium *medium, const char *path, mode_t mode);
	/* A folder becomes his, as far as we may give it away. */
	int (*own)(struct ucm_medium *medium, const char *path,
		   const struct ucm_space_owner *owner);
	/* The names in a folder; NULL: all there is. What failed once may succeed
	 * the next time, and be lost. */
	int (*sync)(struct ucm_medium *medium, const char *folder);

	const struct ucm_file_ops *files; /* NULL: all have descriptors */
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
/* Its blocks cannot be listed, only asked for by name. */
#define UCM_MEDIUM_NO_LIST 0x10u

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
	struct ucm_hosts *hosts; /* NULL: no other daemon uses it; set at the open */
	struct ucm_temp_maker maker; /* of its temporary files, */
	_Atomic uint64_t temps;      /* and how many there were */
	struct ucm_recovery recovery;
	_Atomic int64_t retry_s; /* no new files before this time: it failed, */
	_Atomic bool full;       /* and said that it is full */
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

/* Open one of the kind that open() opens, as config says, and read its identity and
 * recovery state. */
int ucm_medium_open(ucm_medium_open_fn *open, const char *path, bool readonly,
		    const struct ucm_config *config, struct ucm_medium **out,
		    struct ucm_error *error);

/* Its identity is a note: the UUID, and the version of its format. -EINVAL. */
#define UCM_IDENTITY_BYTES 128
int ucm_medium_parse_identity(const char *text, uint8_t uuid_out[16]);

/* Before the first write: it is marked as in use. */
int ucm_medium_begin(struct ucm_medium *medium);

/* clean: everything in it is known to be good. Its memory stays until it is
 * freed. NULL is harmless to both. */
void ucm_medium_close(struct ucm_medium *medium, bool clean);
void ucm_medium_free(struct ucm_medium *medium);

/* UCM_BEAT_SHOW: by each thread that comes by at least every second. */
static inline int ucm_medium_beat(struct ucm_medium *medium, enum ucm_beat what)
{
	return medium->ops->beat ? medium->ops->beat(medium, what) : 0;
}

/* A folder's names; NULL: all that was committed. Not where nothing lasts. */
static inline int ucm_medium_sync(struct ucm_medium *medium, const char *folder)
{
	return medium->flags & UCM_MEDIUM_VOLATILE
		       ? 0
		       : medium->ops->sync(medium, folder);
}

/*
 * "folder" below stands for a space: "blocks", or "spaces/NAME".
 */

/* ---- blocks, and files that become blocks (blocks.c) ---- */

/* The names of a bucket; see list above. -EOPNOTSUPP: UCM_MEDIUM_NO_LIST. */
int ucm_medium_list(struct ucm_medium *medium, const char *folder,
		    unsigned bucket, char **names_out);
/* The state of a bucket, which changes with the names in it. -ENOENT. */
int ucm_medium_stamp(struct ucm_medium *medium, const char *folder,
		     unsigned bucket, struct stat *out);
int ucm_medium_find(struct ucm_medium *medium, const char *folder,
		    const struct ucm_id *id, struct stat *out);
/* For reading. -ENOENT; -ENXIO or -ELOOP: what has the name is no file. */
int ucm_medium_open_block(struct ucm_medium *medium, const char *folder,
			  const struct ucm_id *id, struct ucm_file *out,
			  struct stat *st);
int ucm_medium_remove(struct ucm_medium *medium, const char *folder,
		      const struct ucm_id *id);
/* Out of the way, where people can look at it. */
int ucm_medium_set_aside(struct ucm_medium *medium, const char *folder,
			 const struct ucm_id *id);

/* A new file, open for reading and writing, by nobody else; its path below the
 * medium is what it is called until it is a block. */
int ucm_medium_put(struct ucm_medium *medium, char path_out[UCM_TEMP_PATH_MAX],
		   struct ucm_file *out);
/* It becomes a block, which all who come so far may read. -EEXIST if there is
 * one; -ENOENT if there is no such space. sync: see UCM_DURABILITY_FULL. */
int ucm_medium_commit(struct ucm_medium *medium, const char *temp,
		      const char *folder, const struct ucm_id *id, bool sync);
void ucm_medium_drop(struct ucm_medium *medium, const char *temp);
/* What a stopped daemon has left unfinished goes. */
void ucm_medium_clear_temps(struct ucm_medium *medium);

/* The marks of pinned blocks; they outlive the mount, and are all daemons'. */
int ucm_medium_pin(struct ucm_medium *medium, const char *folder,
		   const struct ucm_id *id, bool pinned);
/* Is the mark there now? -ENOENT: no. */
int ucm_medium_find_pin(struct ucm_medium *medium, const char *folder,
			const struct ucm_id *id);
/* space: its name, "" for the default one. */
typedef void ucm_pin_fn(void *arg, const char *space, const struct ucm_id *id);
void ucm_medium_pins(struct ucm_medium *medium, ucm_pin_fn *fn, void *arg);

/* ---- spaces (spaces.c) ---- */

/* fn for each space but the default one; what it returns, if it is not 0, ends
 * that. -EPERM: one is not to be trusted; error says which. */
int ucm_medium_list_spaces(struct ucm_medium *medium,
			   int (*fn)(void *arg, const char *name,
				     const struct stat *st),
			   void *arg, struct ucm_error *error);
/* 0 also if it is there; sync: it survives a power cut. */
int ucm_medium_make_space(struct ucm_medium *medium, const char *folder,
			  const struct ucm_space_owner *owner, bool sync);
/* One that has just been made: nothing is in it. */
void ucm_medium_unmake_space(struct ucm_medium *medium, const char *folder);
/* 0 also if it is not there. */
int ucm_medium_set_owner(struct ucm_medium *medium, const char *folder,
			 const struct ucm_space_owner *owner);
/* What it takes to be removed, as far as that loses nothing: -ENOTEMPTY if more is
 * in it than the store has put there. 0 if it is not there; so the next. */
int ucm_medium_clear_space(struct ucm_medium *medium, const char *folder);
int ucm_medium_remove_space(struct ucm_medium *medium, const char *folder);
/* One bit for each bucket that it has; none if it is not there. */
int ucm_medium_buckets(struct ucm_medium *medium, const char *folder,
		       uint64_t out[4]);

/* ---- notes: small files of the store (notes.c) ---- */

/* Of the medium (folder is NULL) or of a space: a string. -EFBIG: it does not fit
 * with its NUL. */
int ucm_medium_read_note(struct ucm_medium *medium, const char *folder,
			 const char *name, char *text, size_t size);
/* Whole or not at all, and on disk. -ENOENT: there is no such space. On a shared
 * medium -EEXIST: it says something else already, and is not replaced. */
int ucm_medium_replace_note(struct ucm_medium *medium, const char *folder,
			    const char *name, const char *text, size_t len);

/* Those of the medium that are too long for that, or are changed in place.
 * UCM_OPEN_NEW: one beside it, which keep_note() ends. */
int ucm_medium_open_note(struct ucm_medium *medium, const char *name,
			 enum ucm_open_how how, struct ucm_file *out);
/* What was made gets its name, and is on disk. The file is closed. On failure it
 * is gone; err: it shall be. */
int ucm_medium_keep_note(struct ucm_medium *medium, const char *name,
			 struct ucm_file *file, int err);
/* Also what was made and not kept. */
void ucm_medium_remove_note(struct ucm_medium *medium, const char *name);

/* Its own clock, by which its files have their times. */
int ucm_medium_now(struct ucm_medium *medium, int64_t *ns_out);

#endif
