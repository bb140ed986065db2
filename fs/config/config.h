/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - the store's settings: tiers and how to treat them.
 *
 * The same settings come from the mount's SOURCE and options and from a YAML
 * file; this file parses both. It opens no tier.
 */
#ifndef UCM_CONFIG_H
#define UCM_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <ucm/error.h>

#include "fs/config/placement.h"

#define UCM_MAX_DIRS 255 /* of all tiers together: an index entry has a byte */
#define UCM_TIER_NAME_MAX 32
#define UCM_POLICY_NAME_MAX 15
#define UCM_POLICY_NONE "none" /* blocks stay where they were written */
#define UCM_DEADLINE_AUTO UINT32_MAX
#define UCM_DEADLINE_NETWORK 30u /* what that is where nothing else is known */

enum ucm_durability {
	UCM_DURABILITY_NONE, /* syncfs now and then; doubt after a crash */
	UCM_DURABILITY_DATA, /* fdatasync before each commit */
	UCM_DURABILITY_FULL, /* and the directory */
};

/* The most that blocks and files may take. */
struct ucm_limit {
	uint64_t size; /* bytes, or percent of the file systems; 0: none */
	bool percent;
};

/* What becomes of a block that is written to a tier. */
enum ucm_write_mode {
	UCM_WRITE_STAY,	   /* it moves when room is needed */
	UCM_WRITE_BACK,	   /* it is copied to a lower tier soon after */
	UCM_WRITE_THROUGH, /* the same, before the commit returns */
	UCM_WRITE_AROUND,  /* it is written to a lower tier */
};

struct ucm_tier_config {
	char name[UCM_TIER_NAME_MAX + 1];
	bool named;  /* somebody has given that */
	bool memory; /* it has one "directory", mem@SIZE: see memory.h */
	char **dirs; /* paths as given */
	struct ucm_limit *limits; /* of each of them */
	unsigned num_dirs;
	struct ucm_limit limit; /* of all of them */
	bool readonly;
	bool shared; /* daemons of several hosts use it (shared/hosts.h) */
	bool has_write_mode; /* else that of its medium */
	enum ucm_write_mode write_mode;
	uint64_t endurance; /* bytes a day that may be written; 0: any */
};

struct ucm_config;
struct ucm_medium;

/* Open what a directory of the configuration stands for (medium.h): all but its
 * identity and recovery state. On failure nothing is left, and error says what is wrong with
 * path. */
typedef int ucm_medium_open_fn(const char *path, bool readonly,
			       const struct ucm_config *config,
			       struct ucm_medium **out,
			       struct ucm_error *error);

struct ucm_config {
	ucm_medium_open_fn *open_medium; /* NULL: they are directories */
	struct ucm_tier_config *tiers; /* fast to slow */
	unsigned num_tiers;
	/* Where it is mounted, the caller's; NULL: nowhere. It says whose memory
	 * is in a store that has nothing else. */
	const char *mount;
	enum ucm_durability durability;
	enum ucm_placement placement;
	unsigned checkpoint_s; /* between two syncfs; 0: never */
	unsigned scan_threads;
	unsigned staging_age_s; /* staging untouched for so long is removed */
	/* A directory that has not answered a call for so long is taken as gone;
	 * 0: wait for ever; UCM_DEADLINE_AUTO: 30 s on network file systems. */
	unsigned deadline_s;
	unsigned spaces; /* that one user may make */
	unsigned reverify_s; /* so long a block counts as verified; 0: never */
	uint64_t block_max; /* bytes; a larger block is refused */
	/* Which block goes, and when (config_motion.c). */
	char policy[UCM_POLICY_NAME_MAX + 1];
	unsigned high, low; /* percent of a limit */
	struct ucm_limit reserve; /* free space to leave on file systems */
	unsigned promote;         /* the use that does it; 0: none */
	unsigned movers; /* threads */
	uint64_t move_rate; /* bytes a second; 0: any */
	uint64_t space_quota; /* of spaces that have none of their own; 0: none */
	/* how long to wait for the end of a daemon that is ending */
	unsigned lock_wait_s;
};

void ucm_config_init(struct ucm_config *config); /* the defaults */
void ucm_config_fini(struct ucm_config *config);

/*
 * SOURCE: tiers separated by ':', directories of one tier by ',', a tier
 * optionally "name="; "mem@SIZE" is a tier of memory, and "shared@" before a directory
 * says that daemons of several hosts use its tier. "none" leaves the tiers as
 * they are; else they are replaced. -EINVAL, with the cause in error.
 */
int ucm_config_source(struct ucm_config *config, const char *source,
		      struct ucm_error *error);

/* The settings of what moves: their defaults; one by name, as
 * ucm_config_set(); and what print() says of them. */
void ucm_config_motion_init(struct ucm_config *config);
int ucm_config_motion_set(struct ucm_config *config, const char *key,
			  const char *value, struct ucm_error *error);
void ucm_config_motion_print(const struct ucm_config *config, FILE *out);
int ucm_config_motion_check(const struct ucm_config *config,
			    struct ucm_error *error);

/* How a tier is written to, by name: stay, back, through or around. */
int ucm_config_set_write(struct ucm_tier_config *tier, const char *value,
			 struct ucm_error *error);
extern const char *const ucm_write_modes[];

/* What may be written to a tier: bytes, "/day" may follow. */
int ucm_config_set_endurance(struct ucm_tier_config *tier, const char *value,
			     struct ucm_error *error);

/* The tier of that name (len bytes); NULL, with the cause in error. */
struct ucm_tier_config *ucm_config_find_tier(struct ucm_config *config,
					     const char *name, size_t len,
					     struct ucm_error *error);

/* One setting by name. -ENOENT if there is no such setting, -EINVAL and the cause
 * in error for a bad value. */
int ucm_config_set(struct ucm_config *config, const char *key,
		   const char *value, struct ucm_error *error);

/* What a file says of a tier: append one with a default name, then set name,
 * directories (adds one), limit, readonly. -ENOMEM, or -EINVAL with
 * the cause in error. */
int ucm_config_add_tier(struct ucm_config *config,
			struct ucm_tier_config **out);
int ucm_config_set_tier(struct ucm_tier_config *tier, const char *key,
			const char *value, struct ucm_error *error);

/* The limit of the directory that was added last; -EINVAL as above. */
int ucm_config_limit_dir(struct ucm_tier_config *tier, const char *value,
			 struct ucm_error *error);

/*
 * Read a YAML file: "tiers", a list of maps (name, directories, limit,
 * readonly; a directory is its path, or a map of path and limit), or what
 * presets.h has instead, and scalars, which are handed to set(arg, key, value), if there
 * is one.
 * Tiers that there are before, of SOURCE, stand in place of the file's.
 * -EINVAL (or what set or open returned) with file and line in error.
 */
int ucm_config_read(struct ucm_config *config, const char *path,
		    int (*set)(void *arg, const char *key, const char *value,
			       struct ucm_error *error),
		    void *arg, struct ucm_error *error);

/* The settings as YAML that ucm_config_read() takes. */
void ucm_config_print(const struct ucm_config *config, FILE *out);

/* A value of any bytes but control characters, as YAML takes it. */
void ucm_config_print_quoted(const char *text, FILE *out);

/* At least one tier, names and paths unique; -EINVAL, with the cause in error.
 */
int ucm_config_check(const struct ucm_config *config, struct ucm_error *error);

#endif
