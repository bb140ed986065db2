/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - compiled kernels, for whichever device there is.
 *
 * The library carries them twice: as machine code for the devices that are known
 * (CUDA_IMAGES of config.h; one image does for later minor versions as well), and
 * as PTX, which the driver compiles for any other from the oldest on. Neither is
 * compressed, and the PTX is of an old version, see ptx.sh: drivers that are
 * older than the toolkit take them.
 */
#ifndef UCM_COPY_IMAGE_H
#define UCM_COPY_IMAGE_H

#include "gpu/copy/cuda_api.h"

struct ucm_cuda_image {
	const char *fatbin;
	const char *ptx; /* a string */
};

/*
 * Load the kernels for a device, whose context has been entered. -ENOTSUP: none
 * of the images is for it, or its driver does not take them; error names the
 * device, its architecture, and the images there are.
 */
int ucm_cuda_image_load(const struct ucm_cuda *cuda, CUdevice device,
			const struct ucm_cuda_image *image, CUmodule *out,
			struct ucm_error *error);

#endif
