/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - settings of the store, from SOURCE, options and YAML. */
#include <config.h>

#include "fs/config/config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/parse.h"

/* What a tier of memory is written with, instead of a directory. */
#define MEMORY "mem@"
/* What stands before a directory of a tier that several hosts use. */
#define SHARED "shared@"

static const char *const durabilities[] = { "none", "data", "full" };

void ucm_config_init(struct ucm_config *config)
{
	*config = (struct ucm_config){
		.durability = UCM_DURABILITY_NONE,
		.placement = UCM_PLACEMENT_RENDEZVOUS,
		.checkpoint_s = 30,
		.scan_threads = 4,
		.staging_age_s = 3600,
		.deadline_s = UCM_DEADLINE_AUTO,
		.lock_wait_s = 30,
		.block_max = UINT64_C(1) << 30,
		.spaces = 8192,
		.reverify_s = 86400,
	};
	ucm_config_motion_init(config);
}

static void free_tiers(struct ucm_config *config)
{
	for (unsigned i = 0; i < config->num_tiers; i++) {
		struct ucm_tier_config *tier = &config->tiers[i];

		for (unsigned j = 0; j < tier->num_dirs; j++)
			free(tier->dirs[j]);
		free(tier->dirs);
		free(tier->limits);
	}
	free(config->tiers);
	config->tiers = NULL;
	config->num_tiers = 0;
}

void ucm_config_fini(struct ucm_config *config)
{
	free_tiers(config);
}

int ucm_config_add_tier(struct ucm_config *config,
			struct ucm_tier_config **out)
{
	struct ucm_tier_config *tiers, *tier;

	tiers = realloc(config->tiers,
			(config->num_tiers + 1) * sizeof(*tiers));
	if (!tiers)
		return -ENOMEM;
	config->tiers = tiers;
	tier = &tiers[config->num_tiers];
	*tier = (struct ucm_tier_config){ 0 };
	snprintf(tier->name, sizeof(tier->name), "tier%u", config->num_tiers);
	config->num_tiers++;
	*out = tier;
	return 0;
}

static int name_tier(struct ucm_tier_config *tier, const char *name, size_t len,
		     struct ucm_error *error)
{
	bool good = len > 0 && len <= UCM_TIER_NAME_MAX;

	for (size_t i = 0; i < len && good; i++)
		good = isalnum((unsigned char)name[i]) || strchr("_-.", name[i]);
	if (!good)
		return ucm_error_set(
			error, -EINVAL,
			"tier name '%.*s': 1 to %d letters, digits, '_', "
			"'-' or '.'",
			(int)(len < 100 ? len : 100), name, UCM_TIER_NAME_MAX);
	memcpy(tier->name, name, len);
	tier->name[len] = '\0';
	tier->named = true;
	return 0;
}

/* "mem@SIZE" is added last. */
static int take_memory(struct ucm_tier_config *tier, struct ucm_error *error)
{
	unsigned last = tier->num_dirs - 1;
	const char *text = tier->dirs[last];

	if (strncmp(text, MEMORY, strlen(MEMORY)) != 0 && !tier->memory)
		return 0;
	if (tier->shared)
		return ucm_error_set(error, -EINVAL,
				     "tier '%s': memory cannot be shared",
				     tier->name);
	if (last)
		return ucm_error_set(error, -EINVAL,
				     "tier '%s': memory is a separate tier: "
				     "mem@SIZE stands alone between colons",
				     tier->name);
	tier->memory = true;
	if (!tier->named)
		strcpy(tier->name, "mem");
	if (!ucm_parse_limit(text + strlen(MEMORY), &tier->limits[0].size,
			     &tier->limits[0].percent) &&
	    tier->limits[0].size)
		return 0;
	return ucm_error_set(error, -EINVAL,
			     "'%s': not a size such as mem@8G or mem@50%%",
			     text);
}

static int add_dir(struct ucm_tier_config *tier, const char *path, size_t len,
		   struct ucm_error *error)
{
	struct ucm_limit *limits;
	char **dirs;

	if (len >= strlen(SHARED) && !memcmp(path, SHARED, strlen(SHARED))) {
		tier->shared = true;
		path += strlen(SHARED);
		len -= strlen(SHARED);
	}
	if (len == 0)
		return ucm_error_set(error, -EINVAL,
				     "tier '%s': empty directory name",
				     tier->name);
	dirs = realloc(tier->dirs, (tier->num_dirs + 1) * sizeof(*dirs));
	if (!dirs)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	tier->dirs = dirs;
	limits = realloc(tier->limits, (tier->num_dirs + 1) * sizeof(*limits));
	if (!limits)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	tier->limits = limits;
	limits[tier->num_dirs] = (struct ucm_limit){ 0 };
	dirs[tier->num_dirs] = strndup(path, len);
	if (!dirs[tier->num_dirs])
		return ucm_error_set(error, -ENOMEM, "out of memory");
	tier->num_dirs++;
	return take_memory(tier, error);
}

