/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr_load.c - a loader for the blocks of one space of representations.
 *
 * Slabs differ from request to request, and a group's layout does not: so its
 * addresses stand for none, and each request brings its own.
 *
 * The layout says how long a layer is, and not how it was made: the manifest
 * does. It is compared when the space is opened, and again after each load and
 * around each save, so that codes of another seed are never scored where the
 * space has been removed and another one made of its name.
 */
#include <config.h>

#include <ucm/repr_load.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/space.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/sized.h"
#include "fs/repr/shape.h"
#include "gpu/layout/layout.h"

#define STAGING_BYTES (16u << 20)

struct ucm_reprs {
	char *mount, *tiers;
	char name[UCM_REPR_NAME_MAX];
	struct ucm_repr_space space;
	struct ucm_loader *loader;
	unsigned group;
};

/* ---- open and close ---- */

/* The field in which a space is not what it must be like; NULL: none. */
static const char *differs(const struct ucm_repr_space *space,
			   const struct ucm_repr_space *like)
{
	if (space->spec.kind != like->spec.kind)
		return "kind";
	if (space->spec.dtype != like->spec.dtype)
		return "dtype";
	if (space->spec.num_heads != like->spec.num_heads)
		return "num_heads";
	if (space->spec.head_dim != like->spec.head_dim)
		return "head_dim";
	if (space->spec.block_size != like->spec.block_size)
		return "block_size";
	if (space->geometry.num_layers != like->geometry.num_layers)
		return "num_layers";
	return memcmp(space, like, sizeof(*space)) ? "params" : NULL;
}

static int read_space(const struct ucm_reprs *reprs, struct ucm_repr_space *out,
		      struct ucm_error *error)
{
	_cleanup_free_ char *text = malloc(UCM_SPACE_MANIFEST_MAX);
	int err;

	if (!text)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	err = ucm_space_manifest(reprs->mount, reprs->tiers, reprs->name, text,
				 error);
	return err ? err : ucm_repr_space_parse(text, out, error);
}

static int make_space(const struct ucm_reprs *reprs,
		      const struct ucm_repr_space *like,
		      struct ucm_error *error)
{
	char text[UCM_REPR_MANIFEST_MAX];
	int err = ucm_repr_space_manifest(like, text, error)
		?: ucm_space_make(reprs->mount, reprs->tiers, reprs->name, text,
				  NULL, error);

	return err == -EEXIST ? 0 : err; /* it is looked at next */
}

static int find_space(struct ucm_reprs *reprs,
		      const struct ucm_reprs_options *options,
		      struct ucm_error *error)
{
	const char *name;
	int err = 0;

	if (options->make)
		err = make_space(reprs, options->like, error);
	if (!err)
		err = read_space(reprs, &reprs->space, error);
	if (err || !options->like)
		return err;
	name = differs(&reprs->space, options->like);
	return name ? ucm_error_set(error, -EINVAL, "space %s: %s: not that of "
				    "the request", reprs->name, name)
		    : 0;
}

static int add_group(struct ucm_reprs *reprs, struct ucm_error *error)
{
	const struct ucm_geometry *geometry = &reprs->space.geometry;
	struct ucm_layout *layout;
	int err = ucm_layout_new_given(geometry, geometry->k_bytes, &layout,
				       error);

	if (err)
		return err;
	err = ucm_loader_add_group(reprs->loader, layout, reprs->name,
				   &reprs->group, error);
	ucm_layout_free(layout);
	return err;
}

static int options_check(const struct ucm_reprs_options *options,
			 struct ucm_error *error)
{
	if (!options->mount && !options->tiers)
		return ucm_error_set(error, -EINVAL,
				     "mount or tiers must be given");
	if (options->make && !options->like)
		return ucm_error_set(error, -EINVAL, "make: like is NULL");
	if (options->space && strlen(options->space) >= UCM_REPR_NAME_MAX)
		return ucm_error_set(error, -EINVAL, "space %s: no name of a "
				     "space", options->space);
	return 0;
}

static int take_names(struct ucm_reprs *reprs,
		      const struct ucm_reprs_options *options,
		      struct ucm_error *error)
{
	/* with both the mount alone has all spaces */
	const char *tiers = options->mount ? NULL : options->tiers;

