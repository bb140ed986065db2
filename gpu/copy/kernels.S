/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.S - the compiled kernels, carried inside the library. */
	.section .rodata
	.balign 64
	.global ucm_kernels_fatbin
	.hidden ucm_kernels_fatbin
	.type ucm_kernels_fatbin, %object
ucm_kernels_fatbin:
	.incbin "kernels.fatbin"
	.size ucm_kernels_fatbin, .-ucm_kernels_fatbin
	.section .note.GNU-stack,"",%progbits