/* "name=/a,/b" without the ':' */
static int parse_tier(struct ucm_config *config, const char *text, size_t len,
		      struct ucm_error *error)
{
	struct ucm_tier_config *tier;
	const char *end = text + len;
	const char *equals = memchr(text, '=', len);
	const char *slash = memchr(text, '/', len);
	int err = ucm_config_add_tier(config, &tier);

	if (err)
		return ucm_error_set(error, err, "out of memory");
	if (equals && (!slash || equals < slash)) {
		err = name_tier(tier, text, (size_t)(equals - text), error);
		text = equals + 1;
	}
	while (!err) {
		const char *comma = memchr(text, ',', (size_t)(end - text));
		const char *stop = comma ? comma : end;

		err = add_dir(tier, text, (size_t)(stop - text), error);
		if (!comma)
			break;
		text = comma + 1;
	}
	return err;
}

int ucm_config_source(struct ucm_config *config, const char *source,
		      struct ucm_error *error)
{
	int err = 0;

	if (!strcmp(source, "none"))
		return 0;
	free_tiers(config);
	while (!err) {
		const char *colon = strchr(source, ':');
		size_t len = colon ? (size_t)(colon - source) : strlen(source);

		err = parse_tier(config, source, len, error);
		if (!colon)
			break;
		source = colon + 1;
	}
	return err;
}

struct ucm_tier_config *ucm_config_find_tier(struct ucm_config *config,
					     const char *name, size_t len,
					     struct ucm_error *error)
{
	for (unsigned i = 0; i < config->num_tiers; i++) {
		if (strlen(config->tiers[i].name) == len &&
		    !memcmp(config->tiers[i].name, name, len))
			return &config->tiers[i];
	}
	ucm_error_set(error, -EINVAL, "no tier is called '%.*s'",
		      (int)(len < 100 ? len : 100), name);
	return NULL;
}

static int set_limit(struct ucm_limit *limit, const char *what,
		     const char *name, const char *value,
		     struct ucm_error *error)
{
	if (!ucm_parse_limit(value, &limit->size, &limit->percent) &&
	    limit->size)
		return 0;
	return ucm_error_set(
		error, -EINVAL,
		"limit '%s' of %s '%s': not a size such as 500G or 80%%", value,
		what, name);
}

/* By the path that it was given by. */
static int set_dir_limit(struct ucm_config *config, const char *path,
			 size_t len, const char *value,
			 struct ucm_error *error)
{
	for (unsigned i = 0; i < config->num_tiers; i++) {
		struct ucm_tier_config *tier = &config->tiers[i];

		for (unsigned j = 0; j < tier->num_dirs; j++) {
			if (strlen(tier->dirs[j]) == len &&
			    !memcmp(tier->dirs[j], path, len))
				return set_limit(&tier->limits[j], "directory",
						 tier->dirs[j], value, error);
		}
	}
	return ucm_error_set(error, -EINVAL, "limit: no tier has '%.*s'",
			     (int)(len < 200 ? len : 200), path);
}

/* A limit that names no tier is that of the only one. */
static int set_only_limit(struct ucm_config *config, const char *value,
			  struct ucm_error *error)
{
	char names[160] = "";
	size_t at = 0;

	if (config->num_tiers == 1)
		return set_limit(&config->tiers[0].limit, "tier",
				 config->tiers[0].name, value, error);
	for (unsigned i = 0; i < config->num_tiers && at < sizeof(names); i++)
		at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s",
				       i ? ", " : "", config->tiers[i].name);
	return ucm_error_set(error, -EINVAL,
			     "limit '%s': write TIER:SIZE to say which of %u "
			     "tiers it is for: %s", value, config->num_tiers,
			     names);
}

/* A tier's name has no slash in it, and a directory's path none of these
 * colons. */
static int set_any_limit(struct ucm_config *config, const char *value,
			 struct ucm_error *error)
{
	const char *colon = strchr(value, ':');
	struct ucm_tier_config *tier;
	size_t len;

	if (!colon)
		return set_only_limit(config, value, error);
	len = (size_t)(colon - value);
	if (memchr(value, '/', len))
		return set_dir_limit(config, value, len, colon + 1, error);
	tier = ucm_config_find_tier(config, value, len, error);
	return tier ? set_limit(&tier->limit, "tier", tier->name, colon + 1,
				error)
		    : -EINVAL;
}