	reprs->mount = options->mount ? strdup(options->mount) : NULL;
	reprs->tiers = tiers ? strdup(tiers) : NULL;
	if (!reprs->mount && !reprs->tiers)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	if (!options->space)
		return ucm_repr_space_name(options->blocks, reprs->name, error);
	strcpy(reprs->name, options->space);
	return 0;
}

static int open_loader(struct ucm_reprs *reprs,
		       const struct ucm_reprs_options *options,
		       struct ucm_error *error)
{
	const struct ucm_loader_options own = {
		.size = sizeof(own),
		.mount = options->mount,
		.tiers = options->tiers,
		.io = options->io,
		.staging_bytes = STAGING_BYTES,
	};

	return ucm_loader_open(&own, &reprs->loader, error);
}

int ucm_reprs_open(const struct ucm_reprs_options *given,
		   struct ucm_reprs **out, struct ucm_error *error)
{
	struct ucm_reprs_options own;
	struct ucm_reprs *reprs;
	int err = ucm_sized_take(&own, sizeof(own), given,
				 offsetof(struct ucm_reprs_options, blocks),
				 "ucm_reprs_options", error)
		?: options_check(&own, error);

	if (err)
		return err;
	if (!out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	reprs = calloc(1, sizeof(*reprs));
	if (!reprs)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	err = take_names(reprs, &own, error)
		?: find_space(reprs, &own, error)
		?: open_loader(reprs, &own, error)
		?: add_group(reprs, error);
	if (err)
		ucm_reprs_close(reprs);
	else
		*out = reprs;
	return err;
}

void ucm_reprs_close(struct ucm_reprs *reprs)
{
	if (!reprs)
		return;
	ucm_loader_close(reprs->loader);
	free(reprs->mount);
	free(reprs->tiers);
	free(reprs);
}

const struct ucm_repr_space *ucm_reprs_space(const struct ucm_reprs *reprs)
{
	return &reprs->space;
}

/* ---- a call ---- */

static int slabs_check(const struct ucm_reprs *reprs,
		       const struct ucm_reprs_request *request,
		       struct ucm_error *error)
{
	size_t bytes = reprs->space.geometry.k_bytes;
	int err = 0;

	for (uint32_t i = 0; !err && i < request->num_layers; i++) {
		const struct ucm_repr_slab *slab = &request->slabs[i];

		err = ucm_repr_slab_check(slab, bytes, sizeof(float), error)
			?: ucm_repr_ids_check("slots", request->slots, 0,
					      request->num, slab->num_slots,
					      error);
	}
	return err;
}

static int request_check(const struct ucm_reprs *reprs,
			 const struct ucm_reprs_request *request, bool saves,
			 struct ucm_error *error)
{
	uint32_t layers = reprs->space.geometry.num_layers;

	if ((request->num && !request->ids) || !request->slabs)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !request->slabs ? "slabs" : "ids");
	if (!request->num_layers || request->first_layer >= layers ||
	    request->num_layers > layers - request->first_layer)
		return ucm_error_set(error, -EINVAL, "layers: %" PRIu32 " from %"
				     PRIu32 " on, there are %" PRIu32,
				     request->num_layers, request->first_layer,
				     layers);
	if (saves && request->num_layers != layers)
		return ucm_error_set(error, -EINVAL, "layers: %" PRIu32 ", where "
				     "all %" PRIu32 " are saved at once",
				     request->num_layers, layers);
	return slabs_check(reprs, request, error);
}

static int job_submit(const struct ucm_reprs *reprs,
		      const struct ucm_reprs_request *request, bool saves,
		      struct ucm_task **out, struct ucm_error *error)
{
	uint32_t layers = request->num_layers;
	_cleanup_free_ struct ucm_move *blocks =
		calloc(request->num, sizeof(*blocks));
	_cleanup_free_ uint64_t *addresses =
		calloc(request->num, layers * sizeof(*addresses));
	const struct ucm_request job = {
		.size = sizeof(job),
		.group = reprs->group,
		.first_layer = request->first_layer,
		.num_layers = layers,
		.blocks = blocks,
		.num_blocks = request->num,
		.addresses = addresses,
	};

