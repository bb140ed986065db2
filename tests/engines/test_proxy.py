# SPDX-License-Identifier: Apache-2.0
"""ucmfs.proxy, before engines that only keep books."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import json
import os
import sys
import unittest
from typing import Any
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]

try:
    import aiohttp
    from ucmfs import proxy
except ImportError as error:
    raise unittest.SkipTest(f"needs aiohttp: {error}") from None

from aiohttp import web
from aiohttp.test_utils import TestServer

WAIT = {"tokens": 96, "space": "kv"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PARTS = [b"data: %d\n\n" % i for i in range(5)] + [b"data: [DONE]\n\n"]
LIMIT = 20  # seconds; nothing here takes so long


class Fake:
    """An engine. go: it answers then, and writes what is beyond the first part
    of a stream."""

    def __init__(self) -> None:
        self.bodies: list = []
        self.headers: list = []
        self.status = 200
        self.dies = ""       # "before" or "after" the first byte
        self.go = asyncio.Event()
        self.go.set()
        self.came = asyncio.Event()
        self.left = asyncio.Event()

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([
            web.post(COMPLETIONS, self.answer), web.post(CHAT, self.answer),
            web.get("/health", self.health),
            web.get("/v1/models", self.models)])
        self.server = TestServer(app)
        await self.server.start_server()
        self.url = str(self.server.make_url(""))
        self.transports: list = []

    async def kill(self) -> None:
        for transport in self.transports:
            transport.abort()
        await self.server.close()

    async def health(self, _: Any) -> web.Response:
        return web.Response(status=self.status)

    async def models(self, _: Any) -> web.Response:
        return web.json_response({"data": ["tiny"]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.transports.append(request.transport)
        self.came.set()
        try:
            return await self.answer_to(request, body)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def answer_to(self, request: web.Request,
                        body: dict) -> web.StreamResponse:
        if self.dies == "before":
            request.transport.abort()
            await self.go.wait()
            raise asyncio.CancelledError
        if body.get("stream") and self.status == 200:
            return await self.stream(request)
        await self.go.wait()
        given = body.get("kv_transfer_params", {}).get("ucmfs", {})
        return web.json_response({
            "text": "a", "kv_transfer_params":
            {"ucmfs": {"wait": WAIT}} if given.get("report")
            and self.status == 200 else None}, status=self.status)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(PARTS[0])
        await self.go.wait()
        for part in PARTS[1:]:
            if self.dies == "after":
                request.transport.abort()
                break
            await response.write(part)
            await asyncio.sleep(0.001)
        return response


class Case(unittest.IsolatedAsyncioTestCase):

    async def asyncSetUp(self) -> None:
        self.enterContext(mock.patch.object(proxy.log, "warning"))
        self.prefill = [await self.fake(), await self.fake()]
        self.decode = [await self.fake(), await self.fake()]

    async def fake(self) -> Fake:
        fake = Fake()
        await fake.start()
        self.addAsyncCleanup(fake.server.close)
        self.addCleanup(fake.go.set)
        return fake

    async def begin(self, *more: str) -> None:
        options = proxy.options_of([
            "--prefill", *[fake.url for fake in self.prefill],
            "--decode", *[fake.url for fake in self.decode], *more])
        self.proxy = proxy.Proxy(options)
        self.server = TestServer(self.proxy.app())
        await self.server.start_server()
        self.addAsyncCleanup(self.server.close)
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=LIMIT))
        self.addAsyncCleanup(self.client.close)

    def post(self, path: str = COMPLETIONS, prompt: str = "one two",
             **more: Any) -> Any:
        return self.client.post(self.server.make_url(path), json={
            "model": "tiny", "prompt": prompt, "max_tokens": 9, **more})

    async def status(self, **more: Any) -> int:
        async with self.post(**more) as answer:
            await answer.read()
            return answer.status

    async def counted(self, name: str) -> int:
        async with self.client.get(self.server.make_url("/metrics")) as answer:
            lines = (await answer.text()).splitlines()
        (line,) = [line for line in lines if line.startswith(
            f"ucmfs_proxy_{name}_total ")]
        return int(line.split()[1])

    def in_flight(self) -> int:
        return sum(engine.in_flight for pool in (
            self.proxy._prefill, self.proxy._decode)
            for engine in pool.engines)

    async def until_idle(self) -> None:
        async with asyncio.timeout(LIMIT):
            while self.in_flight():
                await asyncio.sleep(0.001)

    @staticmethod
    def bodies(fakes: list) -> list:
        return [body for fake in fakes for body in fake.bodies]


class Passed(Case):

    async def test_a_prompt_first_and_then_all(self) -> None:
        await self.begin("--wait", "2.5")
        for path in COMPLETIONS, CHAT:
            for fake in self.prefill + self.decode:
                fake.bodies.clear()
            async with self.post(
                    path, n=2, min_tokens=3, max_completion_tokens=7,
                    stream=True, stream_options={"include_usage": True},
                    kv_transfer_params={"ucmfs": {"pin": True}}) as answer:
                self.assertEqual(answer.status, 200)
                self.assertEqual(answer.content_type, "text/event-stream")
                self.assertEqual(await answer.read(), b"".join(PARTS))
            (first,) = self.bodies(self.prefill)
            self.assertEqual(first, {
                "model": "tiny", "prompt": "one two", "max_tokens": 1,
                "max_completion_tokens": 1, "stream": False,
                "kv_transfer_params": {"ucmfs": {
                    "pin": True, "report": True}}})
            (second,) = self.bodies(self.decode)
            self.assertEqual(second, {
                "model": "tiny", "prompt": "one two", "max_tokens": 9,
                "n": 2, "min_tokens": 3, "max_completion_tokens": 7,
                "stream": True, "stream_options": {"include_usage": True},
                "kv_transfer_params": {"ucmfs": {
                    "pin": True, "wait": {**WAIT, "seconds": 2.5}}}})

    async def test_headers(self) -> None:
        await self.begin()
        async with self.client.post(
                self.server.make_url(COMPLETIONS), json={"prompt": "a"},
                headers={"Authorization": "Bearer x"}) as answer:
            self.assertEqual(answer.headers["Content-Length"],
                             str(len(await answer.read())))
        for fake in self.prefill + self.decode:
            for headers in fake.headers:
                self.assertEqual(headers["Authorization"], "Bearer x")

    async def test_a_stream_comes_as_it_is_made(self) -> None:
        await self.begin()
        for fake in self.decode:
            fake.go.clear()
        async with self.post(stream=True) as answer:
            self.assertEqual(await answer.content.readany(), PARTS[0])
            for fake in self.decode:
                fake.go.set()
            self.assertEqual(await answer.content.read(), b"".join(PARTS[1:]))

    async def test_what_the_engine_refuses(self) -> None:
        await self.begin()
        for fake in self.prefill + self.decode:
            fake.status = 400
        self.assertEqual(await self.status(), 400)
        (second,) = self.bodies(self.decode)
        self.assertNotIn("kv_transfer_params", second)
        self.assertEqual(await self.counted("prefill_failures"), 0)

    async def test_what_is_no_request(self) -> None:
        await self.begin()
        for data in (b"{", b"5", b'{"kv_transfer_params": 5}',
                     b'{"kv_transfer_params": {"ucmfs": 5}}'):
            async with self.client.post(self.server.make_url(COMPLETIONS),
                                        data=data) as answer:
                self.assertEqual(answer.status, 400)
                self.assertIn("error", await answer.json())
        self.assertEqual(self.bodies(self.prefill + self.decode), [])

    async def test_32_streams_at_once(self) -> None:
        """With a prefill engine that is killed among them."""
        await self.begin()
        for fake in self.prefill:
            fake.go.clear()

        async def one(number: int) -> bytes:
            async with self.post(prompt=f"{number}", stream=True) as answer:
                return await answer.read()

        streams = [asyncio.create_task(one(i)) for i in range(32)]
        async with asyncio.timeout(LIMIT):
            while len(self.bodies(self.prefill)) < 32:
                await asyncio.sleep(0.001)
        killed, other = sorted(self.prefill, key=lambda e: len(e.bodies))
        lost = len(killed.bodies)
        self.assertGreater(lost, 0)
        await killed.kill()
        other.go.set()
        for got in await asyncio.gather(*streams):
            self.assertEqual(got, b"".join(PARTS))
        for fake in self.decode:
            self.assertGreater(len(fake.bodies), 4)
        for body in self.bodies(self.decode):
            self.assertEqual(body["kv_transfer_params"],
                             {"ucmfs": {"wait": WAIT}})
        self.assertEqual(await self.counted("requests"), 32)
        self.assertEqual(await self.counted("prefill_failures"), lost)
        await self.until_idle()

    async def test_health_and_models(self) -> None:
        await self.begin()

        async def get(path: str) -> Any:
            async with self.client.get(self.server.make_url(path)) as answer:
                return answer.status, await answer.text()

        self.assertEqual(await get("/v1/models"), (200, '{"data": ["tiny"]}'))
        self.decode[0].status = 503
        self.assertEqual((await get("/health"))[0], 200)
        await self.decode[1].server.close()
        self.assertEqual((await get("/health"))[0], 503)
        self.assertIn('in_flight{role="prefill",engine="'
                      + self.prefill[0].url.rstrip("/"),
                      (await get("/metrics"))[1])


class Failing(Case):

    async def check_without_prefill(self, failures: int) -> None:
        """And the next request does not ask them."""
        for _ in range(2):
            self.assertEqual(await self.status(), 200)
        self.assertEqual(await self.counted("prefill_failures"), failures)
        for body in self.bodies(self.decode):
            self.assertNotIn("kv_transfer_params", body)

    async def test_dead_prefill_engines(self) -> None:
        await self.begin()
        for fake in self.prefill:
            await fake.server.close()
        await self.check_without_prefill(2)

    async def test_slow_prefill_engines(self) -> None:
        await self.begin("--prefill-timeout", "0.1")
        for fake in self.prefill:
            fake.go.clear()
        await self.check_without_prefill(2)
        for fake in self.prefill:
            self.assertTrue(fake.left.is_set())

    async def test_the_next_prefill_engine(self) -> None:
        await self.begin()
        key = proxy.prefixes_of({"prompt": "one two"}, 512)
        first = self.proxy._prefill.up(key)[0]
        (dead,) = [fake for fake in self.prefill
                   if fake.url.rstrip("/") == first.url]
        dead.dies = "before"
        with mock.patch.object(proxy, "RETRY_SECONDS", 0.05):
            self.assertEqual(await self.status(), 200)
        self.assertEqual(self.bodies(self.decode)[0]["kv_transfer_params"],
                         {"ucmfs": {"wait": WAIT}})
        dead.dies = ""
        await asyncio.sleep(0.06)  # it is asked again
        self.assertEqual(await self.status(), 200)
        self.assertEqual(len(dead.bodies), 1)  # the other one has had this
        self.proxy._prefill._had.clear()
        self.assertEqual(await self.status(), 200)
        self.assertEqual(len(dead.bodies), 2)
        self.assertEqual(await self.counted("prefill_failures"), 1)

    async def test_a_prompt_that_no_engine_can_do(self) -> None:
        """A status of 500 is the request's fault: engines stay."""
        await self.begin()
        for fake in self.prefill:
            fake.status = 500
        await self.check_without_prefill(4)

    def home(self) -> tuple:
        """The decode engine of the usual prompt, and the other one."""
        key = proxy.prefixes_of({"prompt": "one two"}, 512)
        first = self.proxy._decode.up(key)[0]
        return tuple(sorted(self.decode, key=lambda fake:
                            fake.url.rstrip("/") != first.url))

    async def test_the_next_decode_engine(self) -> None:
        await self.begin()
        for number, harm in enumerate(("dies", "status", "closed")):
            first, other = self.home()
            for fake in self.decode:
                fake.bodies.clear()
            if harm == "dies":
                first.dies = "before"
            elif harm == "status":
                first.status = 503
            else:
                await first.server.close()
            async with self.post(stream=True) as answer:
                self.assertEqual(await answer.read(), b"".join(PARTS))
            self.assertEqual(len(other.bodies), 1)
            self.assertEqual(await self.counted("retries"), number + 1)
            first.dies, first.status = "", 200
            for engine in self.proxy._decode.engines:
                engine.out_until = 0.0
            self.assertIs(self.home()[0], other)  # it has had the prompt

    async def test_no_decode_engine(self) -> None:
        await self.begin()
        for fake in self.decode:
            await fake.server.close()
        async with self.post() as answer:
            self.assertEqual(answer.status, 502)
            self.assertIn("no decode engine answers",
                          (await answer.json())["error"]["message"])
        self.assertEqual(await self.counted("retries"), 1)

    async def test_a_request_that_kills_engines(self) -> None:
        """It is not given to all of them."""
        self.decode.append(await self.fake())
        await self.begin()
        for fake in self.decode:
            fake.dies = "before"
        self.assertEqual(await self.status(), 502)
        self.assertEqual(len(self.bodies(self.decode)), 2)

    async def test_engines_that_are_not_reached_in_time(self) -> None:
        """They never had the request, so it is given to the others."""
        self.decode.append(await self.fake())
        await self.begin()
        real, tried = aiohttp.ClientSession.request, []

        def request(session: Any, method: str, url: str, **more: Any) -> Any:
            tried.append(url)
            if len(tried) < len(self.decode):
                raise aiohttp.ConnectionTimeoutError
            return real(session, method, url, **more)

        with mock.patch.object(aiohttp.ClientSession, "request", request):
            self.assertEqual(await self.status(), 200)
        self.assertEqual(len(tried), 3)

    def test_a_wait_that_engines_do_not_take(self) -> None:
        with self.assertRaises(SystemExit), mock.patch("sys.stderr"):
            proxy.options_of(["--prefill", "a", "--decode", "b", "--wait",
                              "61"])

    async def test_the_last_error_is_passed_on(self) -> None:
        await self.begin()
        for fake in self.decode:
            fake.status = 500
        self.assertEqual(await self.status(), 500)
        self.assertEqual(len(self.bodies(self.decode)), 2)
        self.assertFalse(self.proxy._decode._had)  # none has the prompt

    async def test_a_stream_that_breaks_is_an_error(self) -> None:
        await self.begin()
        for fake in self.decode:
            fake.dies = "after"
        with self.assertRaises(aiohttp.ClientError):
            async with self.post(stream=True) as answer:
                await answer.read()
        self.assertEqual(len(self.bodies(self.decode)), 1)
        await self.until_idle()

    async def test_also_where_the_connection_is_the_answer(self) -> None:
        """HTTP/1.0 knows no other end."""
        await self.begin()
        for fake in self.decode:
            fake.dies = "after"
        reader, writer = await asyncio.open_connection("127.0.0.1",
                                                       self.server.port)
        data = b'{"prompt": "a", "stream": true}'
        writer.write(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (
            COMPLETIONS.encode(), len(data), data))
        with self.assertRaises(ConnectionResetError):
            async with asyncio.timeout(LIMIT):
                await reader.read()
        writer.close()

    async def test_a_client_that_leaves(self) -> None:
        await self.begin()
        for fakes in self.decode, self.prefill:
            for fake in fakes:
                fake.go.clear()
                fake.came.clear()
            task = asyncio.create_task(self.status())
            came = [asyncio.create_task(fake.came.wait()) for fake in fakes]
            await asyncio.wait(came, timeout=LIMIT,
                               return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
            left = [asyncio.create_task(fake.left.wait()) for fake in fakes]
            done, _ = await asyncio.wait(
                left, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
            self.assertEqual(len(done), 1)
            for each in came + left:
                each.cancel()
            await self.until_idle()


class Balance(unittest.TestCase):

    def test_requests_that_begin_alike(self) -> None:
        pool = proxy.Pool([f"http://{i}" for i in range(4)])
        homes = {key: pool.up([b"%d" % key])[0] for key in range(100)}
        for engine in pool.engines:
            self.assertGreater(sum(engine is home
                                   for home in homes.values()), 10)
        home = homes[0]
        home.in_flight = proxy.SLACK
        self.assertIs(pool.up([b"0"])[0], home)
        home.in_flight += 1  # and the others have nothing to do
        self.assertIsNot(pool.up([b"0"])[0], home)
        # the others' homes stay where they are, if one is out
        home.out_until = 1e18
        self.assertNotIn(home, pool.up([b"0"]))
        self.assertIs(pool.all([b"0"])[-1], home)
        for key, engine in homes.items():
            if engine is not home:
                self.assertIs(pool.up([b"%d" % key])[0], engine)

    def test_the_longest_prefix_that_an_engine_has_had(self) -> None:
        pool = proxy.Pool([f"http://{i}" for i in range(4)])
        turns = [[b"system", b"a"], [b"system", b"b"]]
        for engine, turn in zip(pool.engines, turns):
            pool.had(turn, engine)
        for engine, turn in zip(pool.engines, turns):
            self.assertIs(pool.up([*turn, b"next"])[0], engine)
        first, last = pool.engines[:2]
        self.assertIs(pool.up([b"system", b"c"])[0], last)
        first.in_flight = proxy.SLACK + 1  # too busy: who had less of it
        self.assertIs(pool.up(turns[0])[0], last)
        last.fail("dead")
        self.assertIn(pool.up(turns[0])[0], pool.engines[2:])

    def test_what_is_remembered_is_bounded(self) -> None:
        pool = proxy.Pool(["http://a", "http://b"])
        usual = pool.up([b"first"])[0]
        (other,) = set(pool.engines) - {usual}
        pool.had([b"first"], other)
        for i in range(proxy.PREFIXES - 1):
            pool.had([b"%d" % i], other)
        self.assertIs(pool.up([b"first"])[0], other)
        pool.had([b"one more"], other)
        self.assertIs(pool.up([b"first"])[0], usual)

    def test_on_a_trace(self) -> None:
        """Of prompts, what the engine that gets them has had: twice as much
        as where each goes to the one with the least to do."""
        path = os.environ.get("UCMFS_TRACE") or self.skipTest(
            "UCMFS_TRACE is not Mooncake's conversation_trace.jsonl")
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        had, least = self.replay(rows, True), self.replay(rows, False)
        print(f"{had:.1%} where prefixes are remembered, else {least:.1%}")
        self.assertGreater(had, 1.5 * least)

    @staticmethod
    def replay(rows: list, remembers: bool) -> float:
        """Four engines that compute 8000 tokens a second for each request,
        make 25, and forget nothing."""
        pool = proxy.Pool([f"http://{i}" for i in range(4)])
        has: dict = {engine: set() for engine in pool.engines}
        ends: list = []
        found = asked = 0
        for number, row in enumerate(rows):
            now, ids = row["timestamp"] / 1000, row["hash_ids"]
            while ends and ends[0][0] <= now:
                heapq.heappop(ends)[2].in_flight -= 1
            prefixes = [b"%d" % each for each in ids] if remembers else ()
            engine = pool.up(prefixes)[0]
            pool.had(prefixes, engine)
            hit = sum(each in has[engine] for each in ids)
            has[engine].update(ids)
            engine.in_flight += 1
            heapq.heappush(ends, (
                now + 512 * (len(ids) - hit) / 8000
                + row["output_length"] / 25, number, engine))
            found, asked = found + hit, asked + len(ids)
        return found / asked

    def test_one_that_has_failed_is_tried_by_one_request(self) -> None:
        pool = proxy.Pool(["http://a", "http://b"])
        first = pool.engines[0]
        first.fail("dead")
        self.assertNotIn(first, pool.up())
        first.out_until = 0.0
        self.assertIs(pool.up()[0], first)
        with first.busy():
            self.assertNotIn(first, pool.up())
            self.assertIn(first, pool.all(()))
        first.has_failed = False
        with first.busy():
            self.assertIn(first, pool.up())

    def test_least_in_flight(self) -> None:
        pool = proxy.Pool(["http://a", "http://b"])
        pool.engines[0].in_flight = 1
        self.assertIs(pool.up()[0], pool.engines[1])

    def test_prefixes(self) -> None:
        def of(prompt: Any, step: int, name: str = "prompt") -> list:
            return proxy.prefixes_of({name: prompt}, step)

        def texts(*all: bytes) -> list:
            return [hashlib.sha256(text).digest() for text in all]

        self.assertEqual(of("abc", 2), texts(b"ab"))
        self.assertEqual(of("abcd", 2), texts(b"ab", b"abcd"))
        self.assertEqual(of("a", 2), texts(b"a"))
        self.assertEqual(of([1, 2], 9), texts(b"[1, 2]"))
        self.assertEqual(of("\ud800", 9), texts(b"?"))
        self.assertEqual(of("", 9) + of("abc", 0), [])
        self.assertEqual(len(of("a" * 9999, 2)), proxy.DEPTH)
        chat = [{"role": "user", "content": "a"}]
        longer = chat + [{"role": "assistant", "content": "b"}]
        self.assertEqual(of(longer, 4, "messages")[:8],
                         of(chat, 4, "messages")[:8])


if __name__ == "__main__":
    unittest.main()
