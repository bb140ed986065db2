#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Blocks without checksums are committed when ordinary programs have written
# them and end well: also the first of a space, whose size nothing tells.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test fuse rsync

with_cp() { cp "$1" "$2"; }
with_cp_p() { cp -p "$1" "$2"; }
with_install() { install -m 644 "$1" "$2"; }
with_cat() { cat "$1" >"$2"; }
with_cats() { { head -c 1000 "$1" && tail -c +1001 "$1"; } >"$2"; }
with_sh() { sh -c 'cat "$0" >"$1"' "$1" "$2"; }
with_dd() { dd if="$1" of="$2" bs=512 status=none; }
with_dd_fsync() { dd if="$1" of="$2" conv=fsync status=none; }
with_rsync() { rsync "$1" "$2"; }
with_rsync_inplace() { rsync --inplace "$1" "$2"; }
with_tar() { tar -C "$(dirname "$1")" -c "$(basename "$1")" | tar -C "$(dirname "$2")" -x; }
with_mv() { cp "$1" "$2.tmp" && mv "$2.tmp" "$2"; }
with_python() { python3 -c 'import sys; open(sys.argv[2], "wb").write(open(sys.argv[1], "rb").read())' "$1" "$2"; }

need do_mount "$work/tier"
for form in bare packed; do
	rm -rf "$work/src"
	make_src --form $form --no-crc --count 2
	small_paths 2 >"$work/paths"
	for program in cp cp_p install cat cats sh dd dd_fsync rsync \
		rsync_inplace tar mv python; do
		space=$mnt/spaces/$form.$program
		need mkdir "$space"
		while read -r path; do
			case $form.$program in
			bare.install | bare.rsync_inplace)
				# they look for the file right after its close
				with_$program "$work/src/$path" \
					"$space/$path" 2>"$work/err" ;;
			*)
				check "$form: $program ends well" with_$program \
					"$work/src/$path" "$space/$path" ;;
			esac
			check "$form: $program wrote a block" \
				wait_until cmp "$work/src/$path" "$space/$path"
		done <"$work/paths"
	done
done
do_umount
