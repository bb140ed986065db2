# SPDX-License-Identifier: Apache-2.0
"""ucmfs.bench without a server: prompts, traces, options, comparisons and
pages. What is sent is tests/engines/test_bench.py's."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from ucmfs import bench, bench_report
from ucmfs.bench_report import HIGH, LOW, SHOWN, Figure

from tests.python.support import SRCDIR


def a_result(ttfts=(0.1,), failed=0, gap=0.01, **parameters):
    """Requests one after another, each of three tokens."""
    requests, start = [], 0.0
    for ttft in ttfts:
        times = [ttft, ttft + gap, ttft + 2 * gap]
        requests.append({"start": start, "times": times, "end": times[-1],
                         "input": 8, "output": 3, "cached": None})
        start += times[-1]
    requests += failed * [{"start": 0.0, "end": 0.01, "error": "<status> 500"}]
    return {"ucmfs.bench": 1, "url": "http://a&b", "date": "2026-11-30",
            "seed": 1, "engine": {}, "requests": requests,
            "parameters": {"scenario": "short", "requests": len(requests),
                           **parameters}}


class Prompts(unittest.TestCase):
    def test_names_make_tokens(self):
        tokens = bench.tokens_of([("a", 5), ("b", 3)], 1, 1000)
        self.assertEqual(len(tokens), 8)
        self.assertTrue(all(125 <= token < 1000 for token in tokens))
        self.assertEqual(tokens, bench.tokens_of([("a", 5), ("b", 3)], 1,
                                                 1000))
        self.assertEqual(tokens[:4], bench.tokens_of([("a", 4)], 1, 1000))
        self.assertNotEqual(tokens, bench.tokens_of([("a", 5), ("b", 3)], 2,
                                                    1000))
        self.assertEqual(bench.tokens_of([("a", 2)], 1, 1), [0, 0])

    def test_scenarios(self):
        for name, requests, first, pieces in (
                ("short", 9, 0, [0, 512]),
                ("long", 9, 0, [0, 8192]),
                ("hit-1", 9, 9, [3200, 800]),
                ("hit-8", 9, 9, [3200, 800]),
                ("prefix", 9, 1, [3276, 820])):
            scenario = bench.SCENARIOS[name]
            sent, jobs = bench.jobs_of_scenario(scenario, requests)
            self.assertEqual(len(sent), first, name)
            self.assertEqual(len(jobs), requests)
            for job in jobs:
                self.assertEqual([n for _, n in job.pieces], pieces)
                self.assertEqual(job.output, scenario.output)
            heads = {job.pieces[0] for job in jobs if pieces[0]}
            self.assertEqual({job.pieces[0] for job in sent}, heads)

    def test_a_trace(self):
        lines = ['{"timestamp": 0, "input_length": 513, "output_length": 0,'
                 ' "hash_ids": [7, 8]}',
                 '{"timestamp": 3000, "input_length": 512, "output_length": 4,'
                 ' "hash_ids": [7]}']
        self.assertEqual(bench.jobs_of_trace(lines, 2), [
            bench.Job([("block 7", 512), ("block 8", 1)], 1, 0),
            bench.Job([("block 7", 512)], 4, 1.5)])

    def test_times_of_a_trace_begin_with_its_first_request(self):
        lines = ['{"timestamp": %s, "input_length": 1, "output_length": 1,'
                 ' "hash_ids": [7]}' % at for at in (1.7e12 + 5e3, 1.7e12)]
        self.assertEqual([job.at for job in bench.jobs_of_trace(lines, 1)],
                         [0, 5])

    def test_what_is_no_trace(self):
        for line in (
                "", "{", "5", "{}",
                '{"timestamp": 0, "input_length": 513, "output_length": 1,'
                ' "hash_ids": [7]}',
                '{"timestamp": 0, "input_length": 512, "output_length": 1,'
                ' "hash_ids": [7, 8]}',
                '{"timestamp": 0, "input_length": 0, "output_length": 1,'
                ' "hash_ids": []}',
                '{"timestamp": NaN, "input_length": 5, "output_length": 1,'
                ' "hash_ids": [1]}',
                '{"timestamp": 0, "input_length": Infinity,'
                ' "output_length": 1, "hash_ids": [1]}',
                '{"timestamp": "a", "input_length": 5, "output_length": 1,'
                ' "hash_ids": [1]}'):
            with self.subTest(line), self.assertRaisesRegex(
                    bench.Failure, "line 1 of the trace"):
                bench.jobs_of_trace([line], 1)
        with self.assertRaisesRegex(bench.Failure, "no requests"):
            bench.jobs_of_trace([], 1)


class Options(unittest.TestCase):
    def refused(self, *arguments):
        err = io.StringIO()
        with self.assertRaises(SystemExit) as caught, \
                contextlib.redirect_stderr(err):
            bench.options_of(arguments)
        self.assertEqual(caught.exception.code, 2)
        return err.getvalue()

    def test_what_is_refused(self):
        for arguments, said in (
                (["run", "u"], "one of the arguments"),
                (["run", "u", "--scenario", "shrt"], "shrt"),
                (["run", "u", "--scenario", "short", "--trace", "f"],
                 "not allowed"),
                (["run", "u", "--trace", "f", "--hit", "0"], "has its own"),
                (["run", "u", "--trace", "f", "--input", "9"], "has its own"),
                (["run", "u", "--trace", "f", "-o", "/none/x"], "no such"),
                (["run", "u", "--trace", "f", "--speed", "0"], "0.001 to"),
                (["run", "u", "--trace", "f", "--requests", "0"], "1 to inf"),
                (["run", "u", "--trace", "f", "--requests", "x"], "amount"),
                (["run", "u", "--scenario", "hit-8", "--hit", "100"],
                 "0 to 99"),
                (["check", "a"], "NEW.json"),
                ([], "verb")):
            with self.subTest(arguments):
                self.assertIn(said, self.refused(*arguments))

    def test_each_run_has_a_seed(self):
        seeds = {bench.options_of(["run", "u", "--scenario", "short"]).seed
                 for _ in range(9)}
        self.assertGreater(len(seeds), 1)

    def test_without_aiohttp(self):
        """A run says what it needs; results can be compared."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(a_result(), file)
            for arguments, status, said in (
                    (["run", "u", "--scenario", "short"], 1,
                     "ucmfs.bench: ucmfs.bench run needs aiohttp 3.9 or "
                     "newer: pip install 'ucmfs[bench]'\n"),
                    (["run", "u", "--trace", "/none"], 1, "needs aiohttp"),
                    (["check", path, path], 0, "time to first token")):
                done = subprocess.run(
                    [sys.executable, "-c", "import runpy, sys\n"
                     f"sys.path.insert(0, {os.path.join(SRCDIR, 'python')!r})"
                     "\nsys.modules['aiohttp'] = None\n"
                     f"sys.argv[1:] = {arguments!r}\n"
                     "runpy.run_module('ucmfs.bench', run_name='__main__')"],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    timeout=60)
                self.assertEqual(done.returncode, status, done.stdout)
                self.assertIn(said, done.stdout.decode())


