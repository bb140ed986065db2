# SPDX-License-Identifier: Apache-2.0
"""A load test of a server of the OpenAI API, and a comparison of two results.

    ucm bench run URL --scenario NAME -o new.json
    ucm bench check old.json new.json

Prompts are numbers of tokens, so that their lengths and what they share are
exact without a tokenizer (doc/benchmarking.md, "A server"). They are made of
--seed, which is another one in each run: a store keeps what it has seen, so
the prompts of an earlier run would all be found.

A scenario has as many requests in flight as it says. Where a part of each
prompt must be found in the cache, these parts are sent first, for one token
each, and not measured. A trace's requests are sent at their times.

--without does all of that again, after it, without the store: by requests
that neither load nor save, with other prompts of the same lengths, as an
engine also has a cache in its own memory; or at another server.

An answer is read as a stream: the time of a token is that of its part. A
request has failed if its stream does not end with [DONE], reports an error or
has no token; its times are in no figure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import math
import os
import random
import re
import sys
import time
from typing import Any, Iterable, NamedTuple, Sequence

from . import bench_report as report
from .bench_report import Failure

try:
    import aiohttp
    if tuple(map(int, aiohttp.__version__.split(".")[:2])) < (3, 9):
        raise ImportError
    FAILED: Any = (aiohttp.ClientError, asyncio.TimeoutError, OSError,
                   ValueError, AttributeError, TypeError, LookupError)
except ImportError:
    aiohttp = None  # type: ignore[assignment]

NEEDS = ("ucmfs.bench run needs aiohttp 3.9 or newer: "
         "pip install 'ucmfs[bench]'")
CONNECT_SECONDS = 30
ROUNDS = 8    # requests of a scenario, for each in flight
BLOCK = 512   # tokens of a trace's block
METRIC = re.compile(
    r"(?m)^vllm:ucmfs_(\w+_(?:sum|count|total))(?:\{.*\})? (\S+)$")


class Scenario(NamedTuple):
    input: int
    output: int
    concurrency: int
    hit: float = 0        # percent of a prompt that is in the cache
    shared: bool = False  # the same part of all prompts, or each another one


SCENARIOS = {
    "hit-1": Scenario(4000, 1024, 1, hit=80),
    "hit-8": Scenario(4000, 1024, 8, hit=80),
    "short": Scenario(512, 128, 32),
    "long": Scenario(8192, 1024, 4),
    "prefix": Scenario(4096, 512, 16, hit=80, shared=True),
}


# ---- what is sent ----

class Job(NamedTuple):
    pieces: Sequence[tuple[str, int]]  # of the prompt: name, tokens
    output: int
    at: float = 0.0  # seconds after the first one may be sent


def tokens_of(pieces: Iterable[tuple[str, int]], seed: int,
              vocab: int) -> list[int]:
    """Equal names are equal tokens; of a shorter piece, the first ones. The
    lowest ids are left out, as those of a model's special tokens."""
    tokens: list[int] = []
    for name, length in pieces:
        tokens += random.Random(f"{seed}/{name}").choices(
            range(vocab // 8, vocab), k=length)
    return tokens


def jobs_of_scenario(scenario: Scenario,
                     requests: int) -> tuple[list[Job], list[Job]]:
    """What is sent first, for hits, and what is measured."""
    hit = int(scenario.input * scenario.hit / 100)
    hits = [(f"hit {0 if scenario.shared else i}", hit)
            for i in range(requests)]
    first = [Job([each], 1) for each in dict.fromkeys(hits) if hit]
    return first, [Job([each, (f"rest {i}", scenario.input - hit)],
                       scenario.output) for i, each in enumerate(hits)]


def jobs_of_trace(lines: Iterable[str], speed: float) -> list[Job]:
    jobs = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            left, pieces = int(row["input_length"]), []
            for each in row["hash_ids"]:
                pieces.append((f"block {each}", min(left, BLOCK)))
                left -= pieces[-1][1]
            if left or not pieces or pieces[-1][1] < 1:
                raise ValueError("input_length and hash_ids disagree")
            at = float(row["timestamp"]) / 1000 / speed
            if not math.isfinite(at):
                raise ValueError(f"timestamp {row['timestamp']}")
            jobs.append(Job(pieces, max(1, int(row["output_length"])), at))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise Failure(f"line {number} of the trace: {error!r}") from None
    if not jobs:
        raise Failure("the trace has no requests")
    jobs.sort(key=lambda job: job.at)
    return [job._replace(at=job.at - jobs[0].at) for job in jobs]


# ---- the load ----

class Server:
    """without: None, or the server without a store; "": the same one, by
    requests that do not use it."""

    def __init__(self, session: Any, options: argparse.Namespace,
                 without: str | None = None) -> None:
        self._session = session
        self._url = (without or options.url).rstrip("/")
        self._vocab = options.vocab
        self._params: dict[str, Any] = {}
        self.name = self._url
        self.seed = options.seed
        self.model = options.model
        if without is not None:
            self.name += " without the store"
        if without == "":
            self.seed = ~self.seed
            self._params = {"kv_transfer_params": {"ucmfs": {
                "load": False, "save": False}}}

    async def find_model(self) -> None:
        try:
            async with self._session.get(self._url + "/v1/models") as answer:
                models = await answer.json(content_type=None)
            self.model = models["data"][0]["id"]
        except FAILED as error:
            raise Failure(f"{self._url}: which model? {why(error)}") from None

    async def metrics(self) -> dict[str, float]:
        """Those of the connector, where this is an engine that has it."""
        found: dict[str, float] = {}
        with contextlib.suppress(*FAILED):
            async with self._session.get(self._url + "/metrics") as answer:
                for name, value in METRIC.findall(await answer.text()):
                    found[name] = found.get(name, 0.0) + float(value)
        return found

    def body(self, job: Job) -> bytes:
        return json.dumps({
            "model": self.model, "max_tokens": job.output,
            "prompt": tokens_of(job.pieces, self.seed, self._vocab),
            "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
            **self._params}).encode()

    async def ask(self, body: bytes) -> dict[str, Any]:
        """Times of the parts of an answer, or why it failed."""
        began = time.perf_counter()
        times: list[float] = []
        usage: dict[str, Any] = {}
        try:
            async with self._session.post(
                    self._url + "/v1/completions", data=body,
                    headers={"Content-Type": "application/json"}) as answer:
                if answer.status != 200:
                    text = (await answer.text())[:200]
                    raise ValueError(f"status {answer.status}: {text}")
                async for line in answer.content:
                    now = round(time.perf_counter() - began, 6)
                    data = line[5:].strip()
                    if not line.startswith(b"data:"):
                        continue
                    if data == b"[DONE]":
                        break
                    event = json.loads(data)
                    if "error" in event:
                        raise ValueError(event["error"])
                    usage = event.get("usage") or usage
                    if event.get("choices"):  # also a token without text
                        times.append(now)
                else:
                    raise ValueError("the stream has no end")
            if not times:
                raise ValueError("no token")
            details = usage.get("prompt_tokens_details") or {}
            return {"times": times, "end": now,
                    "input": usage.get("prompt_tokens"),
                    "output": usage.get("completion_tokens") or len(times),
                    "cached": details.get("cached_tokens")}
        except FAILED as error:
            return {"error": why(error),
                    "end": round(time.perf_counter() - began, 6)}


def why(error: BaseException) -> str:
    """What a server says is printed: plain characters of it."""
    said = str(error) or type(error).__name__
    return "".join(each if each.isprintable() else "?" for each in said
                   ).encode("ascii", "backslashreplace").decode()


async def load(server: Server, jobs: Sequence[Job], concurrency: int,
               what: str) -> list[dict[str, Any]]:
    """A record of each, as they end. The next prompt is made while those that
    were sent are computed, so that none waits for it."""
    records: list[dict[str, Any]] = []
    room = asyncio.Semaphore(concurrency)
    began = time.perf_counter()

    async def one(body: bytes) -> None:
        start = time.perf_counter() - began
        try:
            record = await server.ask(body)
        finally:
            room.release()
        records.append({"start": round(start, 6), **record})
        progress(what, records, len(jobs), time.perf_counter() - began)

    tasks = []
    for job in jobs:
        body = await asyncio.to_thread(server.body, job)
        await room.acquire()
        await asyncio.sleep(max(0.0, began + job.at - time.perf_counter()))
        tasks.append(asyncio.create_task(one(body)))
    await asyncio.gather(*tasks)
    return records


def progress(what: str, records: list[dict[str, Any]], total: int,
             seconds: float) -> None:
    if sys.stderr.isatty():
        failed = sum("error" in each for each in records)
        print(f"\r{what}: {len(records)} of {total}, {failed} failed, "
              f"{seconds:.0f} s\x1b[K", end="", file=sys.stderr, flush=True)
        if len(records) == total:
            print(file=sys.stderr)


async def measure(options: argparse.Namespace,
                  ) -> tuple[dict[str, Any], Exception | None]:
    """A result, with that without the store in it; or why that failed."""
    work = work_of(options)
    async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS,
                sock_read=options.timeout)) as session:
        servers = [Server(session, options)]
        if options.without is not None:
            servers.append(Server(session, options, options.without))
        for server in servers:
            if not server.model:
                await server.find_model()
        if servers[0].model != servers[-1].model:
            raise Failure(f"the servers have different models, "
                          f"{servers[0].model} and {servers[-1].model}")
        result = await measure_one(servers[0], *work)
        try:
            for server in servers[1:]:
                result["without"] = await measure_one(server, *work)
        except (Failure, OSError) as error:
            return result, error
    return result, None


