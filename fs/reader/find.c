/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.c - look-ups in the mapped index, without a system call.
 *
 * The writer is described in fs/index/chain.c. A look-up notes its shard's seq,
 * walks one chain, and holds if seq is even and still the same; else it is made
 * anew, a limited number of times, and the answer is "unknown". So it ends also
 * if the writer has stopped for ever half-way. Chains are walked for many ids at
 * once: while the memory of one is on its way the next is looked at.
 *
 * No number in the file is trusted: each place is compared with the end of the
 * file, each walk has an end. What does not fit is "unknown" as well.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>

#include "common/clock.h"

#define BATCH 64
#define WALK_MOST 256   /* records of a chain; four are many */
#define SPINS 64        /* attempts, and then as many that let others run */
#define ATTEMPTS 128

enum answer {
	ABSENT,
	PRESENT,
	UNKNOWN,
	AGAIN,  /* the shard was being changed */
	BROKEN, /* what is there makes no sense, or lies beyond the limit */
};

struct probe {
	uint64_t id[2];
	uint64_t at; /* head or record to look at next; 0: there is an answer */
	uint32_t seq;
	uint32_t number; /* of that record, in its shard */
	unsigned left;   /* records to walk at most */
	enum answer answer;
	uint64_t place; /* if it was found: its record */
	uint32_t state;
	uint32_t next;
};

static const struct ucm_index_memory_shard *
shard_of(const struct ucm_reader_map *map, const struct probe *probe)
{
	return ucm_reader_shard(map, probe->id[0] & 0xff);
}

/* ---- one chain ---- */

/* Where the item of that number lies; 0: nowhere that could be read. */
static uint64_t find_item(const struct ucm_reader_map *map,
			  const _Atomic uint32_t *chunks, uint32_t number,
			  uint32_t item_bytes)
{
	uint32_t at, unit;
	uint64_t place;

	if (number >= UCM_INDEX_MEMORY_MAX_ITEMS)
		return 0;
	unit = UCM_READ(&chunks[ucm_index_memory_chunk(number, &at)]);
	place = (uint64_t)unit * UCM_INDEX_MEMORY_UNIT +
		(uint64_t)at * item_bytes;
	return unit && place + item_bytes <= map->limit ? place : 0;
}

/* If nothing was changed meanwhile. */
static void settle(const struct ucm_reader_map *map, struct probe *probe,
		   enum answer answer)
{
	probe->at = 0;
	probe->answer = UCM_READ(&shard_of(map, probe)->seq) == probe->seq
				? answer
				: AGAIN;
}

static void follow(const struct ucm_reader_map *map, struct probe *probe,
		   uint32_t link)
{
	if (!link) {
		settle(map, probe, ABSENT);
		return;
	}
	probe->number = link - 1;
	probe->at = find_item(map, shard_of(map, probe)->records, link - 1,
			      sizeof(struct ucm_index_memory_record));
	if (!probe->at)
		settle(map, probe, BROKEN);
	else
		__builtin_prefetch(map->base + probe->at);
}

/* To the head of the chain, which is asked for and not yet read. */
static void begin(const struct ucm_reader_map *map, struct probe *probe,
		  const struct ucm_id *id, uint16_t space)
{
	const struct ucm_index_memory_shard *shard;
	uint32_t heads;

	ucm_index_memory_id_words(id, probe->id);
	shard = shard_of(map, probe);
	probe->at = 0;
	probe->left = WALK_MOST;
	probe->answer = AGAIN;
	probe->seq = UCM_READ(&shard->seq);
	if (probe->seq & 1)
		return;
	heads = UCM_READ(&shard->num_heads);
	if (heads >= 32 && heads <= UCM_INDEX_MEMORY_MAX_ITEMS)
		probe->at = find_item(
			map, shard->heads,
			ucm_index_memory_head(
				ucm_index_memory_hash(probe->id, space), heads),
			sizeof(uint32_t));
	if (probe->at)
		__builtin_prefetch(map->base + probe->at);
	else
		settle(map, probe, heads ? BROKEN : ABSENT);
}

static void read_head(const struct ucm_reader_map *map, struct probe *probe)
{
	const void *head = map->base + probe->at;

	follow(map, probe,
	       UCM_READ((const _Atomic uint32_t *)head) &
		       UCM_INDEX_MEMORY_LINK);
}

