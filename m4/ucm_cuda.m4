dnl SPDX-License-Identifier: Apache-2.0
dnl UCM_CHECK_CUDA
dnl   auto: build the CUDA copy back end when nvcc and cuda.h are there.
dnl   yes or DIR: they must be there.   no: host back end only.
dnl Only the loader uses it; the mount never does.
AC_DEFUN([UCM_CHECK_CUDA],
[AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags])
AC_ARG_WITH([cuda],
  [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
     [build the CUDA copy back end (auto, yes, no or the toolkit's folder) @<:@auto@:>@])],
  [], [with_cuda=auto])
AS_CASE([$with_cuda], [auto|yes|no], [ucm_path=$PATH], [ucm_path=$with_cuda/bin])
have_cuda=no
AS_IF([test "x$with_cuda" != xno],
  [AC_PATH_PROG([NVCC], [nvcc], [], [$ucm_path])
   AS_IF([test "x$NVCC" != x],
     [ucm_root=$(dirname "$(dirname "$(readlink -f "$NVCC")")")
      ucm_save_CPPFLAGS=$CPPFLAGS
      CPPFLAGS="$CPPFLAGS -I$ucm_root/include"
      AC_CHECK_HEADER([cuda.h],
        [have_cuda=yes
         AC_SUBST([CUDA_CPPFLAGS], ["-I$ucm_root/include"])
         AC_DEFINE([HAVE_CUDA], [1], [Define to build the CUDA copy back end.])])
      CPPFLAGS=$ucm_save_CPPFLAGS])
   AS_CASE([$with_cuda:$have_cuda],
     [auto:no], [AC_MSG_NOTICE([CUDA not found: nothing for a GPU will be built])],
     [*:no], [AC_MSG_ERROR([--with-cuda=$with_cuda was given, but nvcc or cuda.h is missing])])])
AM_CONDITIONAL([HAVE_CUDA], [test "x$have_cuda" = xyes])
])
