/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - hash tables: uthash, of elements that embed a UT_hash_handle.
 *
 * Where there is no memory an element is not added: its hh.tbl is NULL, and
 * nothing else has changed. For lists, <sys/queue.h>.
 */
#ifndef UCM_COMMON_TABLE_H
#define UCM_COMMON_TABLE_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#endif
