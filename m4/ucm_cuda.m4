dnl SPDX-License-Identifier: Apache-2.0
dnl UCM_CHECK_CUDA
dnl   auto: build the CUDA copy back end when nvcc and cuda.h are there.
dnl   yes or DIR: they must be there.   no: host back end only.
dnl Only the loader uses it; the mount never does. No library of CUDA is linked:
dnl the driver is opened at run time, so the same library runs without one.
AC_DEFUN([UCM_CHECK_CUDA],
[AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags; default: -O3 and the architectures known])
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
[AS_IF([test "x$NVCCFLAGS" = x],
  [NVCCFLAGS="-O3"
   ucm_known=" $($NVCC --list-gpu-code 2>/dev/null | tr '\n' ' ')"
   for ucm_arch in 80 86 89 90 100; do
     AS_CASE([$ucm_known], [*" sm_$ucm_arch "*],
       [NVCCFLAGS="$NVCCFLAGS -gencode arch=compute_$ucm_arch,code=sm_$ucm_arch"])
   done
   for ucm_arch in 75 80; do
     AS_CASE([$ucm_known], [*" sm_$ucm_arch "*],
       [NVCCFLAGS="$NVCCFLAGS -gencode arch=compute_$ucm_arch,code=compute_$ucm_arch"
        break])
   done])
AC_MSG_CHECKING([whether $NVCC $NVCCFLAGS works])
echo 'extern "C" __global__ void ucm(int *p) { *p = 1; }' >conftest.cu
AS_IF([$NVCC $NVCCFLAGS -fatbin -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
  [AC_MSG_RESULT([yes])],
  [AC_MSG_RESULT([no])
   have_cuda=no])
rm -f conftest.cu conftest.fatbin
])
