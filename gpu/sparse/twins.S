/* SPDX-License-Identifier: Apache-2.0 */
/* twins.S - the compiled kernels of twins.cu, carried inside the library. */
	.section .rodata
	.balign 64
	.global ucm_twins_fatbin
	.hidden ucm_twins_fatbin
	.type ucm_twins_fatbin, %object
ucm_twins_fatbin:
	.incbin "twins.fatbin"
	.size ucm_twins_fatbin, .-ucm_twins_fatbin
	.section .note.GNU-stack,"",%progbits
