#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ptx.sh OUT.ptx SOURCE.cu ARCH NVCC [OPTIONS] - PTX that old drivers take
#
# nvcc writes PTX of its own version, and a driver that is older than the toolkit
# refuses it. Nothing in our kernels is younger than version 8.0, of CUDA 12.0,
# which is the oldest driver that the library works with. So the version is
# lowered to that, and hints of later versions are left out (used_bytes_mask says
# which bytes of a load are looked at; without it all are loaded). Whether that is
# valid PTX of version 8.0 is nvcc's to say. If it is not, the text stays as it
# was: newer drivers take it.
set -eu
out=$1 source=$2 arch=$3
shift 3
new=${out%.ptx}.new.ptx
low=${out%.ptx}.low.ptx
trap 'rm -f "$new" "$low" "$low.cubin"' EXIT

"$@" -ptx -arch="compute_$arch" -o "$new" "$source"
sed -e 's/^\.version .*/.version 8.0/' \
    -e '/^[[:space:]]*\.pragma "used_bytes_mask/d' "$new" >"$low"
if "$@" -cubin -arch="sm_$arch" -o "$low.cubin" "$low"; then
	mv "$low" "$out"
else
	echo "$source: warning: PTX of version 8.0 is refused;" \
	     "drivers older than this toolkit will not take what is built" >&2
	mv "$new" "$out"
fi
