/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffer.c - the write buffer of a process.
 *
 * An arena (staging.h), a table of the blocks that can be found, and a lock
 * for both, which is never held over a copy. What is in the buffer has
 * references: of the block that is being saved, and of loads that copy from it.
 * The last one gives its room back.
 *
 * Who looks for a block asks here before he asks the source: a block leaves the
 * table only after its file can be found.
 */
#include <config.h>

#include "gpu/load/task/buffer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <string.h>

#include "common/error.h"

#define BUCKETS 4096

struct ucm_buffer {
	struct ucm_staging *staging;
	unsigned refs; /* under process_lock */
	pthread_mutex_t lock; /* guards the rest */
	_Atomic size_t num; /* in the table */
	LIST_HEAD(bucket, ucm_buffered) buckets[BUCKETS];
};

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ucm_buffer *of_process;

/* ---- open ---- */

static int make(uint64_t bytes, struct ucm_buffer **out)
{
	struct ucm_buffer *buffer = calloc(1, sizeof(*buffer));
	int err = buffer ? ucm_staging_open(bytes, -1, &buffer->staging) : -ENOMEM;

	if (err) {
		free(buffer);
		return err;
	}
	/* else the first copies would wait for each page; they do not fail
	 * without */
	madvise(ucm_staging_memory(buffer->staging),
		ucm_staging_len(buffer->staging), MADV_POPULATE_WRITE);
	pthread_mutex_init(&buffer->lock, NULL);
	*out = buffer;
	return 0;
}

int ucm_buffer_open(uint64_t bytes, struct ucm_buffer **out,
		    struct ucm_error *error)
{
	int err = 0;

	pthread_mutex_lock(&process_lock);
	if (!of_process)
		err = make(bytes, &of_process);
	if (!err) {
		of_process->refs++;
		*out = of_process;
	}
	pthread_mutex_unlock(&process_lock);
	return err ? ucm_error_set(error, err,
				   "no memory for a write buffer of %llu bytes",
				   (unsigned long long)bytes)
		   : 0;
}

static void destroy(struct ucm_buffer *buffer)
{
	ucm_staging_close(buffer->staging);
	pthread_mutex_destroy(&buffer->lock);
	free(buffer);
}

void ucm_buffer_close(struct ucm_buffer *buffer)
{
	if (!buffer)
		return;
	pthread_mutex_lock(&process_lock);
	if (--buffer->refs) {
		buffer = NULL;
	} else {
		of_process = NULL;
	}
	pthread_mutex_unlock(&process_lock);
	if (buffer)
		destroy(buffer);
}

uint8_t *ucm_buffer_memory(const struct ucm_buffer *buffer)
{
	return ucm_staging_memory(buffer->staging);
}

size_t ucm_buffer_len(const struct ucm_buffer *buffer)
{
	return ucm_staging_len(buffer->staging);
}

/* ---- room ---- */

struct ucm_buffered *ucm_buffer_get(struct ucm_buffer *buffer, size_t len)
{
	struct ucm_buffered *kept = calloc(1, sizeof(*kept));
	int err;

	if (!kept)
		return NULL;
	pthread_mutex_lock(&buffer->lock);
	err = ucm_staging_get(buffer->staging, len, &kept->slot);
	pthread_mutex_unlock(&buffer->lock);
	if (err) {
		free(kept);
		return NULL;
	}
	kept->buffer = buffer;
	kept->refs = 1;
	return kept;
}

void ucm_buffered_put(struct ucm_buffered *kept)
{
	struct ucm_buffer *buffer;
	bool last;

	if (!kept)
		return;
	buffer = kept->buffer;
	pthread_mutex_lock(&buffer->lock);
	last = !--kept->refs;
	if (last)
		ucm_staging_put(buffer->staging, &kept->slot);
	pthread_mutex_unlock(&buffer->lock);
	if (last)
		free(kept);
}

/* ---- the table ---- */

static struct bucket *bucket_of(struct ucm_buffer *buffer,
				const struct ucm_id *id)
{
	uint32_t hash;

	memcpy(&hash, id->bytes, sizeof(hash));
	return &buffer->buckets[hash % BUCKETS];
}

void ucm_buffered_show(struct ucm_buffered *kept, const char *home,
		   const struct ucm_group *group, const struct ucm_id *id)
{
	struct ucm_buffer *buffer = kept->buffer;

	pthread_mutex_lock(&buffer->lock);
	kept->home = home;
	kept->group = group;
	kept->id = *id;
	LIST_INSERT_HEAD(bucket_of(buffer, id), kept, in_bucket);
	atomic_fetch_add(&buffer->num, 1);
	pthread_mutex_unlock(&buffer->lock);
}

void ucm_buffered_hide(struct ucm_buffered *kept)
{
	struct ucm_buffer *buffer = kept->buffer;

	pthread_mutex_lock(&buffer->lock);
	if (kept->home) {
		LIST_REMOVE(kept, in_bucket);
		kept->home = NULL;
		atomic_fetch_sub(&buffer->num, 1);
	}
	pthread_mutex_unlock(&buffer->lock);
}

/* Other loaders have groups of their own; what counts is the space, and what
 * the bytes are. */
static bool is_wanted(const struct ucm_buffered *kept, const char *home,
		      const struct ucm_group *group, const struct ucm_id *id)
{
	return !memcmp(&kept->id, id, sizeof(*id)) && !strcmp(kept->home, home) &&
	       (kept->group == group ||
		(!strcmp(kept->group->space, group->space) &&
		 ucm_geometry_equal(&kept->group->layout->geometry,
				    &group->layout->geometry)));
}

struct ucm_buffered *
ucm_buffer_find(struct ucm_buffer *buffer, const char *home,
		const struct ucm_group *group, const struct ucm_id *id)
{
	struct ucm_buffered *kept;

	pthread_mutex_lock(&buffer->lock);
	LIST_FOREACH(kept, bucket_of(buffer, id), in_bucket) {
		if (is_wanted(kept, home, group, id))
			break;
	}
	if (kept)
		kept->refs++;
	pthread_mutex_unlock(&buffer->lock);
	return kept;
}

bool ucm_buffer_is_empty(const struct ucm_buffer *buffer)
{
	return !atomic_load(&buffer->num);
}
