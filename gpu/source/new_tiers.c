/* SPDX-License-Identifier: Apache-2.0 */
/*
 * new_tiers.c - directories become tiers, as they do when they are mounted for
 * the first time.
 *
 * Who saves without a daemon may be the first to use them. Directories that are
 * tiers are left alone: their locks may be somebody's, while others are made.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <ucm/space.h>

#include "common/error.h"
#include "fs/store/store.h"
#include "fs/tier/medium.h"
#include "gpu/source/source.h"

/* A tier of memory is made by whoever opens it first. */
static int add_new(const struct ucm_config *config,
		   const struct ucm_tier_config *tier, unsigned *num, FILE *out,
		   struct ucm_error *error)
{
	int err = 0;

	for (unsigned i = 0; i < tier->num_dirs && !err && !tier->memory; i++) {
		struct ucm_medium *medium;

		err = ucm_medium_open(tier->dirs[i], true, config, &medium,
				      error);
		if (!err) {
			ucm_medium_close(medium, false);
			ucm_medium_free(medium);
		} else if (err == -ENOENT) {
			fprintf(out, "%snew%u=%s", *num ? ":" : "", *num,
				tier->dirs[i]);
			++*num;
			err = 0;
		}
	}
	return err;
}

/* Those of them that are no tiers yet, each as a tier of its own; "": none. */
static int find_new(const char *text, char **out, struct ucm_error *error)
{
	struct ucm_config config;
	unsigned num = 0;
	size_t len;
	FILE *file = open_memstream(out, &len);
	int err;

	if (!file)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	ucm_config_init(&config);
	err = ucm_config_source(&config, text, error);
	if (!err)
		err = ucm_config_check(&config, error);
	for (unsigned i = 0; i < config.num_tiers && !err; i++)
		err = add_new(&config, &config.tiers[i], &num, file, error);
	ucm_config_fini(&config);
	if (fclose(file) && !err)
		err = ucm_error_set(error, -ENOMEM, "out of memory");
	return err;
}

static int make_tiers(const char *text, struct ucm_error *error)
{
	struct ucm_config config;
	struct ucm_store *store;
	int err;

	ucm_config_init(&config);
	err = ucm_config_source(&config, text, error);
	if (!err)
		err = ucm_config_check(&config, error);
	config.saver = true; /* others may be at it */
	if (!err)
		err = ucm_store_open(&config, &store, error);
	if (!err) {
		ucm_store_quiet(store);
		ucm_store_close(store);
	}
	ucm_config_fini(&config);
	return err == -EAGAIN ? -EBUSY : err; /* somebody's lock */
}

int ucm_tiers_make(const char *tiers, struct ucm_error *error)
{
	struct ucm_source *source;
	char *missing = NULL;
	int err = ucm_source_tiers.open(tiers, &source, error);

	if (!err)
		ucm_source_tiers.close(source);
	if (err != -ENOENT)
		return err;
	err = find_new(tiers, &missing, error);
	if (!err && *missing)
		err = make_tiers(missing, error);
	free(missing);
	return err;
}
