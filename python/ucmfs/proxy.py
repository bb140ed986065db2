# SPDX-License-Identifier: Apache-2.0
"""A proxy before vLLM engines that share a store: some compute prompts, others
generate tokens.

    python -m ucmfs.proxy --prefill URL... --decode URL...

A request to /v1/completions or /v1/chat/completions is first sent to a
prefill engine, for one token and a report of what that engine saves of the
prompt; then to a decode engine, which waits for that (doc/engines.md, "Prefill
and decode apart"). The bytes of its answer are passed on as they come.

Without a report, for whatever reason, the decode engine computes the prompt: a
prefill engine that fails costs time. A decode engine that fails is replaced
only before the first byte of its answer; after that the connection is reset,
as a client could take anything else for the end. A client that leaves takes
its requests along.

A request goes to the engine that has last had most of what it begins with,
unless that one has far more to do than the others. One that has failed is left
out for a few seconds, and gets one request at a time then, until it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import socket
import struct
import sys
import time
from collections import OrderedDict
from typing import Any, AsyncIterator, Iterator, Sequence

try:
    import aiohttp
    from aiohttp import web
    if tuple(map(int, aiohttp.__version__.split(".")[:2])) < (3, 9):
        raise ImportError
except ImportError:
    NEEDS = ("ucmfs.proxy needs aiohttp 3.9 or newer: "
             "pip install 'ucmfs[proxy]'")
    if __name__ == "__main__":
        sys.exit(NEEDS)
    raise ImportError(NEEDS) from None

from .vllm.wishes import KEY, WAIT_MOST

log = logging.getLogger("ucmfs.proxy")

CONNECT_SECONDS = 5
HEALTH_SECONDS = 2
RETRY_SECONDS = 5     # for which an engine that failed is left out
TRIES = 2             # of a request that an engine had accepted
SLACK = 4             # requests more than twice the least, and still its home
PREFIXES = 1 << 16    # remembered for a pool
DEPTH = 1024          # prefixes of a request
BODY_MOST = 256 << 20
# Of one connection: not passed on. Bytes are passed on as they are.
HOP = {"accept-encoding", "connection", "content-encoding", "content-length",
       "expect", "host", "keep-alive", "proxy-authorization", "te", "trailer",
       "transfer-encoding", "upgrade"}
GONE = {502, 503, 504}
UNCONNECTED = (aiohttp.ClientConnectorError,
               getattr(aiohttp, "ConnectionTimeoutError", ()))
FAILED = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class Engine:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.in_flight = 0
        self.out_until = 0.0
        self.has_failed = False  # and has not answered since

    def is_up(self, now: float) -> bool:
        """One that has failed gets one request at a time, until it answers."""
        return self.out_until <= now and not (
            self.has_failed and self.in_flight)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def fail(self, why: Any) -> None:
        log.warning("%s: %s; left out for %g s", self.url,
                    str(why) or type(why).__name__, RETRY_SECONDS)
        self.out_until = time.monotonic() + RETRY_SECONDS
        self.has_failed = True


class Pool:
    """Engines that do the same."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.engines = [Engine(url) for url in urls]
        self._had: OrderedDict[bytes, Engine] = OrderedDict()

    def up(self, prefixes: Sequence[bytes] = ()) -> list[Engine]:
        """Those that have not failed, in the order in which to try them.
        prefixes: of the request, the shortest one first."""
        now = time.monotonic()
        up = sorted((e for e in self.engines if e.is_up(now)),
                    key=lambda e: e.in_flight)
        if up and prefixes:
            # new ones by a hash, which is the same after a restart
            usual = max(up, key=lambda e: hashlib.sha256(
                prefixes[0] + e.url.encode()).digest())
            most = 2 * up[0].in_flight + SLACK
            for home in *map(self._had.get, reversed(prefixes)), usual:
                if home in up and home.in_flight <= most:
                    up.remove(home)
                    up.insert(0, home)
                    break
        return up

    def had(self, prefixes: Sequence[bytes], engine: Engine) -> None:
        for prefix in prefixes:
            self._had[prefix] = engine
            self._had.move_to_end(prefix)
        while len(self._had) > PREFIXES:
            self._had.popitem(last=False)

    def all(self, prefixes: Sequence[bytes]) -> list[Engine]:
        """Those that have failed as well, last."""
        up = self.up(prefixes)
        return up + sorted((e for e in self.engines if e not in up),
                           key=lambda e: e.out_until)


