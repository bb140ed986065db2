/* SPDX-License-Identifier: Apache-2.0 */
/*
 * new_tiers.c - directories become tiers, as they do when they are mounted for
 * the first time.
 *
 * Who saves without a daemon may be the first to use them. Directories that are
 * tiers are left alone: their locks may be somebody's.
 */
#include <config.h>

#include <errno.h>

#include <ucm/space.h>

#include "common/error.h"
#include "fs/store/store.h"
#include "gpu/source/source.h"

static int make_tiers(const char *text, struct ucm_error *error)
{
	struct ucm_config config;
	struct ucm_store *store;
	int err;

	ucm_config_init(&config);
	err = ucm_config_source(&config, text, error);
	if (!err)
		err = ucm_config_check(&config, error);
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
	int err = ucm_source_tiers.open(tiers, &source, error);

	if (!err)
		ucm_source_tiers.close(source);
	return err == -ENOENT ? make_tiers(tiers, error) : err;
}
