/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the place of a memory tier; see memory.h.
 *
 * The folder of the user is opened without following links, and looked at by its
 * descriptor; so is the place, below that descriptor. Both are used by their path
 * afterwards: /dev/shm is sticky, which is checked, so that nobody but root and
 * the owner can rename or replace the folder; and nobody else can make names in
 * it.
 */
#include <config.h>

#include "fs/medium/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/medium/dir/dir.h"
#include "hashing/digest.h"

#define KEY_BYTES 8 /* of the digest, in the name */

const char *ucm_memory_root = "/dev/shm";

/* The sum of digests: order does not count. */
void ucm_memory_key_add(struct ucm_memory_key *key, const uint8_t uuid[16])
{
	uint8_t digest[UCM_SHA256_BYTES];
	struct ucm_sha256 sha;

	ucm_sha256_begin(&sha);
	ucm_sha256_add(&sha, uuid, 16);
	ucm_sha256_end(&sha, digest);
	for (size_t i = 0; i < sizeof(digest); i++)
		key->sum[i] ^= digest[i];
	key->num++;
}

static int memory_name(const struct ucm_memory_key *key,
		       const struct ucm_config *config, const char *tier,
		       char *out, size_t size, struct ucm_error *error)
{
	uint8_t digest[UCM_SHA256_BYTES];
	struct ucm_sha256 sha;
	int len;

	if (!key->num && !config->mount)
		return ucm_error_set(error, -EINVAL,
				     "tier '%s': memory alone belongs to a "
				     "mount point: give that, or a directory "
				     "beside it",
				     tier);
	ucm_sha256_begin(&sha);
	if (key->num)
		ucm_sha256_add(&sha, key->sum, sizeof(key->sum));
	else
		ucm_sha256_add(&sha, config->mount, strlen(config->mount));
	ucm_sha256_end(&sha, digest);
	len = snprintf(out, size, "%s-", tier);
	for (unsigned i = 0; i < KEY_BYTES; i++)
		len += snprintf(out + len, size - (size_t)len, "%02x",
				digest[i]);
	return 0;
}

/* ---- whose it is ---- */

static int memory_refuse(const char *path, const char *why,
			 struct ucm_error *error)
{
	return ucm_error_set(error, -EPERM,
			     "%s: %s: it is not used as memory of a store",
			     path, why);
}

/* Somebody may rename what is in it, and put something else in its place. */
static int memory_check_root(int fd, struct ucm_error *error)
{
	struct statfs fs;
	struct stat st;
	int err = ucm_os_fstat(fd, &st);

	if (!err)
		err = ucm_os_statfs(fd, &fs);
	if (err)
		return ucm_error_set(error, err, "%s: %s", ucm_memory_root,
				     strerror(-err));
	if ((uint32_t)fs.f_type != TMPFS_MAGIC)
		return ucm_error_set(error, -EINVAL,
				     "%s is no tmpfs: give a directory on one "
				     "instead of mem@SIZE",
				     ucm_memory_root);
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return memory_refuse(ucm_memory_root, "it is another user's",
				     error);
	if (st.st_mode & 022 && !(st.st_mode & S_ISVTX))
		return memory_refuse(ucm_memory_root,
				     "anyone may rename what is in it (no "
				     "sticky bit)",
				     error);
	return 0;
}

static int memory_check_folder(int fd, const char *path,
			       struct ucm_error *error)
{
	struct stat st;
	int err = ucm_os_fstat(fd, &st);

	if (err)
		return ucm_error_set(error, err, "%s: %s", path,
				     strerror(-err));
	if (st.st_uid != geteuid())
		return memory_refuse(path, "it is another user's", error);
	if (st.st_mode & 077)
		return memory_refuse(path, "others may enter it (chmod 700)",
				     error);
	return 0;
}

/* A folder below another, by the last part of path; a descriptor. */
static int memory_enter(int parent, const char *path, bool make,
			struct ucm_error *error)
{
	const char *name = strrchr(path, '/') + 1;
	int err = make ? ucm_os_mkdir(parent, name, 0700) : 0;
	int fd;