static int set_readonly(struct ucm_config *config, const char *value,
			struct ucm_error *error)
{
	struct ucm_tier_config *tier =
		ucm_config_find_tier(config, value, strlen(value), error);

	if (!tier)
		return -EINVAL;
	tier->readonly = true;
	return 0;
}

static int set_durability(struct ucm_config *config, const char *value,
			  struct ucm_error *error)
{
	if (!ucm_parse_word(value, durabilities, 3, &config->durability))
		return 0;
	return ucm_error_set(error, -EINVAL,
			     "durability '%s': none, data or full", value);
}

static int set_placement(struct ucm_config *config, const char *value,
			 struct ucm_error *error)
{
	if (!ucm_placement_parse(value, &config->placement))
		return 0;
	return ucm_error_set(error, -EINVAL,
			     "placement '%s': use rendezvous, round_robin or "
			     "random",
			     value);
}

#define AT(field) offsetof(struct ucm_config, field)

/* Settings that are a number: an unsigned or, with a form, bytes. */
static const struct number {
	const char *key;
	size_t offset;
	uint64_t min, max;
	const char *form;
} numbers[] = {
	{ "checkpoint", AT(checkpoint_s), 0, 86400, NULL },
	{ "staging_age", AT(staging_age_s), 1, 31536000, NULL },
	{ "deadline", AT(deadline_s), 0, 3600, NULL },
	{ "spaces", AT(spaces), 0, 65534, NULL },
	{ "reverify", AT(reverify_s), 0, 31536000, NULL },
	{ "high", AT(high), 2, 100, NULL },
	{ "low", AT(low), 1, 99, NULL },
	{ "movers", AT(movers), 1, 64, NULL },
	/* the index takes no larger blocks */
	{ "block_max", AT(block_max), 4096, UINT64_C(1) << 40,
	  "a size from 4K to 1T" },
	{ "move_rate", AT(move_rate), 0, UINT64_MAX,
	  "not bytes a second such as 200M" },
	{ "space_quota", AT(space_quota), 0, UINT64_MAX,
	  "not bytes such as 500G" },
};
#define NUM_NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

static int set_bytes(struct ucm_config *config, const struct number *row,
		     const char *value, struct ucm_error *error)
{
	uint64_t bytes;

	if (ucm_parse_bytes(value, &bytes) || bytes < row->min ||
	    bytes > row->max)
		return ucm_error_set(error, -EINVAL, "%s '%s': %s", row->key,
				     value, row->form);
	*(uint64_t *)((char *)config + row->offset) = bytes;
	return 0;
}

/* -ENOENT: none of these. */
static int set_number(struct ucm_config *config, const char *key,
		      const char *value, struct ucm_error *error)
{
	const struct number *row = numbers;
	uint64_t number;

	while (row < numbers + NUM_NUMBERS && strcmp(key, row->key) != 0)
		row++;
	if (row == numbers + NUM_NUMBERS)
		return -ENOENT;
	if (row->form)
		return set_bytes(config, row, value, error);
	if (ucm_parse_range(value, row->min, row->max, &number))
		return ucm_error_set(error, -EINVAL, "%s '%s': a number from %"
				     PRIu64 " to %" PRIu64, key, value,
				     row->min, row->max);
	*(unsigned *)((char *)config + row->offset) = (unsigned)number;
	return 0;
}

int ucm_config_set(struct ucm_config *config, const char *key,
		   const char *value, struct ucm_error *error)
{
	int err;

	if (!strcmp(key, "durability"))
		return set_durability(config, value, error);
	if (!strcmp(key, "placement"))
		return set_placement(config, value, error);
	if (!strcmp(key, "limit"))
		return set_any_limit(config, value, error);
	if (!strcmp(key, "readonly"))
		return set_readonly(config, value, error);
	err = set_number(config, key, value, error);
	if (err == -ENOENT)
		err = ucm_config_motion_set(config, key, value, error);
	return err;
}

static int check_dir_limit(const struct ucm_config *config,
			   struct ucm_error *error)
{
	unsigned dirs = 0;

	for (unsigned i = 0; i < config->num_tiers; i++)
		dirs += config->tiers[i].num_dirs;
	if (dirs <= UCM_MAX_DIRS)
		return 0;
	return ucm_error_set(error, -EINVAL, "%u directories: at most %d", dirs,
			     UCM_MAX_DIRS);
}