class Words(unittest.TestCase):
    def test_what_a_server_says_can_be_printed(self):
        self.assertEqual(bench.why(ValueError("a\ud800\x1b[2J\u00e9")),
                         "a?" + "?[2J\\xe9")
        self.assertEqual(bench.why(ValueError()), "ValueError")


class Figures(unittest.TestCase):
    def test_quantiles(self):
        for values, share, want in (
                ([1], 0.5, 1), ([1], 0.99, 1), ([1, 2], 0.5, 1.5),
                ([1, 2, 3], 0.5, 2), ([1, 2, 3, 4, 5], 0.25, 2),
                ([1, 2, 3, 4, 5], 0.9, 4.6), ([0, 100], 0.99, 99)):
            with self.subTest(values, share=share):
                self.assertAlmostEqual(
                    Figure("", "", LOW, values).at(share), want)

    def test_of_a_result(self):
        found = bench_report.figures(a_result((0.1, 0.2, 0.6), failed=1))
        for name, want in (
                ("ttft", [300, 200, 520, 592]), ("tpot", [10, 10, 10, 10]),
                ("itl", [10, 10, 10, 10]), ("e2e", [320, 220, 540, 612]),
                ("request_rate", [3 / 0.96]), ("output_rate", [9 / 0.96]),
                ("token_rate", [33 / 0.96]), ("success", [75])):
            with self.subTest(name):
                got = found.pop(name).numbers()
                self.assertEqual(len(got), len(want))
                for a, b in zip(got, want):
                    self.assertAlmostEqual(a, b)
        self.assertEqual(found, {})

    def test_an_answer_in_one_part_has_no_time_per_token(self):
        result = a_result((0.1,))
        del result["requests"][0]["times"][1:]
        found = bench_report.figures(result)
        self.assertNotIn("tpot", found)
        self.assertNotIn("itl", found)

    def test_what_is_not_said_to_be_cached_is_not(self):
        result = a_result((0.1, 0.1))
        result["requests"][0]["cached"] = result["requests"][0]["input"]
        self.assertEqual(bench_report.figures(result)["hit_rate"].values,
                         [50])

    def test_of_the_engine(self):
        result = a_result()
        result["engine"] = {
            "load_seconds_sum": 3.0, "load_seconds_count": 6.0,
            "save_seconds_sum": 0.0, "save_seconds_count": 0.0,
            "sparse_attended_blocks_total": 3.0, "sparse_blocks_total": 12.0,
            "sparse_left_blocks_total": 10.0,
            "sparse_retrieved_blocks_total": 1.0}
        found = bench_report.figures(result)
        self.assertEqual({name: each.values for name, each in found.items()
                          if each.better == SHOWN}, {
            "load_time": [500], "sparse_ratio": [25], "retrieved": [10]})


