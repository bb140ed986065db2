/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_images.c - what the compiled kernels that the library carries are made of.
 *
 * Machine code is ELF, whose flags say for which device it is; compressed it
 * could not be found here. PTX is text.
 */
#include <config.h>

#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"

#ifndef EM_CUDA
#define EM_CUDA 190
#endif

extern const char ucm_kernels_fatbin[], ucm_kernels_ptx[];
extern const char ucm_twins_fatbin[], ucm_twins_ptx[];

/* In the order of the file: the fatbin, then the PTX. */
static const struct {
	const char *fatbin, *ptx;
	const char *entry; /* one of its kernels */
} images[] = {
	{ ucm_kernels_fatbin, ucm_kernels_ptx, ".entry ucm_gather(" },
	{ ucm_twins_fatbin, ucm_twins_ptx, ".entry ucm_twin_select(" },
};

/* "sm_75 sm_80", from the images' own headers. */
static void list_devices(const char *from, const char *end, char *out)
{
	Elf64_Ehdr header;

	for (; from + sizeof(header) <= end; from += 4) {
		if (memcmp(from, ELFMAG, SELFMAG) != 0)
			continue;
		memcpy(&header, from, sizeof(header));
		if (header.e_machine == EM_CUDA)
			out += sprintf(out, "%ssm_%u", *(out - 1) ? " " : "",
				       header.e_flags >> 8 & 0xff);
	}
}

UNIT_TEST(there_is_machine_code_for_each_device_that_is_named, .rows = 2)
{
	char text[1024] = { 0 };

	list_devices(images[_i].fatbin, images[_i].ptx, text + 1);
	ck_assert_str_eq(text + 1, CUDA_IMAGES);
}

/* The loader needs a driver of CUDA 12.0 at least, whose version is 8.0. */
UNIT_TEST(every_driver_that_is_new_enough_takes_the_ptx, .rows = 2)
{
	const char *ptx = images[_i].ptx;

	ck_assert_ptr_nonnull(strstr(ptx, "\n.version 8.0\n"));
	ck_assert(strstr(ptx, "\n.target sm_75\n") ||
		  strstr(ptx, "\n.target sm_80\n"));
	ck_assert_ptr_nonnull(strstr(ptx, images[_i].entry));
	ck_assert_ptr_null(strstr(ptx, "used_bytes_mask"));
}