int ucm_config_check(const struct ucm_config *config, struct ucm_error *error)
{
	if (config->num_tiers == 0)
		return ucm_error_set(error, -EINVAL,
				     "no tier given: name a directory");
	for (unsigned i = 0; i < config->num_tiers; i++) {
		if (config->tiers[i].num_dirs == 0)
			return ucm_error_set(error, -EINVAL,
					     "tier '%s' has no directory",
					     config->tiers[i].name);
		for (unsigned j = 0; j < i; j++) {
			if (!strcmp(config->tiers[i].name,
				    config->tiers[j].name))
				return ucm_error_set(
					error, -EINVAL,
					"two tiers are called '%s'",
					config->tiers[i].name);
		}
	}
	if (ucm_config_motion_check(config, error))
		return -EINVAL;
	return check_dir_limit(config, error);
}

void ucm_config_print_quoted(const char *text, FILE *out)
{
	fputc('\'', out);
	for (; *text; text++) {
		if (*text == '\'')
			fputc('\'', out);
		fputc(*text, out);
	}
	fputc('\'', out);
}

static void print_limit(const char *indent, const struct ucm_limit *limit,
			FILE *out)
{
	if (limit->size)
		fprintf(out, "%slimit: %llu%s\n", indent,
			(unsigned long long)limit->size,
			limit->percent ? "%" : "");
}

void ucm_config_print(const struct ucm_config *config, FILE *out)
{
	fprintf(out, "tiers:\n");
	for (unsigned i = 0; i < config->num_tiers; i++) {
		const struct ucm_tier_config *tier = &config->tiers[i];

		fprintf(out, "  - name: ");
		ucm_config_print_quoted(tier->name, out); /* "-" is one as well */
		fprintf(out, "\n    directories:\n");
		for (unsigned j = 0; j < tier->num_dirs; j++) {
			bool limited = tier->limits[j].size && !tier->memory;

			fprintf(out, limited ? "      - path: " : "      - ");
			ucm_config_print_quoted(tier->dirs[j], out);
			fputc('\n', out);
			if (limited)
				print_limit("        ", &tier->limits[j], out);
		}
		print_limit("    ", &tier->limit, out);
		if (tier->readonly)
			fprintf(out, "    readonly: true\n");
		if (tier->shared)
			fprintf(out, "    shared: true\n");
		if (tier->has_write_mode)
			fprintf(out, "    write: %s\n",
				ucm_write_modes[tier->write_mode]);
		if (tier->endurance)
			fprintf(out, "    endurance: %llu\n",
				(unsigned long long)tier->endurance);
	}
	fprintf(out, "durability: %s\n", durabilities[config->durability]);
	fprintf(out, "placement: %s\n", ucm_placement_name(config->placement));
	for (size_t i = 0; i < NUM_NUMBERS; i++) {
		const char *at = (const char *)config + numbers[i].offset;
		uint64_t number = numbers[i].form ? *(const uint64_t *)at
						  : *(const unsigned *)at;

		if (number <= numbers[i].max) /* else it is UCM_DEADLINE_AUTO */
			fprintf(out, "%s: %" PRIu64 "\n", numbers[i].key, number);
	}
	ucm_config_motion_print(config, out);
}

static int set_flag(bool *flag, const char *key, const char *value,
		    struct ucm_error *error)
{
	if (!ucm_parse_bool(value, flag))
		return 0;
	return ucm_error_set(error, -EINVAL, "%s '%s': true or false", key,
			     value);
}

int ucm_config_set_tier(struct ucm_tier_config *tier, const char *key,
			const char *value, struct ucm_error *error)
{
	if (!strcmp(key, "name"))
		return name_tier(tier, value, strlen(value), error);
	if (!strcmp(key, "directories"))
		return add_dir(tier, value, strlen(value), error);
	if (!strcmp(key, "limit"))
		return set_limit(&tier->limit, "tier", tier->name, value,
				 error);
	if (!strcmp(key, "write"))
		return ucm_config_set_write(tier, value, error);
	if (!strcmp(key, "endurance"))
		return ucm_config_set_endurance(tier, value, error);
	if (!strcmp(key, "readonly"))
		return set_flag(&tier->readonly, key, value, error);
	if (!strcmp(key, "shared"))
		return set_flag(&tier->shared, key, value, error);
	return ucm_error_set(error, -EINVAL, "unknown key '%s' of a tier", key);
}

int ucm_config_limit_dir(struct ucm_tier_config *tier, const char *value,
			 struct ucm_error *error)
{
	unsigned last = tier->num_dirs - 1;

	if (tier->memory)
		return ucm_error_set(error, -EINVAL,
				     "limit '%s': that of memory stands in "
				     "'%s'",
				     value, tier->dirs[last]);
	return set_limit(&tier->limits[last], "directory", tier->dirs[last],
			 value, error);
}