class Check(unittest.TestCase):
    def test_what_is_worse(self):
        wide, narrow = [50, 80, 100, 140, 200], [99, 100, 100, 100, 101]
        for better, old, new, within, worse in (
                (LOW, narrow, [109], 10, False),
                (LOW, narrow, [111], 10, True),
                (LOW, narrow, [111], 12, False),
                (LOW, narrow, [50], 10, False),
                (LOW, wide, [139], 10, False),  # in the quartiles
                (LOW, wide, [141], 10, True),
                (LOW, wide, [141], 50, False),
                (LOW, narrow, [100], 0, False),
                (LOW, [0, 0, 0], [1], 10, True),
                (HIGH, [100], [91], 10, False),
                (HIGH, [100], [89], 10, True),
                (HIGH, [100], [200], 10, False),
                (HIGH, wide, [85], 10, False),
                (HIGH, wide, [79], 10, True),
                (SHOWN, narrow, [1], 10, False),
                (SHOWN, narrow, [900], 10, False)):
            with self.subTest(better=better, old=old, new=new, within=within):
                self.assertEqual(bench_report.is_worse(
                    Figure("", "", better, old), Figure("", "", better, new),
                    within), worse)

    def check(self, old, new, *more):
        """(exit status, what it said) of two results, or texts of files"""
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("old", "new")]
            for path, result in zip(paths, (old, new)):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(result if isinstance(result, str)
                               else json.dumps(result))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), \
                    contextlib.redirect_stderr(out):
                status = bench.main(["check", *paths, *more])
        return status, out.getvalue()

    def rows(self, said):
        return [line for line in said.splitlines() if "REGRESSION" in line]

    def test_statuses(self):
        old = a_result((0.1, 0.1, 0.1))
        status, said = self.check(old, old)
        self.assertEqual((status, self.rows(said)), (0, []))
        self.assertIn("+0.0 %", said)
        status, said = self.check(old, a_result((0.2, 0.2, 0.2)))
        self.assertEqual(status, 1)
        self.assertEqual([row.split("  ")[0] for row in self.rows(said)], [
            "time to first token", "end to end", "requests", "output tokens",
            "all tokens"])
        self.assertIn("+100.0 %", said)
        self.assertEqual(self.check(old, a_result((0.2, 0.2, 0.2)),
                                    "--within", "99")[0], 1)  # in no quartile
        self.assertEqual(self.check(old, a_result((0.105, 0.105, 0.105)))[0],
                         0)
        self.assertEqual(self.check(a_result((0.2, 0.2, 0.2)), old)[0], 0)

    def test_failures_are_worse(self):
        status, said = self.check(a_result((0.1,) * 4),
                                  a_result((0.1,) * 3, failed=1))
        self.assertEqual(status, 1)
        (row,) = self.rows(said)
        self.assertIn("success", row)

    def test_a_figure_that_is_gone_is_worse(self):
        new = a_result((0.1,))
        del new["requests"][0]["times"][1:]
        status, said = self.check(a_result((0.1,)), new)
        self.assertEqual(status, 1)
        self.assertEqual([row.split("  ")[0] for row in self.rows(said)],
                         ["time per output token", "inter-token latency"])

    def test_what_cannot_be_compared(self):
        well = a_result()
        for old, new, said in (
                (well, a_result(scenario="long"), "scenario: short and long"),
                (well, a_result(input=5), "input: None and 5"),
                (well, a_result((0.1, 0.1)), "requests: 1 and 2"),
                (well, a_result((), failed=1), "no request succeeded"),
                (a_result((), failed=1), well, "no request succeeded"),
                (well, "", "not a result"), ("[]", well, "not a result"),
                (well, "{}", "not a result"),
                ({**well, "ucmfs.bench": 2}, well, "version 2"),
                ({**well, "requests": []}, well, "not a result"),
                ({**well, "parameters": 5}, well, "not a result"),
                ({**well, "requests": [{"start": 0, "end": 0}]}, well,
                 "not a result")):
            with self.subTest(said, new=new):
                status, got = self.check(old, new)
                self.assertEqual(status, 2)
                self.assertIn(said, got)
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(bench.main(["check", "/none/a", "/none/b"]), 2)
        self.assertIn("/none/a", err.getvalue())


