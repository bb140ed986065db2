/* SPDX-License-Identifier: Apache-2.0 */
/* config_motion.c - settings of which blocks move or go, and when. */
#include <config.h>

#include "fs/config/config.h"

#include <errno.h>
#include <string.h>

#include "common/error.h"
#include "common/parse.h"

const char *const ucm_write_modes[] = {
	[UCM_WRITE_STAY] = "stay",
	[UCM_WRITE_BACK] = "back",
	[UCM_WRITE_THROUGH] = "through",
	[UCM_WRITE_AROUND] = "around",
};
#define NUM_MODES (sizeof(ucm_write_modes) / sizeof(ucm_write_modes[0]))

void ucm_config_motion_init(struct ucm_config *config)
{
	strcpy(config->policy, "hazard");
	config->high = 95;
	config->low = 90;
	config->promote = 2;
	config->movers = 2;
}

int ucm_config_set_write(struct ucm_tier_config *tier, const char *value,
			 struct ucm_error *error)
{
	if (ucm_parse_word(value, ucm_write_modes, NUM_MODES, &tier->write_mode))
		return ucm_error_set(error, -EINVAL, "write '%s' of tier '%s': "
				     "stay, back, through or around", value,
				     tier->name);
	tier->has_write_mode = true;
	return 0;
}

#define PER_DAY "/day"
#define ENDURANCE_MAX 63 /* characters of a number and its unit */

int ucm_config_set_endurance(struct ucm_tier_config *tier, const char *value,
			     struct ucm_error *error)
{
	size_t len = strlen(value), day = strlen(PER_DAY);
	char bytes[ENDURANCE_MAX + 1];

	if (len > day && !strcmp(value + len - day, PER_DAY))
		len -= day;
	if (len <= ENDURANCE_MAX) {
		memcpy(bytes, value, len);
		bytes[len] = '\0';
		if (!ucm_parse_bytes(bytes, &tier->endurance))
			return 0;
	}
	return ucm_error_set(error, -EINVAL,
			     "endurance '%s' of tier '%s': not bytes a day "
			     "such as 500G",
			     value, tier->name);
}

/* What set() takes, of the tier that stands before the colon; form: of all. */
static int set_of_tier(struct ucm_config *config, const char *key,
		       const char *form, const char *value,
		       int (*set)(struct ucm_tier_config *tier,
				  const char *value, struct ucm_error *error),
		       struct ucm_error *error)
{
	const char *colon = strchr(value, ':');
	struct ucm_tier_config *tier;

	if (!colon)
		return ucm_error_set(error, -EINVAL, "%s '%s': not %s", key,
				     value, form);
	tier = ucm_config_find_tier(config, value, (size_t)(colon - value),
				    error);
	return tier ? set(tier, colon + 1, error) : -EINVAL;
}

/* A number of so many, or one of two words. */
static int set_promote(struct ucm_config *config, const char *value,
		       struct ucm_error *error)
{
	uint64_t number;

	if (!strcmp(value, "never"))
		number = 0;
	else if (!strcmp(value, "now"))
		number = 1;
	else if (ucm_parse_range(value, 1, 1000, &number))
		return ucm_error_set(error, -EINVAL,
				     "promote '%s': now, never, or the number "
				     "of the use (1 to 1000)",
				     value);
	config->promote = (unsigned)number;
	return 0;
}

static int set_policy(struct ucm_config *config, const char *value,
		      struct ucm_error *error)
{
	size_t len = strspn(value, "abcdefghijklmnopqrstuvwxyz");

	/* which there are, the store knows */
	if (!len || value[len] || len > UCM_POLICY_NAME_MAX)
		return ucm_error_set(error, -EINVAL,
				     "policy '%s': use hazard, lru or none",
				     value);
	strcpy(config->policy, value);
	return 0;
}

static int set_reserve(struct ucm_config *config, const char *value,
		       struct ucm_error *error)
{
	if (!ucm_parse_limit(value, &config->reserve.size,
			     &config->reserve.percent))
		return 0;
	return ucm_error_set(error, -EINVAL,
			     "reserve '%s': not a size such as 20G or 5%%",
			     value);
}

int ucm_config_motion_set(struct ucm_config *config, const char *key,
			  const char *value, struct ucm_error *error)
{
	if (!strcmp(key, "policy"))
		return set_policy(config, value, error);
	if (!strcmp(key, "write"))
		return set_of_tier(config, key, "TIER:MODE", value,
				   ucm_config_set_write, error);
	if (!strcmp(key, "endurance"))
		return set_of_tier(config, key, "TIER:BYTES", value,
				   ucm_config_set_endurance, error);
	if (!strcmp(key, "promote"))
		return set_promote(config, value, error);
	if (!strcmp(key, "reserve"))
		return set_reserve(config, value, error);
	return -ENOENT;
}

int ucm_config_motion_check(const struct ucm_config *config,
			    struct ucm_error *error)
{
	if (config->low >= config->high)
		return ucm_error_set(error, -EINVAL,
				     "low (%u) is not below high (%u)",
				     config->low, config->high);
	if (config->num_tiers &&
	    config->tiers[config->num_tiers - 1].has_write_mode &&
	    config->tiers[config->num_tiers - 1].write_mode != UCM_WRITE_STAY)
		return ucm_error_set(
			error, -EINVAL,
			"write of tier '%s': there is no tier below it",
			config->tiers[config->num_tiers - 1].name);
	return 0;
}

void ucm_config_motion_print(const struct ucm_config *config, FILE *out)
{
	fprintf(out, "policy: %s\n", config->policy);
	fprintf(out, "reserve: %llu%s\n",
		(unsigned long long)config->reserve.size,
		config->reserve.percent ? "%" : "");
	if (config->promote)
		fprintf(out, "promote: %u\n", config->promote);
	else
		fprintf(out, "promote: never\n");
}
