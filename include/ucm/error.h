/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.h - what was wrong, in words.
 *
 * A call that can say more than an errno takes a struct ucm_error as its last
 * argument. When it fails it writes one line there that names the object and
 * the cause ("layers 3 + 2: the group has 4"), without a newline, and cut where
 * it is too long. It writes nothing when it succeeds; the text is empty if the
 * errno is all that is known. NULL: not wanted. The struct is the caller's, and
 * need not be initialized.
 */
#ifndef UCM_ERROR_H
#define UCM_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define UCM_ERROR_BYTES 1024u /* with the NUL */

struct ucm_error {
	char text[UCM_ERROR_BYTES];
};

#ifdef __cplusplus
}
#endif

#endif
