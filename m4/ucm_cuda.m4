dnl SPDX-License-Identifier: Apache-2.0
dnl UCM_CHECK_CUDA
dnl   auto: build the CUDA copy back end when nvcc and cuda.h are there.
dnl   yes or DIR: they must be there.   no: host back end only.
dnl Only the loader uses it; the mount never does. No library of CUDA is linked:
dnl the driver is opened at run time, so the same library runs without one.
AC_DEFUN([UCM_CHECK_CUDA],
[AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags @<:@-O3@:>@])
AC_ARG_VAR([CUDA_ARCHS], [devices to have machine code for @<:@75 80 86 89 90 100 103 110 120, as far as nvcc knows them@:>@])
AC_ARG_WITH([cuda],
  [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
     [build the CUDA copy back end (auto, yes, no or the toolkit's folder) @<:@auto@:>@])],
  [], [with_cuda=auto])
AS_CASE([$with_cuda], [auto|yes|no], [ucm_path=$PATH], [ucm_path=$with_cuda/bin])
have_cuda=no
AS_IF([test "x$with_cuda" != xno],
  [AC_PATH_PROG([NVCC], [nvcc], [], [$ucm_path])
   AS_IF([test "x$NVCC" != x], [UCM_CUDA_HEADERS])
   AS_IF([test "x$have_cuda" = xyes], [UCM_CUDA_KERNELS])
   AS_IF([test "x$have_cuda" = xyes],
     [AC_SUBST([CUDA_CPPFLAGS])
      AC_DEFINE([HAVE_CUDA], [1], [Define to build the CUDA copy back end.])])
   AS_CASE([$with_cuda:$have_cuda],
     [auto:no], [AC_MSG_NOTICE([CUDA not found: nothing for a GPU will be built])],
     [*:no], [AC_MSG_ERROR([--with-cuda=$with_cuda was given, but nvcc or cuda.h (CUDA 12.8 or later) is missing or does not work])])])
AC_SUBST([with_cuda]) dnl for make distcheck
AM_CONDITIONAL([HAVE_CUDA], [test "x$have_cuda" = xyes])
])

dnl The headers of this very nvcc. It may be a script that calls another one, so
dnl it is asked where it lives. The newest call that is used: 12.8's.
AC_DEFUN([UCM_CUDA_HEADERS],
[AC_REQUIRE([AC_PROG_SED])
AC_MSG_CHECKING([for the CUDA toolkit of $NVCC])
echo 'int ucm;' >conftest.cu
ucm_root=$($NVCC --dryrun -fatbin -o conftest.fatbin conftest.cu 2>&1 |
  $SED -n 's/^#\$ TOP=//p')
rm -f conftest.cu conftest.fatbin
AS_IF([test "x$ucm_root" != x && test -d "$ucm_root"],
  [ucm_root=$(cd "$ucm_root" && pwd -P)],
  [ucm_root=$(dirname "$(dirname "$(readlink -f "$NVCC")")")])
AC_MSG_RESULT([$ucm_root])
AS_IF([test "x$ucm_root" = x/usr], [CUDA_CPPFLAGS=],
  [CUDA_CPPFLAGS="-isystem $ucm_root/include"])
ucm_save_CPPFLAGS=$CPPFLAGS
CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
AC_CHECK_TYPE([PFN_cuMemcpyBatchAsync_v12080], [have_cuda=yes], [],
  [[#include <cuda.h>
#include <cudaTypedefs.h>]])
CPPFLAGS=$ucm_save_CPPFLAGS
])

dnl Machine code for the cards in use, and PTX for any other from the oldest on,
dnl which costs a compilation when it is loaded.
AC_DEFUN([UCM_CUDA_KERNELS],
[AS_IF([test "x$NVCCFLAGS" = x], [NVCCFLAGS=-O3])
ucm_known=" $($NVCC --list-gpu-code 2>/dev/null | tr '\n' ' ')"
ucm_archs=
for ucm_arch in ${CUDA_ARCHS:-75 80 86 89 90 100 103 110 120}; do
  AS_CASE([$ucm_known], [*" sm_$ucm_arch "*], [ucm_archs="$ucm_archs $ucm_arch"],
    [AS_IF([test "x$CUDA_ARCHS" != x],
       [AC_MSG_ERROR([CUDA_ARCHS: $NVCC does not know sm_$ucm_arch; it knows$ucm_known])])])
done
CUDA_PTX_ARCH=80
AS_CASE([$ucm_known], [*" sm_75 "*], [CUDA_PTX_ARCH=75])
echo 'extern "C" __global__ void ucm(int *p) { *p = 1; }' >conftest.cu
AC_MSG_CHECKING([which devices $NVCC compiles for])
UCM_CUDA_TRY([$ucm_archs])
dnl One of them may be listed and not work: each is tried by itself.
AS_IF([test "x$CUDA_IMAGES" = x],
  [ucm_work=
   for ucm_arch in $ucm_archs; do
     UCM_CUDA_TRY([$ucm_arch])
     AS_IF([test "x$CUDA_IMAGES" != x], [ucm_work="$ucm_work $ucm_arch"])
   done
   AS_IF([test "x$ucm_work" != x], [UCM_CUDA_TRY([$ucm_work])])])
rm -f conftest.cu conftest.fatbin
AS_IF([test "x$CUDA_IMAGES" = x],
  [AC_MSG_RESULT([none])
   have_cuda=no],
  [AC_MSG_RESULT([$CUDA_IMAGES])
   AC_DEFINE_UNQUOTED([CUDA_IMAGES], ["$CUDA_IMAGES"],
     [Devices that the library has machine code for.])])
AC_SUBST([CUDA_GENCODE])
AC_SUBST([CUDA_PTX_ARCH])
])

dnl UCM_CUDA_TRY(ARCHS): does it compile for all of them? Sets CUDA_IMAGES, if so,
dnl to their names, and CUDA_GENCODE to the options.
AC_DEFUN([UCM_CUDA_TRY],
[CUDA_IMAGES= CUDA_GENCODE=
for ucm_one in $1; do
  CUDA_IMAGES="$CUDA_IMAGES${CUDA_IMAGES:+ }sm_$ucm_one"
  CUDA_GENCODE="$CUDA_GENCODE -gencode arch=compute_$ucm_one,code=sm_$ucm_one"
done
AS_IF([test "x$CUDA_GENCODE" != x &&
       $NVCC $NVCCFLAGS $CUDA_GENCODE --no-compress -fatbin -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
  [], [CUDA_IMAGES=])
])