/* A name without a block is some block's parent. */
static enum answer judge(uint32_t state)
{
	if (!(state & UCM_INDEX_MEMORY_USED))
		return ABSENT;
	return state & (UCM_INDEX_MEMORY_DOUBT | UCM_INDEX_MEMORY_LEAVING)
		       ? UNKNOWN
		       : PRESENT;
}

static void step(const struct ucm_reader_map *map, struct probe *probe,
		 uint16_t space)
{
	const struct ucm_index_memory_record *record =
		(const struct ucm_index_memory_record *)(map->base + probe->at);

	if (UCM_READ(&record->id[0]) == probe->id[0] &&
	    UCM_READ(&record->id[1]) == probe->id[1] &&
	    (uint16_t)(UCM_READ(&record->place) >> 8) == space) {
		probe->place = UCM_READ(&record->place);
		probe->state = UCM_READ(&record->state);
		probe->next = UCM_READ(&record->next);
		settle(map, probe, judge(probe->state));
	} else if (--probe->left == 0) {
		settle(map, probe, UNKNOWN);
	} else {
		follow(map, probe,
		       UCM_READ(&record->next) & UCM_INDEX_MEMORY_LINK);
	}
}

/* ---- answers ---- */

static enum answer try_once(const struct ucm_reader_map *map,
			    struct probe *probe, const struct ucm_id *id,
			    uint16_t space)
{
	begin(map, probe, id, space);
	if (probe->at)
		read_head(map, probe);
	while (probe->at)
		step(map, probe, space);
	return probe->answer;
}

static void relax(unsigned attempt)
{
	if (attempt >= SPINS)
		sched_yield();
#if defined(__x86_64__)
	else
		__builtin_ia32_pause();
#endif
}

/* Until it has an answer: PRESENT, ABSENT or UNKNOWN. */
static enum answer insist(struct ucm_reader_map *map, struct probe *probe,
			  const struct ucm_id *id, uint16_t space)
{
	for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
		enum answer answer = try_once(map, probe, id, space);

		if (answer == BROKEN && !ucm_reader_map_refresh(map))
			return UNKNOWN;
		if (answer < AGAIN)
			return answer;
		if (answer == AGAIN)
			relax(attempt);
	}
	return UNKNOWN;
}

/* All of them by turns; those that need another attempt are left so. */
static void run_batch(const struct ucm_reader_map *map, struct probe *probes,
		      size_t num, const struct ucm_id *ids, uint16_t space)
{
	bool more = true;

	for (size_t i = 0; i < num; i++)
		begin(map, &probes[i], &ids[i], space);
	for (size_t i = 0; i < num; i++) {
		if (probes[i].at)
			read_head(map, &probes[i]);
	}
	while (more) {
		more = false;
		for (size_t i = 0; i < num; i++) {
			if (!probes[i].at)
				continue;
			step(map, &probes[i], space);
			more |= probes[i].at != 0;
		}
	}
}

/* At the end of a call: does what was seen in it hold? */
static int conclude(const struct ucm_index_reader *reader)
{
	if (!ucm_reader_map_lives(&reader->map))
		return -ENOTCONN;
	return ucm_reader_map_names(&reader->map) == reader->names ? 0
								   : -ESTALE;
}

static int lookup(struct ucm_index_reader *reader, const struct ucm_id *ids,
		  size_t num, uint64_t *present, uint64_t *unknown)
{
	struct ucm_reader_map *map = &reader->map;
	/* before: what is added while we look may be missed */
	bool complete = ucm_reader_map_complete(map);
	struct probe probes[BATCH];

	for (size_t done = 0; done < num; done += BATCH) {
		size_t some = num - done < BATCH ? num - done : BATCH;

		run_batch(map, probes, some, ids + done, reader->space);
		for (size_t i = 0; i < some; i++) {
			enum answer answer = probes[i].answer;

			if (answer >= AGAIN)
				answer = insist(map, &probes[i], &ids[done + i],
						reader->space);
			if (answer == PRESENT)
				ucm_bit_set(present, done + i);
			else if (answer == UNKNOWN || !complete)
				ucm_bit_set(unknown, done + i);
		}
	}
	return conclude(reader);
}

