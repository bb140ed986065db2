/* SPDX-License-Identifier: Apache-2.0 */
/* method.h - a method's configuration, from a dictionary. */
#ifndef UCM_SPARSE_METHOD_H
#define UCM_SPARSE_METHOD_H

#include <ucm/retrieve.h>

/* Text that begins with a brace: as ucm_sparse_parse(), but not yet checked. */
int ucm_method_parse_json(const char *text, size_t len, uint32_t block_size,
			  uint32_t num_layers, struct ucm_sparse_config *out,
			  struct ucm_error *error);

/* By its number, which may be any; NULL: there is none. */
const struct ucm_sparse_method *ucm_method_of(uint32_t method);

/* ucm_sparse_find(), or -ENOENT with the names that there are. */
int ucm_method_find(const char *name, const struct ucm_sparse_method **out,
		    struct ucm_error *error);

#endif
