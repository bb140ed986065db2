/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.S - the compiled kernels, carried inside the library: machine code for
 * the devices that are known, and PTX, a string, for others. */
	.section .rodata
	.balign 64
	.global ucm_kernels_fatbin
	.hidden ucm_kernels_fatbin
	.type ucm_kernels_fatbin, %object
ucm_kernels_fatbin:
	.incbin "kernels.fatbin"
	.size ucm_kernels_fatbin, .-ucm_kernels_fatbin
	.global ucm_kernels_ptx
	.hidden ucm_kernels_ptx
	.type ucm_kernels_ptx, %object
ucm_kernels_ptx:
	.incbin "kernels.ptx"
	.byte 0
	.size ucm_kernels_ptx, .-ucm_kernels_ptx
	.section .note.GNU-stack,"",%progbits
