/* SPDX-License-Identifier: Apache-2.0 */
/* star.h - merged channels, inside: is a spec right? */
#ifndef UCM_SPARSE_STAR_H
#define UCM_SPARSE_STAR_H

#include <stddef.h>

#include <ucm/sparse.h>

/* All but the channels. *bytes: ucm_star_bytes() with right ones. */
int ucm_star_check(const struct ucm_star_spec *spec, size_t *bytes,
		   struct ucm_error *error);

/* The channels, of a spec that is right but for them. */
int ucm_star_channels_check(const struct ucm_star_spec *spec,
			    struct ucm_error *error);

#endif