class Page(unittest.TestCase):
    def test_is_one_file(self):
        result = a_result((0.1, 0.3, 0.2), failed=1)
        page = bench_report.page_of(bench_report.rows_of(result), [result])
        root = ElementTree.fromstring(page.replace("<!DOCTYPE html>", ""))
        names = [each.tag.rpartition("}")[2] for each in root.iter()]
        self.assertEqual(names.count("svg"), 4)
        self.assertEqual(names.count("tr"), 9)
        self.assertFalse({"script", "link", "img", "iframe", "image"}
                         & set(names))
        for each in root.iter():
            self.assertFalse({"src", "href"} & set(each.attrib))
        links = re.sub(r'xmlns="http://www\.w3\.org/[\w/]+"', "", page)
        links = links.replace("http://a&amp;b", "")  # what was measured
        self.assertNotIn("http", links)
        self.assertNotIn("url(", links)
        self.assertIn("&lt;status&gt; 500", page)

    def test_two_are_in_one_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name)
                     for name in ("old", "new", "page")]
            for path, ttft in zip(paths, (0.1, 0.4)):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(a_result((ttft,)), file)
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(bench.main([
                    "check", *paths[:2], "--html", paths[2]]), 1)
            root = ElementTree.parse(paths[2]).getroot()
            with contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(bench.main([
                    "check", *paths[:2], "--html", folder]), 2)
        first = next(each for each in root.iter() if each.tag.endswith("svg"))
        old, new = (each for each in first.iter()
                    if each.tag.endswith("polyline"))
        ends = [float(each.get("points").split()[-1].split(",")[0])
                for each in (old, new)]
        self.assertEqual(ends, [bench_report.WIDTH / 4, bench_report.WIDTH])
        self.assertEqual((old.get("stroke"), new.get("stroke")),
                         bench_report.COLORS)
        self.assertIn("REGRESSION", "".join(root.itertext()))

    def test_curves_rise_in_the_picture(self):
        for values in ([1, 2, 50], [5], [0, 0]):
            points = re.search(r'points="([^"]*)"', bench_report.plot(
                [Figure("", "ms", LOW, values)]))[1]
            x, y = zip(*(map(float, point.split(","))
                         for point in points.split()))
            self.assertEqual(list(x), sorted(x))
            self.assertEqual(list(y), sorted(y, reverse=True))
            self.assertLessEqual(max(x), bench_report.WIDTH)
            self.assertEqual((y[0], y[-1]), (bench_report.HEIGHT, 0))


if __name__ == "__main__":
    unittest.main()