def prefixes_of(body: dict[str, Any], step: int) -> list[bytes]:
    """Hashes of a prompt's first characters, of each multiple of step of
    them; at least one. step 0: none."""
    prompt = body.get("prompt", body.get("messages", ""))
    if not isinstance(prompt, str):
        prompt = json.dumps(prompt)
    state, out = hashlib.sha256(), []
    for at in range(0, min(len(prompt), DEPTH * step), step or 1):
        if at and at + step > len(prompt):
            break
        state.update(prompt[at:at + step].encode(errors="replace"))
        out.append(state.digest())
    return out


def with_params(body: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """A request with parameters for the connector, beside the client's."""
    theirs = body.get("kv_transfer_params") or {}
    of_ucmfs = dict(theirs.get(KEY) or {})
    of_ucmfs.pop("wait", None)
    return {**body, "kv_transfer_params": {
        **theirs, KEY: {**of_ucmfs, **ours}}}


def prompt_alone(body: dict[str, Any]) -> dict[str, Any]:
    """The same prompt, for one token."""
    one = {name: value for name, value in body.items() if name not in (
        "stream_options", "min_tokens", "best_of", "n")}
    one.update(stream=False, max_tokens=1)
    if "max_completion_tokens" in one:
        one["max_completion_tokens"] = 1
    return with_params(one, {"report": True})


def headers_of(headers: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items()
            if name.lower() not in HOP]


def error_of(status: int, text: str) -> web.Response:
    return web.json_response({"error": {
        "message": text, "type": "proxy_error", "code": status}},
        status=status)


def reset(request: web.BaseRequest) -> None:
    """End a client's connection so that it is an error, also where the end of
    the connection is that of the answer."""
    if request.transport is not None:
        request.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()


class Proxy:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._prefill = Pool(options.prefill)
        self._decode = Pool(options.decode)
        self._counts = {"requests": 0, "prefill_failures": 0, "retries": 0}
        self._session: Any = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_MOST)
        app.cleanup_ctx.append(self._with_session)
        app.add_routes([
            web.post("/v1/completions", self.generate),
            web.post("/v1/chat/completions", self.generate),
            web.get("/v1/models", self.models),
            web.get("/health", self.health),
            web.get("/metrics", self.metrics)])
        return app

    async def _with_session(self, _: web.Application) -> AsyncIterator[None]:
        # A connection for each request: one that is kept may be closed by the
        # engine just when it is used again.
        async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(
                    sock_connect=CONNECT_SECONDS,
                    sock_read=self._options.timeout),
                skip_auto_headers=["Accept-Encoding", "User-Agent"],
                auto_decompress=False) as self._session:
            yield

    # ---- completions ----

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self._counts["requests"] += 1
        try:
            body = json.loads(await request.read())
            prefixes = prefixes_of(body, self._options.affinity)
            alone = prompt_alone(body)
        except (ValueError, AttributeError, TypeError) as error:
            return error_of(400, f"invalid request body: {error}")
        wait = await self._report(request, alone, prefixes)
        if wait:
            body = with_params(body, {"wait": wait})
        return await self._forward(request, prefixes,
                                   json.dumps(body).encode())

    async def _report(self, request: web.Request, body: dict[str, Any],
                      prefixes: Sequence[bytes]) -> dict[str, Any] | None:
        """What a prefill engine says that another may wait for."""
        for engine in self._prefill.up(prefixes)[:TRIES]:
            with engine.busy():
                try:
                    async with self._session.post(
                            engine.url + request.path, json=body,
                            headers=headers_of(request.headers),
                            timeout=aiohttp.ClientTimeout(
                                total=self._options.prefill_timeout,
                                sock_connect=CONNECT_SECONDS)) as answer:
                        if answer.status < 500:
                            engine.has_failed = False
                            self._prefill.had(prefixes, engine)
                            return self._wait_in(
                                await answer.json(content_type=None))
                        if answer.status in GONE:
                            engine.fail(f"status {answer.status}")
                except FAILED as error:
                    engine.fail(error)
                except ValueError as error:
                    log.warning("%s: %s", engine.url, error)
            self._counts["prefill_failures"] += 1
        return None

    def _wait_in(self, answer: Any) -> dict[str, Any] | None:
        try:
            wait = dict(answer["kv_transfer_params"][KEY]["wait"])
        except (KeyError, TypeError, ValueError):
            return None  # an error that the decode engine reports as well
        if self._options.wait is not None:
            wait["seconds"] = self._options.wait
        return wait

    async def _forward(self, request: web.Request, prefixes: Sequence[bytes],
                       data: bytes | None) -> web.StreamResponse:
        """The answer of the first decode engine that has one."""
        engines = self._decode.all(prefixes)
        tries, why = 1, ""
        for engine in engines:
            self._counts["retries"] += engine is not engines[0]
            begun = False
            with engine.busy():
                try:
                    async with self._session.request(
                            request.method, engine.url + request.path,
                            data=data, headers=headers_of(request.headers),
                            ) as answer:
                        first = await answer.content.readany()
                        if answer.status < 500 or tries == TRIES \
                                or engine is engines[-1]:
                            begun = True
                            if answer.status < 500:
                                self._decode.had(prefixes, engine)
                            engine.has_failed &= answer.status >= 500
                            return await self._relay(request, answer, first)
                        why = f"status {answer.status}"
                        if answer.status in GONE:
                            engine.fail(why)
                except FAILED as error:
                    if begun:
                        raise
                    engine.fail(error)
                    why = str(error) or type(error).__name__
                    if isinstance(error, UNCONNECTED):
                        continue  # it never had the request
            if tries == TRIES:
                break
            tries += 1
        return error_of(502, f"no decode engine answers: {why}")

    async def _relay(self, request: web.Request, answer: Any,
                     chunk: bytes) -> web.StreamResponse:
        response = web.StreamResponse(
            status=answer.status, headers=headers_of(answer.headers))
        response.content_length = answer.content_length
        await response.prepare(request)
        while chunk:
            await response.write(chunk)
            try:
                chunk = await answer.content.readany()
            except FAILED as error:
                log.warning("%s: %s, after a part of the answer", answer.url,
                            str(error) or type(error).__name__)
                reset(request)
                break
        return response

    # ---- the rest ----

    async def models(self, request: web.Request) -> web.StreamResponse:
        return await self._forward(request, (), None)

    async def health(self, _: web.Request) -> web.Response:
        """Is there a decode engine? Prompts need no other."""
        well = await asyncio.gather(*map(self._is_well, self._decode.engines))
        return web.Response(status=200 if any(well) else 503)

    async def _is_well(self, engine: Engine) -> bool:
        try:
            async with self._session.get(
                    engine.url + "/health", timeout=aiohttp.ClientTimeout(
                        total=HEALTH_SECONDS)) as answer:
                return answer.status == 200
        except FAILED:
            return False

    async def metrics(self, _: web.Request) -> web.Response:
        lines = []
        for name, value in self._counts.items():
            lines += [f"# TYPE ucmfs_proxy_{name}_total counter",
                      f"ucmfs_proxy_{name}_total {value}"]
        lines.append("# TYPE ucmfs_proxy_in_flight gauge")
        for role, pool in ("prefill", self._prefill), ("decode", self._decode):
            lines += [f'ucmfs_proxy_in_flight{{role="{role}",engine='
                      f'"{engine.url}"}} {engine.in_flight}'
                      for engine in pool.engines]
        return web.Response(text="\n".join(lines) + "\n",
                            headers={"Content-Type": "text/plain; "
                                     "version=0.0.4; charset=utf-8"})


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ucmfs.proxy",
        description="Have some vLLM engines compute prompts, and others "
        "generate tokens.")
    parser.add_argument("--prefill", nargs="+", required=True, metavar="URL",
                        help="engines that compute prompts")
    parser.add_argument("--decode", nargs="+", required=True, metavar="URL",
                        help="engines that generate tokens")
    parser.add_argument("--host", default="127.0.0.1", help="[%(default)s]")
    parser.add_argument("--port", type=int, default=8000,
                        help="[%(default)s]")
    parser.add_argument("--affinity", type=int, default=512, metavar="N",
                        help="what requests begin with is compared in steps "
                        "of N characters [%(default)s]; 0: they go to those "
                        "with the least to do")
    parser.add_argument("--prefill-timeout", type=float, default=60,
                        metavar="SECONDS", help="for a prompt [%(default)s]")
    parser.add_argument("--timeout", type=float, default=600,
                        metavar="SECONDS",
                        help="for the next byte of a decode engine "
                        "[%(default)s]")
    parser.add_argument("--wait", type=float, metavar="SECONDS",
                        help="for blocks of a prompt [the decode engine's "
                        "choice]")
    options = parser.parse_args(arguments)
    if options.wait is not None and not 0 <= options.wait <= WAIT_MOST:
        parser.error(f"--wait: 0 to {WAIT_MOST:g} seconds")
    return options


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = options_of()
    web.run_app(Proxy(options).app(), host=options.host, port=options.port,
                access_log=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
