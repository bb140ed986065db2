/* SPDX-License-Identifier: Apache-2.0 */
/* kinds.h - what each kind of space of representations says of itself. */
#ifndef UCM_REPR_KINDS_H
#define UCM_REPR_KINDS_H

#include <ucm/repr.h>

/* Where params have a digest, of those kinds that have one. */
#define UCM_REPR_DIGEST_AT 32u

/* Is the kind known, and are spec, k_bytes and params as it wants them? */
int ucm_repr_kind_check(const struct ucm_repr_space *space,
			struct ucm_error *error);

/* params of codes, and of merged channels that are right. centers, channels: of
 * so many layers; or NULL. */
int ucm_repr_params_of_codes(const struct ucm_code_spec *spec,
			     const float *centers, uint32_t num_layers,
			     uint8_t params[UCM_REPR_PARAMS_BYTES],
			     struct ucm_error *error);
int ucm_repr_params_of_channels(const struct ucm_star_spec *spec,
				const uint16_t *channels, uint32_t num_layers,
				uint8_t params[UCM_REPR_PARAMS_BYTES],
				struct ucm_error *error);

#endif