	if (err && err != -EEXIST)
		return ucm_error_set(error, err, "%s: %s", path,
				     strerror(-err));
	fd = ucm_os_open(parent, name, O_RDONLY | O_DIRECTORY, 0);
	if (fd == -ELOOP || fd == -ENOTDIR)
		return memory_refuse(path, "it is no directory", error);
	if (fd < 0)
		return ucm_error_set(error, fd, "%s: %s", path, strerror(-fd));
	err = memory_check_folder(fd, path, error);
	if (!err)
		return fd;
	ucm_os_close(fd);
	return err;
}

/* The folder of this user. */
static int memory_open_own(bool make, char path[UCM_MEMORY_PATH_MAX],
			   struct ucm_error *error)
{
	int root = ucm_os_open_root(NULL, ucm_memory_root);
	int fd;

	snprintf(path, UCM_MEMORY_PATH_MAX, "%s/ucmfs-%u", ucm_memory_root,
		 (unsigned)geteuid());
	if (root < 0)
		return ucm_error_set(error, root, "%s: %s", ucm_memory_root,
				     strerror(-root));
	fd = memory_check_root(root, error);
	if (!fd)
		fd = memory_enter(root, path, make, error);
	ucm_os_close(root);
	return fd;
}

/* ---- the place ---- */

int ucm_memory_place(const struct ucm_memory_key *key,
		     const struct ucm_config *config, const char *tier,
		     bool make, char out[UCM_MEMORY_PATH_MAX],
		     struct ucm_error *error)
{
	char own[UCM_MEMORY_PATH_MAX], name[UCM_TIER_NAME_MAX + 20];
	int fd, place, err;

	err = memory_name(key, config, tier, name, sizeof(name), error);
	if (err)
		return err;
	fd = memory_open_own(make, own, error);
	if (fd < 0)
		return fd;
	if (snprintf(out, UCM_MEMORY_PATH_MAX, "%s/%s", own, name) >=
	    UCM_MEMORY_PATH_MAX)
		place = ucm_error_set(error, -ENAMETOOLONG, "%s: %s", own,
				      strerror(ENAMETOOLONG));
	else
		place = memory_enter(fd, out, make, error);
	ucm_os_close(fd);
	if (place < 0)
		return place;
	ucm_os_close(place);
	return 0;
}

/* The UUID of a directory that has been used before, whoever uses it now: -ENOENT,
 * -EINVAL. */
static int read_identity(const char *path, uint8_t uuid_out[16])
{
	int fd = ucm_os_open_root(NULL, path);
	char text[UCM_IDENTITY_BYTES];
	int err;

	if (fd < 0)
		return fd;
	err = ucm_os_read_file(fd, UCM_TREE_OWN "/id", text, sizeof(text));
	ucm_os_close(fd);
	return err ? err : ucm_medium_parse_identity(text, uuid_out);
}

int ucm_memory_find(const struct ucm_config *config, const char *tier,
		    char out[UCM_MEMORY_PATH_MAX], struct ucm_error *error)
{
	struct ucm_memory_key key = { .num = 0 };

	for (unsigned i = 0; i < config->num_tiers; i++) {
		const struct ucm_tier_config *other = &config->tiers[i];

		for (unsigned j = 0; !other->memory && j < other->num_dirs;
		     j++) {
			uint8_t uuid[16];
			int err = read_identity(other->dirs[j], uuid);

			if (err)
				return ucm_error_set(
					error, err, "%s: .ucmfs/id: %s",
					other->dirs[j], strerror(-err));
			ucm_memory_key_add(&key, uuid);
		}
	}
	return ucm_memory_place(&key, config, tier, false, out, error);
}

/* ---- the medium ---- */

/* What can still be had of the machine; UINT64_MAX: it does not say. */
static uint64_t memory_available(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	uint64_t kib = 0;
	char line[128];
	bool found = false;

	while (file && !found && fgets(line, sizeof(line), file))
		found = sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1;
	if (file)
		fclose(file);
	return found ? kib * 1024 : UINT64_MAX;
}

