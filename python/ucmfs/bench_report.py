# SPDX-License-Identifier: Apache-2.0
"""Figures of a result of ucmfs.bench: a table, a page, a comparison.

A latency has a value for each request that succeeded (ITL: for each gap
between two parts of an answer); a rate has one. What the engine counted is
shown and not judged.
"""

from __future__ import annotations

import html
import json
import math
from typing import Any, NamedTuple, Sequence

MARK, VERSION = "ucmfs.bench", 1
WITHIN = 10  # percent by which a median may be worse
LOW, HIGH, SHOWN = -1, 1, 0  # which values are better
# What the connector counted in the mean time: a part, and of what.
ENGINE = (
    ("load_time", "loads, mean", "ms", 1e3,
     "load_seconds_sum", "load_seconds_count"),
    ("save_time", "saves, mean", "ms", 1e3,
     "save_seconds_sum", "save_seconds_count"),
    ("sparse_ratio", "blocks attended to", "%", 100,
     "sparse_attended_blocks_total", "sparse_blocks_total"),
    ("retrieved", "of blocks left in the store, loaded", "%", 100,
     "sparse_retrieved_blocks_total", "sparse_left_blocks_total"))
WIDTH, HEIGHT = 400, 120  # of a plot
COLORS = "#fb6", "#27b"  # old, new
STYLE = ("body { font: 14px sans-serif; max-width: 60em; margin: 1em; } "
         "td, th { text-align: right; padding: 0 1em 0 0; } "
         "td:first-child, th:first-child { text-align: left; } "
         "p { padding-left: 6px; } "
         "svg { background: #fff; font: 11px sans-serif; margin: 4px; }")


class Failure(Exception):
    """There is no result."""

    status = 1


class Incomparable(Failure):
    status = 2


class Figure(NamedTuple):
    title: str
    unit: str
    better: int
    values: Sequence[float]  # in order

    def at(self, share: float) -> float:
        """A quantile; between two values, in proportion."""
        place = share * (len(self.values) - 1)
        low, high = self.values[int(place)], self.values[math.ceil(place)]
        return low + place % 1 * (high - low)

    def numbers(self) -> list[float]:
        """Mean, median, P90, P99; of one value, itself."""
        mean = sum(self.values) / len(self.values)
        return [mean] if self.better != LOW else [
            mean, *map(self.at, (0.5, 0.9, 0.99))]


def ratio(scale: float, of: float, to: float) -> list[float]:
    return [scale * of / to] if to else []


def figures(result: dict[str, Any]) -> dict[str, Figure]:
    """By name; those without a value are left out."""
    records, engine = result["requests"], result["engine"]
    done = [each for each in records if "error" not in each]
    seconds = (max(each["start"] + each["end"] for each in records)
               - min(each["start"] for each in records))
    output = sum(each["output"] for each in done)
    prompts = sum(each["input"] or 0 for each in done)
    # servers that count them may leave out a 0
    hits = [each for each in done if each["input"]] if any(
        each["cached"] is not None for each in done) else []
    found: dict[str, Any] = {
        "ttft": ("time to first token", "ms", LOW,
                 [1e3 * each["times"][0] for each in done]),
        "tpot": ("time per output token", "ms", LOW,
                 [1e3 * (each["times"][-1] - each["times"][0])
                  / (each["output"] - 1)
                  for each in done
                  if each["output"] > 1 and len(each["times"]) > 1]),
        "itl": ("inter-token latency", "ms", LOW,
                [1e3 * (b - a) for each in done
                 for a, b in zip(each["times"], each["times"][1:])]),
        "e2e": ("end to end", "ms", LOW, [1e3 * each["end"] for each in done]),
        "request_rate": ("requests", "1/s", HIGH, [len(done) / seconds]),
        "output_rate": ("output tokens", "1/s", HIGH, [output / seconds]),
        "token_rate": ("all tokens", "1/s", HIGH,
                       [(prompts + output) / seconds]),
        "success": ("success", "%", HIGH, [100 * len(done) / len(records)]),
        "hit_rate": ("prompt tokens cached", "%", SHOWN,
                     ratio(100, sum(each["cached"] or 0 for each in hits),
                           sum(each["input"] for each in hits))),
    }
    for name, title, unit, scale, of, to in ENGINE:
        found[name] = (title, unit, SHOWN,
                       ratio(scale, engine.get(of, 0), engine.get(to, 0)))
    return {name: Figure(title, unit, better, sorted(values)) for name, (
        title, unit, better, values) in found.items() if values}


def rows_of(result: dict[str, Any]) -> list[list[str]]:
    return [["", "", "mean", "median", "P90", "P99"], *(
        [each.title, each.unit, *(f"{x:.2f}" for x in each.numbers())]
        for each in figures(result).values())]


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows if i < len(row))
              for i in range(max(map(len, rows)))]
    return "\n".join("  ".join(
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths))).rstrip()
        for row in rows)


