#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench/chart.py: lines of bench/mount.sh --tsv become a picture, on one scale.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns python3

chart() {
	python3 -B "$top_srcdir/bench/chart.py"
}

{
	printf '# %s\n' 'bench/mount.sh --section latency --tsv' 'kernel <7>' \
		'/dev/shm: tmpfs tmpfs' 'rounds 2, at least 200 ms each'
	row() {
		printf '%s, %s\tlatency\topen, new name\tus\t%s\t%s\t1\t1\t1\t-\t-\n' "$@"
	}
	row tmpfs io_uring 1 20
	row tmpfs /dev/fuse 3 80
	row ext4 io_uring 5 40
	printf 'tmpfs\tdirect\tread\tMB/s\t900\t900\t1\t1\t1\t-\t-\n'
} >"$work/lines"
chart <"$work/lines" >"$work/latency.svg"
same 'it draws' 0 $?
# texts, then the lengths of bars (10 is the legend's)
same 'what was measured, its bars, and what the run says of itself' \
	'Microseconds a call, directory and mount
directory
mount, io_uring
mount, /dev/fuse
tmpfs
ext4
open, new name
2
20
80
5
40
bench/mount.sh --section latency --tsv
kernel <7>
10.0 10.0 10.0 3.1 31.2 125.0 7.8 62.5' "$(python3 -c 'import sys
from xml.etree import ElementTree
space = "{http://www.w3.org/2000/svg}"
root = ElementTree.parse(sys.argv[1]).getroot()
print(*(each.text for each in root.iter(space + "text")), sep="\n")
print(*(each.get("width") for each in root.iter(space + "rect")))' \
	"$work/latency.svg")"
refused 'no line of --section latency' 'figures of something else' chart </dev/null
exit $failed