async def measure_one(server: Server, parameters: dict[str, Any],
                      first: list[Job], jobs: list[Job]) -> dict[str, Any]:
    most = parameters["concurrency"] or len(jobs)
    for record in await load(server, first, most, "first, for hits"):
        if "error" in record:
            raise Failure("a prompt that must be found later failed: "
                          + record["error"])
    before = await server.metrics()
    records = await load(server, jobs, most, "measured")
    after = await server.metrics()
    if all("error" in each for each in records):
        raise Failure(f"all {len(records)} requests failed, the first one: "
                      f"{records[0]['error']}")
    return {report.MARK: report.VERSION, "url": server.name,
            "date": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            "parameters": {"model": server.model, **parameters},
            "seed": server.seed, "requests": records,
            "engine": {name: value - before.get(name, 0.0)
                       for name, value in after.items()}}


def work_of(options: argparse.Namespace) -> tuple[
        dict[str, Any], list[Job], list[Job]]:
    """What makes two results comparable, and the requests."""
    if options.trace:
        with open(options.trace, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()[:options.requests]
        digest = hashlib.sha256("".join(lines).encode()).hexdigest()
        return {"trace": digest[:16], "requests": len(lines),
                "speed": options.speed, "concurrency": options.concurrency,
                "vocab": options.vocab,
                }, [], jobs_of_trace(lines, options.speed)
    given = {name: getattr(options, name)
             for name in ("input", "output", "concurrency", "hit")
             if getattr(options, name) is not None}
    scenario = SCENARIOS[options.scenario]._replace(**given)
    requests = options.requests or ROUNDS * scenario.concurrency
    return {"scenario": options.scenario, "requests": requests,
            "vocab": options.vocab, **scenario._asdict(),
            }, *jobs_of_scenario(scenario, requests)


# ---- the command line ----

def number(kind: Any, least: float, most: float = float("inf")) -> Any:
    def amount(text: str) -> Any:
        if not least <= kind(text) <= most:
            raise argparse.ArgumentTypeError(f"{least:g} to {most:g}")
        return kind(text)
    return amount


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ucm bench", description="Measure a server of the "
        "OpenAI API under load, and compare two results.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="send requests, print figures")
    run.add_argument("url", metavar="URL", help="without /v1")
    what = run.add_mutually_exclusive_group(required=True)
    what.add_argument("--scenario", choices=SCENARIOS)
    what.add_argument("--trace", metavar="FILE",
                      help="JSON lines: timestamp (ms), input_length, "
                      "output_length, hash_ids (of blocks of 512 tokens)")
    run.add_argument("--model", help="[the server's first one]")
    count, factor = number(int, 1), number(float, 1e-3, 1e6)
    percent = number(float, 0, 99)
    for name, kind, usual, text in (
            ("concurrency", count, None, "requests in flight at most"),
            ("requests", count, None, "how many; of a trace, the first ones"),
            ("input", count, None, "tokens of a prompt"),
            ("output", count, None, "tokens of an answer"),
            ("hit", percent, None, "percent of a prompt that is cached"),
            ("speed", factor, 1.0, "a trace's times are divided by it [1]"),
            ("seed", int, random.SystemRandom().randrange(1 << 32),
             "of prompts [another one in each run]"),
            ("vocab", count, 30000, "tokens are below it [%(default)s]"),
            ("timeout", factor, 600, "seconds for a byte [%(default)s]")):
        run.add_argument(f"--{name}", type=kind, metavar="N", help=text,
                         default=usual)
    run.add_argument("--without", nargs="?", const="", metavar="URL",
                     help="measure again without the store, here or at URL, "
                     "and compare")
    run.add_argument("-o", dest="out", metavar="FILE.json")
    run.add_argument("--html", metavar="FILE.html")
    check = verbs.add_parser("check", help="compare two results; exit status "
                             "1: worse, 2: they cannot be compared")
    check.add_argument("old", metavar="OLD.json")
    check.add_argument("new", metavar="NEW.json")
    check.add_argument("--within", type=percent, metavar="PERCENT",
                       default=report.WITHIN,
                       help="a median may be worse by [%(default)s]")
    check.add_argument("--html", metavar="FILE.html")
    options = parser.parse_args(arguments)
    if options.verb == "run":
        if options.trace and (options.input or options.output
                              or options.hit is not None):
            run.error("a trace has its own --input, --output and --hit")
        for path in options.out, options.html:
            if path and (os.path.isdir(path) or not os.path.isdir(
                    os.path.dirname(path) or ".")):
                run.error(f"{path}: there is no such file or folder")
    return options


def run(options: argparse.Namespace) -> int:
    if not aiohttp:
        raise Failure(NEEDS)
    result, failed = asyncio.run(measure(options))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file)
    results, rows = [result], report.rows_of(result)
    if "without" in result:
        results.insert(0, result["without"])
        rows = report.compare(*results, names=("without", "with"))
    print(*(line for each in results for line in report.said_of(each)),
          sep="\n")
    report.show(rows, results, options.html)
    if failed:
        raise Failure(f"no result without the store: {failed}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    try:
        if options.verb == "check":
            return report.check(options.old, options.new, options.within,
                                options.html)
        return run(options)
    except (Failure, OSError) as error:
        print(f"ucmfs.bench: {error}", file=sys.stderr)
        return getattr(error, "status", 2 if options.verb == "check" else 1)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