/* It may hold blocks already, which are neither free nor available. */
static int memory_check_size(const struct ucm_medium *medium,
			     const struct ucm_tier_config *tier,
			     const struct ucm_medium_room *room,
			     struct ucm_error *error)
{
	const struct ucm_limit *limit = &tier->limits[0];
	uint64_t used = room->total_bytes - room->free_bytes;
	uint64_t wanted = limit->percent
				  ? room->total_bytes / 100 * limit->size
				  : limit->size;
	uint64_t available = memory_available();

	if (wanted > room->total_bytes)
		return ucm_error_set(
			error, -EINVAL,
			"tier '%s': %s is more than %s has (%" PRIu64
			" bytes): remount it with size=, or give a container "
			"more (--shm-size)",
			tier->name, tier->dirs[0], ucm_memory_root,
			room->total_bytes);
	if (available != UINT64_MAX && wanted > available + used)
		ucm_warning("%s: %s is more than the machine can give (%" PRIu64
			    " bytes available): it may run out of memory",
			    medium->path, tier->dirs[0], available);
	return 0;
}

/* Before the first daemon, and after a restart of the machine, there is nothing
 * that could be opened for reading. */
static int memory_prepare(const char *path, const struct ucm_config *config,
			  struct ucm_error *error)
{
	struct ucm_medium *medium;
	uint8_t uuid[16];
	int err = read_identity(path, uuid);

	if (err != -ENOENT)
		return 0; /* opening it says what is wrong */
	err = ucm_medium_open(ucm_opener(config), path, false, config,
			      &medium, error);
	if (err)
		return err;
	/* a daemon may wait */
	ucm_medium_beat(medium, UCM_BEAT_ENDING);
	ucm_medium_close(medium, false);
	ucm_medium_free(medium);
	return 0;
}

int ucm_memory_open(const struct ucm_memory_key *key,
		    const struct ucm_config *config,
		    const struct ucm_tier_config *tier, bool readonly,
		    struct ucm_medium **out, struct ucm_error *error)
{
	char path[UCM_MEMORY_PATH_MAX];
	struct ucm_medium_room room;
	struct ucm_medium *medium;
	int err = ucm_memory_place(key, config, tier->name, true, path, error);

	if (!err && readonly)
		err = memory_prepare(path, config, error);
	if (!err)
		err = ucm_medium_open(ucm_opener(config), path, readonly,
				      config, &medium, error);
	if (err)
		return err;
	medium->flags |= UCM_MEDIUM_VOLATILE;
	if (!readonly && !medium->ops->room(medium, &room))
		err = memory_check_size(medium, tier, &room, error);
	if (err) {
		ucm_medium_close(medium, false);
		ucm_medium_free(medium);
		return err;
	}
	*out = medium;
	return 0;
}

/* ---- what nobody uses ---- */

/* Without taking the lock, which a daemon may be about to take. */
static bool memory_is_used(int own, const char *name)
{
	char path[2 * UCM_MEMORY_PATH_MAX];
	bool used;
	int fd;

	snprintf(path, sizeof(path), "%s/%s/lock", name, UCM_TREE_OWN);
	fd = ucm_os_open(own, path, O_RDONLY, 0);
	if (fd < 0)
		return false;
	used = ucm_os_find_lock(fd, 0, 0) >= 0;
	ucm_os_close(fd);
	return used;
}

void ucm_memory_each_left(void (*fn)(void *arg, const char *path), void *arg)
{
	char own[UCM_MEMORY_PATH_MAX], path[2 * UCM_MEMORY_PATH_MAX];
	_cleanup_free_ char *names = NULL;
	struct ucm_error error;
	int fd = memory_open_own(false, own, &error);

	if (fd < 0)
		return;
	if (!ucm_os_list(fd, ".", &names)) {
		for (const char *name = names; *name;
		     name += strlen(name) + 1) {
			if (memory_is_used(fd, name))
				continue;
			snprintf(path, sizeof(path), "%s/%s", own, name);
			fn(arg, path);
		}
	}
	ucm_os_close(fd);
}