/* The daemon opens such a file only after a look at it. */
#define LOOK_FIRST                                                             \
	(UCM_INDEX_MEMORY_DOUBT | UCM_INDEX_MEMORY_LEAVING |                   \
	 UCM_INDEX_MEMORY_WRITABLE | UCM_INDEX_MEMORY_UNREAD)

/* 0: it has none. Its chunk may be younger than the mapping. */
static uint64_t find_mark(struct ucm_reader_map *map, const struct probe *probe)
{
	uint64_t at = 0;

	do {
		at = find_item(map, shard_of(map, probe)->marks, probe->number,
			       sizeof(uint64_t));
	} while (!at && ucm_reader_map_refresh(map));
	return at;
}

/* What its mark says, if that is of the same moment as the record. */
static uint64_t stamp_of(struct ucm_reader_map *map, const struct probe *probe)
{
	uint64_t at = find_mark(map, probe), mark;
	const void *found = map->base + at;

	mark = at ? UCM_READ((const _Atomic uint64_t *)found) : 0;
	if (!mark || UCM_READ(&shard_of(map, probe)->seq) != probe->seq)
		return 0;
	return ucm_index_memory_stamp(ucm_reader_header(map), mark,
				      ucm_boottime_s());
}

static int place_of(struct ucm_reader_map *map, const struct probe *probe,
		    enum answer answer, struct ucm_reader_place *out)
{
	if (answer == ABSENT)
		return -ENOENT;
	if (answer != PRESENT || probe->state & LOOK_FIRST)
		return -EAGAIN;
	*out = (struct ucm_reader_place){
		.size = probe->place >> 24,
		.dir = probe->place & 0xff,
		.verified = stamp_of(map, probe),
	};
	return 0;
}

int ucm_reader_locate(struct ucm_index_reader *reader, const struct ucm_id *id,
		      struct ucm_reader_place *out)
{
	struct probe probe;
	enum answer answer;
	int err;

	if (!reader->map.base)
		return -EOPNOTSUPP;
	if (!reader->resolved)
		return -ESTALE;
	err = conclude(reader);
	if (err)
		return err;
	if (!reader->published)
		return -EOPNOTSUPP;
	answer = insist(&reader->map, &probe, id, reader->space);
	err = conclude(reader);
	return err ? err : place_of(&reader->map, &probe, answer, out);
}

static void fill_entry(const struct ucm_reader_map *map,
		       const struct probe *probe, struct ucm_index_entry *out)
{
	const struct ucm_index_memory_header *header = ucm_reader_header(map);
	uint8_t tier = UCM_READ(&header->tier_of[probe->place & 0xff]);

	*out = (struct ucm_index_entry){
		.size = probe->place >> 24,
		.generation = (uint64_t)(probe->state >> 8) << 36 |
			      (probe->id[0] & 0xff) << 28 | probe->number,
		.flags = probe->state & UCM_INDEX_MEMORY_PINNED,
		.tier = -1,
	};
	if (probe->next >> UCM_INDEX_MEMORY_COPY_SHIFT)
		out->flags |= UCM_INDEX_COPY;
	if (tier < header->num_tiers && tier < UCM_INDEX_MEMORY_TIERS) {
		out->tier = tier;
		snprintf(out->tier_name, sizeof(out->tier_name), "%.*s",
			 (int)UCM_INDEX_MEMORY_TIER_NAME - 1,
			 header->tiers[tier]);
	}
}

static int entry(struct ucm_index_reader *reader, const struct ucm_id *id,
		 struct ucm_index_entry *out)
{
	bool complete = ucm_reader_map_complete(&reader->map);
	struct ucm_index_entry found = { 0 };
	struct probe probe;
	enum answer answer = insist(&reader->map, &probe, id, reader->space);
	int err;

	if (answer == PRESENT)
		fill_entry(&reader->map, &probe, &found);
	err = conclude(reader);
	if (err)
		return err;
	if (answer != PRESENT)
		return answer == UNKNOWN || !complete ? -EAGAIN : -ENOENT;
	*out = found;
	return 0;
}

const struct ucm_reader_ops ucm_reader_map_ops = {
	.name = "map",
	.batch = UCM_READER_BATCH,
	.lookup = lookup,
	.entry = entry,
};