	if (!blocks || !addresses)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	for (size_t i = 0; i < request->num; i++) {
		blocks[i].id = request->ids[i];
		for (uint32_t l = 0; l < layers; l++)
			addresses[i * layers + l] = (uintptr_t)ucm_repr_slot(
				&request->slabs[l], request->slots, i);
	}
	return saves ? ucm_save_submit(reprs->loader, &job, out, error)
		     : ucm_load_submit(reprs->loader, &job, out, error);
}

/* What became of the blocks. */
static int job_results(const struct ucm_task *task,
		       const struct ucm_reprs_request *request,
		       size_t *num_done, struct ucm_error *error)
{
	const struct ucm_outcome *outcomes = ucm_task_outcomes(task);
	char hex[UCM_ID_HEX + 1], text[128];
	size_t failed = request->num;

	for (size_t i = 0; i < request->num; i++) {
		if (request->results)
			request->results[i] = outcomes[i].err;
		if (!outcomes[i].err)
			++*num_done;
		else if (failed == request->num)
			failed = i;
	}
	if (failed == request->num)
		return 0;
	ucm_id_format(&request->ids[failed], hex);
	ucm_outcome_text(&outcomes[failed], text, sizeof(text));
	return ucm_error_set(error, outcomes[failed].err, "%s: %s", hex, text);
}

/* Is the space still what it was when it was opened? */
static int check_again(const struct ucm_reprs *reprs, struct ucm_error *error)
{
	struct ucm_repr_space now;
	int err = read_space(reprs, &now, error);

	if (!err && !differs(&now, &reprs->space))
		return 0;
	if (err && err != -ENOENT && err != -EINVAL)
		return err;
	return ucm_error_set(error, -ESTALE, "space %s: removed, or made again",
			     reprs->name);
}

static void results_are(const struct ucm_reprs_request *request, int err)
{
	for (size_t i = 0; request->results && i < request->num; i++)
		request->results[i] = err;
}

/* What may have come into another space is not what its manifest says; a block
 * without is attended to densely. */
static void take_back(struct ucm_reprs *reprs,
		      const struct ucm_reprs_request *request)
{
	for (size_t i = 0; i < request->num; i++) {
		int32_t result;

		ucm_loader_remove(reprs->loader, reprs->group, &request->ids[i],
				  1, &result);
	}
}

static int reprs_move(struct ucm_reprs *reprs,
		      const struct ucm_reprs_request *given, bool saves,
		      size_t *num_done, struct ucm_error *error)
{
	struct ucm_reprs_request request;
	struct ucm_task *task;
	int err, again;

	if (num_done)
		*num_done = 0;
	if (!reprs || !num_done)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !reprs  ? "reprs"
				     : saves ? "num_saved" : "num_loaded");
	err = ucm_sized_take(&request, sizeof(request), given,
			     offsetof(struct ucm_reprs_request, slots),
			     "ucm_reprs_request", error)
		?: request_check(reprs, &request, saves, error);
	if (err || !request.num)
		return err;
	err = saves ? check_again(reprs, error) : 0;
	if (!err)
		err = job_submit(reprs, &request, saves, &task, error);
	if (err)
		return err;
	ucm_task_wait(task, -1);
	err = job_results(task, &request, num_done, error);
	ucm_task_free(task);
	again = *num_done ? check_again(reprs, error) : 0;
	if (again) {
		if (saves && again == -ESTALE)
			take_back(reprs, &request);
		results_are(&request, again);
		*num_done = 0;
	}
	return again ? again : err;
}

int ucm_reprs_load(struct ucm_reprs *reprs,
		   const struct ucm_reprs_request *request, size_t *num_loaded,
		   struct ucm_error *error)
{
	return reprs_move(reprs, request, false, num_loaded, error);
}

int ucm_reprs_save(struct ucm_reprs *reprs,
		   const struct ucm_reprs_request *request, size_t *num_saved,
		   struct ucm_error *error)
{
	return reprs_move(reprs, request, true, num_saved, error);
}
