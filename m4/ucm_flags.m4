dnl SPDX-License-Identifier: Apache-2.0
dnl UCM_CHECK_SANITIZERS: --enable-asan, --enable-tsan, and that they link.
AC_DEFUN([UCM_CHECK_SANITIZERS],
[AC_ARG_ENABLE([asan],
  [AS_HELP_STRING([--enable-asan], [build with address and undefined-behaviour sanitizers])],
  [], [enable_asan=no])
AC_ARG_ENABLE([tsan],
  [AS_HELP_STRING([--enable-tsan], [build with the thread sanitizer])],
  [], [enable_tsan=no])
ucm_sanitizers=none
SAN_CFLAGS=
AS_CASE([$enable_asan:$enable_tsan],
  [yes:yes], [AC_MSG_ERROR([--enable-asan and --enable-tsan exclude each other])],
  [yes:*], [ucm_sanitizers="address, undefined"
    SAN_CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"],
  [*:yes], [ucm_sanitizers=thread
    SAN_CFLAGS="-fsanitize=thread -fno-omit-frame-pointer"])
AS_IF([test "x$SAN_CFLAGS" != x],
  [ucm_save_CFLAGS=$CFLAGS
   CFLAGS="$CFLAGS $SAN_CFLAGS"
   AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [],
     [AC_MSG_ERROR([the compiler cannot link $SAN_CFLAGS])])
   CFLAGS=$ucm_save_CFLAGS])
AC_SUBST([SAN_CFLAGS])
AM_CONDITIONAL([SANITIZED], [test "x$SAN_CFLAGS" != x])
])

dnl UCM_CHECK_HARDENING: what a root daemon should be built with.
AC_DEFUN([UCM_CHECK_HARDENING],
[UCM_HARDEN_CFLAGS="-fstack-protector-strong"
UCM_HARDEN_LDFLAGS="-Wl,-z,relro,-z,now"
AS_IF([test "x$SAN_CFLAGS" = x],
  [AS_CASE([" $CFLAGS "],
    [*" -O0 "*], [],
    [UCM_HARDEN_CFLAGS="$UCM_HARDEN_CFLAGS -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"])])
AC_SUBST([UCM_HARDEN_CFLAGS])
AC_SUBST([UCM_HARDEN_LDFLAGS])
])
