/* SPDX-License-Identifier: Apache-2.0 */
/* twins.S - the compiled kernels of twins.cu, carried inside the library: machine code for
 * the devices that are known, and PTX, a string, for others. */
	.section .rodata
	.balign 64
	.global ucm_twins_fatbin
	.hidden ucm_twins_fatbin
	.type ucm_twins_fatbin, %object
ucm_twins_fatbin:
	.incbin "twins.fatbin"
	.size ucm_twins_fatbin, .-ucm_twins_fatbin
	.global ucm_twins_ptx
	.hidden ucm_twins_ptx
	.type ucm_twins_ptx, %object
ucm_twins_ptx:
	.incbin "twins.ptx"
	.byte 0
	.size ucm_twins_ptx, .-ucm_twins_ptx
	.section .note.GNU-stack,"",%progbits