def said_of(result: dict[str, Any]) -> list[str]:
    """What was done, and what failed."""
    errors = [each["error"] for each in result["requests"]
              if "error" in each]
    words = [f"{name}={value}" for name, value in result["parameters"].items()]
    return [" ".join([result["url"], *words, f"seed={result['seed']}"]),
            f"{len(errors)} of {len(result['requests'])} failed"
            + (f", the first one: {errors[0]}" if errors else "")]


# ---- a comparison ----

def read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        if result[MARK] != VERSION:
            raise ValueError(f"version {result[MARK]}")
        if "ttft" not in figures(result):
            raise ValueError("no request succeeded")
        result["parameters"].keys()
        return result
    except (OSError, ValueError, LookupError, TypeError, AttributeError,
            ArithmeticError) as error:
        raise Incomparable(
            f"{path}: not a result that can be compared: {error}") from None


def is_worse(old: Figure, new: Figure, within: float) -> bool:
    """By more than a percentage, and beyond what the old one varies."""
    a, b = old.at(0.5), new.at(0.5)
    if old.better == LOW:
        return b > a * (1 + within / 100) and b > old.at(0.75)
    return (old.better == HIGH and b < a * (1 - within / 100)
            and b < old.at(0.25))


def compare(old: dict[str, Any], new: dict[str, Any], within: float = WITHIN,
            names: tuple[str, str] = ("old", "new")) -> list[list[str]]:
    """The rows of a table; the last cell of what is worse says so."""
    a, b = old["parameters"], new["parameters"]
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            raise Incomparable(f"{name}: {a.get(name)} and {b.get(name)}")
    rows = [["median", "", names[0], "quartiles", names[1], "change", ""]]
    theirs = figures(new)
    for name, was in figures(old).items():
        if name not in theirs:
            if was.better != SHOWN:
                rows.append([was.title, was.unit, f"{was.at(0.5):.2f}", "",
                             "none", "", "REGRESSION"])
            continue
        now = theirs[name]
        change = 100 * (now.at(0.5) / was.at(0.5) - 1) if was.at(0.5) else 0.0
        rows.append([was.title, was.unit, f"{was.at(0.5):.2f}",
                     f"{was.at(0.25):.2f}-{was.at(0.75):.2f}",
                     f"{now.at(0.5):.2f}", f"{change:+.1f} %",
                     "REGRESSION" if is_worse(was, now, within) else ""])
    return rows


def check(old: str, new: str, within: float, page: str | None) -> int:
    """Prints what differs; the exit status. page: a file for it, or None."""
    results = read(old), read(new)
    rows = compare(*results, within)
    show(rows, results, page)
    return 1 if any(row[-1] for row in rows) else 0


def show(rows: list[list[str]], results: Sequence[dict[str, Any]],
         page: str | None) -> None:
    if page:
        with open(page, "w", encoding="utf-8") as file:
            file.write(page_of(rows, results))
    print(aligned(rows))


# ---- a page ----

def plot(curves: Sequence[Figure]) -> str:
    """Which share of the values is at most that high."""
    new = curves[-1]
    most = max(each.values[-1] for each in curves) or 1.0
    lines = "".join(
        f'<polyline fill="none" stroke="{color}" points="' + " ".join(
            f"{WIDTH * each.at(i / 100) / most:.1f},"
            f"{HEIGHT - HEIGHT * i / 100:.1f}" for i in range(101)) + '"/>'
        for color, each in zip(COLORS[-len(curves):], curves))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
            f'height="{HEIGHT + 40}"><text y="12">{new.title}: share of '
            f'values below</text><g transform="translate(0 20)"><rect width='
            f'"{WIDTH}" height="{HEIGHT}" fill="#f4f4f4"/>{lines}</g>'
            f'<text y="{HEIGHT + 34}">0</text><text x="{WIDTH}" '
            f'y="{HEIGHT + 34}" text-anchor="end">{most:.2f} {new.unit}'
            "</text></svg>")


def page_of(rows: list[list[str]], results: Sequence[dict[str, Any]]) -> str:
    """One file, without scripts and addresses. results: one, or old and
    new."""
    table = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>"
                                     for cell in row) + "</tr>"
                    for row in rows)
    said = "".join(
        f'<p style="border-left: 6px solid {color}">' + "<br/>".join(map(
            html.escape, [each["date"] + " UTC", *said_of(each)])) + "</p>\n"
        for color, each in zip(COLORS[-len(results):], results))
    found = [figures(each) for each in results]
    return ('<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml">'
            '<head><meta charset="utf-8"/><title>ucmfs.bench</title>'
            f"<style>{STYLE}</style></head><body>{said}"
            f"<table>{table}</table>\n" + "\n".join(
                plot([each[name] for each in found if name in each])
                for name, figure in found[-1].items()
                if figure.better == LOW) + "</body></html>\n")
