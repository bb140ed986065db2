# SPDX-License-Identifier: Apache-2.0
"""ucmfs.bench run, before a server that keeps books and takes known times."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]

try:
    from aiohttp import web
    from aiohttp.test_utils import TestServer
except ImportError as error:
    raise unittest.SkipTest(f"needs aiohttp: {error}") from None

from ucmfs import bench, bench_report

FIRST, GAP = 0.03, 0.002  # seconds before a token; nothing here may be faster
METRICS = """# TYPE vllm:ucmfs_load_seconds histogram
vllm:ucmfs_load_seconds_bucket{engine="0",le="0.1"} 9
vllm:ucmfs_load_seconds_sum{engine="0",model_name="a b"} %g
vllm:ucmfs_load_seconds_count{engine="0",model_name="a b"} %d
vllm:ucmfs_load_seconds_sum{engine="1",model_name="a b"} 1
vllm:ucmfs_load_seconds_count{engine="1",model_name="a b"} 1
vllm:num_requests_running{engine="0"} 3
"""


def event(**what: Any) -> bytes:
    return b"data: " + json.dumps(what).encode() + b"\n\n"


class Fake:
    """harm: what becomes of every second request."""

    def __init__(self) -> None:
        self.bodies: list = []
        self.in_flight = self.most = 0
        self.harm = ""
        self.model = "tiny"
        self.first = FIRST
        self.usage = True
        self.go = asyncio.Event()

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes([web.post("/v1/completions", self.answer),
                        web.get("/v1/models", self.models),
                        web.get("/metrics", self.metrics)])
        self.server = TestServer(app)
        await self.server.start_server()
        self.url = str(self.server.make_url(""))

    async def models(self, _: Any) -> web.Response:
        return web.json_response({"data": [{"id": self.model},
                                           {"id": "other"}]})

    async def metrics(self, _: Any) -> web.Response:
        """Each request loads for a quarter of a second."""
        count = len(self.bodies)
        return web.Response(text=METRICS % (count / 4, count))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            return await self.answer_to(request, body, self.harm if
                                        len(self.bodies) % 2 else "")
        finally:
            self.in_flight -= 1

    async def answer_to(self, request: web.Request, body: dict,
                        harm: str) -> web.StreamResponse:
        if harm == "status":
            return web.json_response({"error": "too much"}, status=503)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": a comment\n\n")
        if "kv_transfer_params" in body:
            await asyncio.sleep(10 * FIRST)  # it has to compute the prompt
        if harm == "hangs":
            await self.go.wait()
        if harm == "not JSON":
            await response.write(b"data: {\n\n")
        for number in range(body["max_tokens"] if harm != "no token" else 0):
            await asyncio.sleep(GAP if number else self.first)
            # a token may have no text
            await response.write(event(choices=[
                {"index": 0, "text": "a" if number != 2 else ""}]))
            if number == 1 and harm == "closes":
                request.transport.abort()
                return response
            if number == 1 and harm == "says so":
                await response.write(event(error={"message": "no memory"}))
        if self.usage:
            await response.write(event(choices=[], usage={
                "prompt_tokens": len(body["prompt"]),
                "completion_tokens": body["max_tokens"],
                "prompt_tokens_details": {
                    "cached_tokens": len(body["prompt"]) // 4}}))
        if harm != "no end":
            await response.write(b"data: [DONE]\n\n")
        return response


class Errors(io.StringIO):
    terminal = False

    def isatty(self) -> bool:
        return self.terminal


class Case(unittest.IsolatedAsyncioTestCase):
    terminal = False

    async def asyncSetUp(self) -> None:
        self.fake = Fake()
        await self.fake.start()
        self.addAsyncCleanup(self.fake.server.close)
        self.addCleanup(self.fake.go.set)
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.file = os.path.join(self.folder, "out.json")

    async def main(self, *arguments: str, url: str = "") -> int:
        self.out, self.err = io.StringIO(), Errors()
        self.err.terminal = self.terminal
        with contextlib.redirect_stdout(self.out), \
                contextlib.redirect_stderr(self.err):
            return await asyncio.to_thread(bench.main, [
                "run", url or self.fake.url, *arguments])

    async def run_short(self, *more: str, requests: int = 6) -> dict:
        self.assertEqual(await self.main(
            "--scenario", "short", "--requests", str(requests), "--input",
            "20", "--output", "5", "--concurrency", "2", "-o", self.file,
            *more), 0, self.err.getvalue())
        with open(self.file, encoding="utf-8") as file:
            return json.load(file)

    def prompts(self, **wanted: Any) -> list:
        return [body["prompt"] for body in self.fake.bodies
                if wanted.items() <= body.items()]


class Load(Case):

    async def test_times_of_tokens(self) -> None:
        result = await self.run_short()
        records = result["requests"]
        self.assertEqual(len(records), 6)
        for each in records:
            self.assertEqual((each["input"], each["output"], each["cached"]),
                             (20, 5, 5))
            self.assertEqual(len(each["times"]), 5)
            self.assertEqual(sorted(each["times"]), each["times"])
            self.assertGreaterEqual(each["times"][0], FIRST)
            self.assertGreaterEqual(each["times"][-1], FIRST + 4 * GAP)
            self.assertGreaterEqual(each["end"], each["times"][-1])
        found = bench_report.figures(result)
        self.assertEqual({name: len(each.values)
                          for name, each in found.items()},
                         {"ttft": 6, "tpot": 6, "itl": 24, "e2e": 6,
                          "request_rate": 1, "output_rate": 1,
                          "token_rate": 1, "success": 1, "hit_rate": 1,
                          "load_time": 1})
        rate = found["request_rate"].values[0]
        self.assertLess(rate, 2 / FIRST)
        self.assertAlmostEqual(found["output_rate"].values[0], 5 * rate)
        self.assertAlmostEqual(found["token_rate"].values[0], 25 * rate)
        self.assertEqual(found["success"].values, [100])
        self.assertEqual(found["hit_rate"].values, [25])
        # of this run alone
        self.assertEqual(found["load_time"].values, [250])
        for said in ("0 of 6 failed", "time to first token", "P99"):
            self.assertIn(said, self.out.getvalue())

    async def test_what_is_sent(self) -> None:
        result = await self.run_short()
        self.assertEqual(self.fake.most, 2)
        for body in self.fake.bodies:
            self.assertEqual({**body, "prompt": len(body["prompt"])}, {
                "model": "tiny", "prompt": 20, "max_tokens": 5,
                "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}})
        self.assertEqual(len(set(map(str, self.prompts()))), 6)
        self.assertEqual(result["parameters"], {
            "model": "tiny", "scenario": "short", "requests": 6, "input": 20,
            "output": 5, "concurrency": 2, "hit": 0, "shared": False,
            "vocab": 30000})

    async def test_a_seed_makes_the_same_prompts(self) -> None:
        result = await self.run_short("--model", "other")
        self.assertEqual(len(self.prompts(model="other")), 6)
        first, self.fake.bodies = self.prompts(), []
        await self.run_short("--seed", str(result["seed"]))
        self.assertCountEqual(self.prompts(), first)
        self.fake.bodies = []
        await self.run_short()
        self.assertFalse(set(map(str, self.prompts()))
                         & set(map(str, first)))

    async def test_hits_are_sent_first(self) -> None:
        await self.run_short("--hit", "80")
        first = self.prompts(max_tokens=1)
        self.assertEqual([len(prompt) for prompt in first], [16] * 6)
        self.assertEqual(self.fake.bodies[5]["max_tokens"], 1)
        self.assertCountEqual(
            [prompt[:16] for prompt in self.prompts(max_tokens=5)], first)
        with open(self.file, encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["requests"]), 6)

    async def test_a_shared_prefix_is_sent_once(self) -> None:
        self.assertEqual(await self.main(
            "--scenario", "prefix", "--requests", "5", "--input", "20",
            "--output", "2"), 0)
        (first,) = self.prompts(max_tokens=1)
        self.assertEqual(len(first), 16)
        prompts = self.prompts(max_tokens=2)
        for prompt in prompts:
            self.assertEqual((prompt[:16], len(prompt)), (first, 20))
        self.assertEqual(len(set(map(str, prompts))), 5)

    async def test_without_usage_parts_are_counted(self) -> None:
        self.fake.usage = False
        for each in (await self.run_short())["requests"]:
            self.assertEqual((each["input"], each["output"], each["cached"]),
                             (None, 5, None))

    async def test_a_terminal_sees_how_far_it_is(self) -> None:
        self.terminal = True
        await self.run_short()
        self.assertIn("\rmeasured: 6 of 6, 0 failed", self.err.getvalue())
        self.terminal = False
        await self.run_short()
        self.assertEqual(self.err.getvalue(), "")

    async def test_a_page_is_written(self) -> None:
        path = os.path.join(self.folder, "out.html")
        await self.run_short("--html", path)
        with open(path, encoding="utf-8") as file:
            self.assertIn("<svg", file.read())


class Without(Case):
    UNUSED = {"ucmfs": {"load": False, "save": False}}

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.other = Fake()
        await self.other.start()
        self.addAsyncCleanup(self.other.server.close)

    def rows(self) -> dict[str, str]:
        return {line.split("  ")[0]: line
                for line in self.out.getvalue().splitlines()}

    async def test_the_same_server(self) -> None:
        page = os.path.join(self.folder, "out.html")
        result = await self.run_short("--hit", "80", "--without", "--seed",
                                      "7", "--html", page)
        with_store, without = self.fake.bodies[:12], self.fake.bodies[12:]
        self.assertEqual([body.get("kv_transfer_params")
                          for body in with_store + without],
                         [None] * 12 + [self.UNUSED] * 12)
        # no prompt begins as one that the engine may still have
        self.assertFalse({str(body["prompt"][:8]) for body in with_store}
                         & {str(body["prompt"][:8]) for body in without})
        self.assertEqual(*(sorted((len(body["prompt"]), body["max_tokens"])
                                  for body in side)
                           for side in (with_store, without)))
        self.assertEqual((len(result["requests"]), result["url"],
                          result["seed"]), (6, self.fake.url, 7))
        other = result["without"]
        self.assertEqual((len(other["requests"]), other["url"]), (
            6, self.fake.url + " without the store"))
        self.assertEqual(other["parameters"], result["parameters"])
        first = [bench_report.figures(each)["ttft"].at(0.5)
                 for each in (other, result)]
        self.assertGreaterEqual(first[0], 10e3 * FIRST)
        self.assertLess(first[1], first[0])
        cells = self.rows()["time to first token"].split()
        self.assertEqual([cells[5], cells[7]],
                         [f"{each:.2f}" for each in first])
        self.assertEqual(self.rows()["median"].split()[1:], [
            "without", "quartiles", "with", "change"])
        with open(page, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text.count("<polyline"), 2 * text.count("<svg"))
        self.assertIn(" without the store", text)

    async def test_a_prompt_is_the_same_in_each_run_of_a_seed(self) -> None:
        await self.run_short("--without", "--seed", "7")
        prompts, self.fake.bodies = self.prompts(), []
        await self.run_short("--without", "--seed", "7")
        self.assertCountEqual(self.prompts(), prompts)

    async def test_another_server(self) -> None:
        result = await self.run_short("--without", self.other.url)
        self.assertCountEqual(*([body["prompt"] for body in fake.bodies]
                                for fake in (self.fake, self.other)))
        for fake in self.fake, self.other:
            self.assertEqual(len(fake.bodies), 6)
            for body in fake.bodies:
                self.assertNotIn("kv_transfer_params", body)
        self.assertEqual(result["without"]["url"],
                         self.other.url + " without the store")

    async def test_servers_of_different_models(self) -> None:
        self.other.model = "large"
        self.assertEqual(await self.main(
            "--scenario", "short", "--without", self.other.url), 1)
        self.assertIn("different models, tiny and large",
                      self.err.getvalue())
        self.assertFalse(self.fake.bodies)

    async def test_a_store_that_costs_more_than_it_brings(self) -> None:
        self.fake.first = 20 * FIRST
        await self.run_short("--without", self.other.url)
        self.assertIn("REGRESSION", self.rows()["time to first token"])

    async def test_a_second_one_that_fails_leaves_the_first(self) -> None:
        self.other.harm = "status"
        self.assertEqual(await self.main(
            "--scenario", "short", "--requests", "1", "--input", "20",
            "--output", "5", "--without", self.other.url, "-o", self.file), 1)
        self.assertIn("no result without the store: all 1 requests failed",
                      self.err.getvalue())
        self.assertIn("time to first token", self.rows())
        with open(self.file, encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(len(result["requests"]), 1)
        self.assertNotIn("without", result)

    async def test_a_result_is_compared_with_others(self) -> None:
        await self.run_short("--without")
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(bench.main(["check", self.file, self.file]), 0)


class Failing(Case):

    async def test_what_fails_is_in_no_figure(self) -> None:
        for harm, why in (("status", "503"), ("closes", ""),
                          ("no end", "no end"), ("no token", "no token"),
                          ("not JSON", ""), ("says so", "no memory"),
                          ("hangs", "")):
            with self.subTest(harm):
                self.fake.harm, self.fake.bodies = harm, []
                result = await self.run_short("--timeout", "0.5")
                failed = [each for each in result["requests"]
                          if "error" in each]
                self.assertEqual(len(failed), 3)
                for each in failed:
                    self.assertTrue(each["error"])
                    self.assertIn(why, each["error"])
                found = bench_report.figures(result)
                self.assertEqual(len(found["ttft"].values), 3)
                self.assertEqual(len(found["itl"].values), 12)
                self.assertEqual(found["success"].values, [50])
                self.assertIn("3 of 6 failed, the first one: "
                              + failed[0]["error"], self.out.getvalue())

    async def test_no_success_is_no_result(self) -> None:
        self.fake.harm = "status"
        self.assertEqual(await self.main(
            "--scenario", "short", "--requests", "1", "-o", self.file), 1)
        self.assertIn("all 1 requests failed, the first one: status 503",
                      self.err.getvalue())
        self.assertFalse(os.path.exists(self.file))

    async def test_hits_that_are_not_there(self) -> None:
        self.fake.harm = "status"
        self.assertEqual(await self.main("--scenario", "hit-8"), 1)
        self.assertIn("must be found later failed: status 503",
                      self.err.getvalue())
        self.assertFalse(self.prompts(max_tokens=1024))

    async def test_no_server(self) -> None:
        await self.fake.server.close()
        self.assertEqual(await self.main("--scenario", "short"), 1)
        self.assertIn("which model?", self.err.getvalue())


class Trace(Case):

    async def replay(self, rows: list, *more: str) -> int:
        path = os.path.join(self.folder, "trace.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        return await self.main("--trace", path, "-o", self.file, *more)

    @staticmethod
    def row(ms: float, tokens: int, *blocks: int) -> dict:
        return {"timestamp": ms, "input_length": tokens, "output_length": 2,
                "hash_ids": list(blocks)}

    async def test_blocks_and_times(self) -> None:
        self.assertEqual(await self.replay(
            [self.row(0, 1030, 0, 1, 2), self.row(100, 1024, 0, 3),
             self.row(400, 600, 0, 1), self.row(9e9, 512, 4)],
            "--speed", "2", "--requests", "3"), 0, self.err.getvalue())
        one, two, three = self.prompts()
        self.assertEqual([len(one), len(two), len(three)], [1030, 1024, 600])
        self.assertEqual(one[:512], two[:512])
        self.assertEqual(one[:600], three)
        self.assertNotEqual(one[512:600], two[512:600])
        with open(self.file, encoding="utf-8") as file:
            result = json.load(file)
        for each, least in zip(result["requests"], (0, 0.05, 0.2)):
            self.assertGreaterEqual(each["start"], least)
            self.assertEqual(len(each["times"]), 2)
        self.assertEqual(
            {**result["parameters"], "trace": ""},
            {"model": "tiny", "trace": "", "requests": 3, "speed": 2,
             "concurrency": None, "vocab": 30000})

    async def test_as_many_at_once_as_come(self) -> None:
        rows = [self.row(0, 512, i) for i in range(8)]
        self.assertEqual(await self.replay(rows), 0)
        self.assertGreater(self.fake.most, 2)
        self.fake.most = 0
        self.assertEqual(await self.replay(rows, "--concurrency", "2"), 0)
        self.assertEqual(self.fake.most, 2)


if __name__ == "__main__":
    unittest.main()
