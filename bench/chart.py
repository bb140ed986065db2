#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What names cost, as a picture.

    bench/mount.sh --section latency --tsv | bench/chart.py >doc/latency.svg

A column for each place (tmpfs, ext4); in it, for each work, a bar of the
directory and one for each way that requests take to the mount's daemon, all on
one scale. Below stands what the run says of itself. As wide as a telephone; on
white, so that it is read on a dark page, too.
"""

from __future__ import annotations

import html
import statistics
import sys
import textwrap

WIDTH = 340
COLUMN = WIDTH // 2
ROOM = 125      # of the longest bar; the rest is for its number
BAR = 12
COLOURS = ("#888", "#27b", "#d80", "#a4a")
STYLE = ("svg { background: #fff; font: 12px sans-serif; fill: #222; } "
         ".place { font-weight: bold; } .small { font-size: 11px; }")

# {work: {place: {way: [us]}}}
Works = "dict[str, dict[str, dict[str, list[float]]]]"


def read(lines: list[str]) -> tuple[Works, list[str]]:
    """Rows, and what is said of the run."""
    works: Works = {}
    said = []
    for line in lines:
        if line.startswith("# "):
            said.append(line[2:].strip())
            continue
        where, section, work, unit, directory, mount = line.split("\t")[:6]
        if section != "latency" or unit != "us":
            continue
        place, way = where.split(", ")
        row = works.setdefault(work, {}).setdefault(place, {})
        # it is measured again beside each way
        row.setdefault("directory", []).append(float(directory))
        row.setdefault(way, []).append(float(mount))
    return works, said


def text(x: float, y: float, what: str, kind: str = "") -> str:
    kind = kind and f' class="{kind}"'
    return f'<text x="{x:g}" y="{y:g}"{kind}>{html.escape(what)}</text>'


def bar(x: float, y: float, length: float, colour: str) -> str:
    return (f'<rect x="{x:g}" y="{y:g}" width="{max(length, 1):.1f}" '
            f'height="{BAR - 2}" fill="{colour}"/>')


def head(places: list[str], ways: list[str]) -> str:
    out = [text(4, 16, "Microseconds a call, directory and mount")]
    x = 4
    for way, colour in zip(ways, COLOURS):
        name = way if way == "directory" else f"mount, {way}"
        out += [bar(x, 25, BAR - 2, colour), text(x + 14, 34, name, "small")]
        x += 28 + 6 * len(name)
    out += [text(4 + i * COLUMN, 56, place, "place")
            for i, place in enumerate(places)]
    return "".join(out)


def draw(works: Works, said: list[str]) -> str:
    """A line of the file for each work."""
    places = list(dict.fromkeys(p for row in works.values() for p in row))
    ways = list(dict.fromkeys(w for row in works.values()
                              for place in row.values() for w in place))
    scale = ROOM / max(us for row in works.values() for place in row.values()
                       for values in place.values() for us in values)
    lines, y = [head(places, ways)], 56
    for work, row in works.items():
        out = [text(4, y + 20, work)]
        for i, place in enumerate(places):
            for j, (way, colour) in enumerate(zip(ways, COLOURS)):
                if way not in row.get(place, {}):
                    continue
                us = statistics.median(row[place][way])
                x, top = 4 + i * COLUMN, y + 25 + j * BAR
                out += [bar(x, top, us * scale, colour),
                        text(x + us * scale + 4, top + 9, f"{us:.3g}",
                             "small")]
        lines.append("".join(out))
        y += 25 + len(ways) * BAR
    parts = [part for line in said for part in textwrap.wrap(line, 55)]
    lines.append("".join(text(4, y + 22 + 14 * i, part, "small")
                         for i, part in enumerate(parts)))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
            f'height="{y + 18 + 14 * len(parts)}"><title>What names cost'
            f"</title><style>{STYLE}</style>\n" + "\n".join(lines) + "</svg>")


def main() -> None:
    works, said = read(sys.stdin.readlines())
    if not works:
        sys.exit("chart.py: no line of --section latency --tsv")
    # "/dev/shm: tmpfs tmpfs" and the rounds of rates say nothing here
    print(draw(works, [line for line in said
                       if not line.startswith(("/", "rounds "))]))


main()
