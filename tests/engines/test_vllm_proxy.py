#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ucmfs.proxy before two servers of vLLM that share a mount, and ucmfs.bench."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List

import generate
import suite
from mount import Mount
from suite import CROWD, PROMPTS, TRAFFIC

START_S = 240.0
END_S = 30.0
HITS = "vllm:external_prefix_cache_hits_total"
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


def with_words(model: str, path: str) -> None:
    """The model, and a tokenizer that calls its tokens w0, w1, ..."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    shutil.copytree(model, path)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(1000)},
                                unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2",
        chat_template=TEMPLATE).save_pretrained(path)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """A program with a port, and a session for it and what it starts."""

    def __init__(self, log: str, *command: str) -> None:
        self.port = free_port()
        self.log = pathlib.Path(log)
        with open(log, "wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, "--port", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True, env={
                    **generate.ENVIRONMENT, **os.environ,
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                    "PYTHONHASHSEED": "0"})
        self.url = f"http://127.0.0.1:{self.port}"

    def wait(self) -> None:
        end = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).close()
                return
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise AssertionError(self.log.read_text()[-4000:]) \
                        from None
                time.sleep(0.1)

    def end(self, number: int = signal.SIGTERM) -> None:
        """What it has started ends in order, and removes its shared memory;
        what does not is killed."""
        self._process.send_signal(number)
        end = time.monotonic() + END_S
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            while time.monotonic() < end:
                self._process.poll()
                os.killpg(self._process.pid, 0)
                time.sleep(0.05)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if line.startswith((name + "{", name + " ")))


class Proxy(unittest.TestCase):

    @classmethod
    def setUpClass(cls) -> None:
        suite.require_engine()
        if importlib.util.find_spec("uvicorn") is None:
            raise unittest.SkipTest("needs uvicorn; see tools/engines-venv")
        cls.wanted = suite.reference()
        cls.mount = Mount()
        cls.addClassCleanup(cls.mount.close)
        model = os.path.join(cls.mount.work, "model")
        with_words(suite.model(""), model)
        cls.prefill = cls.engine("prefill", model, "kv_producer")
        cls.decode = cls.engine("decode", model, "kv_consumer")
        for each in cls.prefill, cls.decode:
            each.wait()
        cls.proxy = cls.server(
            "proxy", "ucmfs.proxy", "--prefill", cls.prefill.url, "--decode",
            cls.decode.url)
        cls.proxy.wait()

    @classmethod
    def server(cls, name: str, *command: str) -> Server:
        server = Server(os.path.join(cls.mount.work, name), *command)
        cls.addClassCleanup(server.end)
        return server

    @classmethod
    def engine(cls, name: str, model: str, role: str) -> Server:
        transfer = {
            "kv_connector": "UcmfsConnector",
            "kv_connector_module_path": "ucmfs.vllm", "kv_role": role,
            "kv_load_failure_policy": "recompute", "engine_id":
            f"ucmfs-test-{os.getpid()}-{name}",
            "kv_connector_extra_config": {
                **cls.mount.where, "min_benefit": {"enabled": False}}}
        return cls.server(
            name, "vllm.entrypoints.openai.api_server", "--model", model,
            "--host", "127.0.0.1", "--served-model-name", "tiny",
            "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
            "--block-size", "32", "--num-gpu-blocks-override", "256",
            "--kv-transfer-config", json.dumps(transfer))

    def post(self, path: str, body: Dict[str, Any], server: Any = None) -> Any:
        return urllib.request.urlopen(urllib.request.Request(
            (server or self.proxy).url + path, json.dumps({
                "model": "tiny", "max_tokens": 16, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True,
                **body}).encode(), {"Content-Type": "application/json"}),
            timeout=120)

    def tokens(self, name: str, stream: bool = False) -> List[int]:
        with self.post("/v1/completions", {"prompt": PROMPTS[name],
                                           "stream": stream}) as answer:
            text = answer.read().decode()
        if not stream:
            return json.loads(text)["choices"][0]["token_ids"]
        events = [line[6:] for line in text.splitlines() if line]
        self.assertEqual(events.pop(), "[DONE]")
        return [token for event in events
                for choice in json.loads(event)["choices"]
                for token in choice["token_ids"]]

    def test_1_tokens_are_those_of_one_engine(self) -> None:
        with ThreadPoolExecutor(32) as threads:
            names = (CROWD + TRAFFIC) * 3
            for name, got in zip(names, threads.map(
                    lambda i: self.tokens(names[i], i % 2 == 0),
                    range(len(names)))):
                self.assertEqual(got, self.wanted[name][:16], name)
        self.assertEqual(self.proxy.metric(
            "ucmfs_proxy_prefill_failures_total"), 0)
        self.assertGreater(self.decode.metric(HITS), 0)

    def test_2_a_chat(self) -> None:
        chat = {"messages": [{"role": "user", "content": " ".join(
            f"w{i * 7 % 900 + 3}" for i in range(200))}]}
        before = self.decode.metric(HITS)
        with self.post("/v1/chat/completions", chat) as answer:
            got = json.load(answer)
        self.assertGreaterEqual(self.decode.metric(HITS) - before, 192)
        with self.post("/v1/chat/completions", chat, self.prefill) as answer:
            alone = json.load(answer)
        self.assertEqual(got["choices"][0]["message"]["content"],
                         alone["choices"][0]["message"]["content"])

    def test_3_a_client_that_leaves(self) -> None:
        with self.post("/v1/completions", {
                "prompt": [5] * 40, "stream": True,
                "max_tokens": 2000}) as answer:
            answer.readline()
        end = time.monotonic() + 30
        while self.decode.metric("vllm:num_requests_running"):
            self.assertLess(time.monotonic(), end)
        self.assertLess(
            self.decode.metric("vllm:request_generation_tokens_sum"), 1900)

    def test_3_the_load_of_ucmfs_bench(self) -> None:
        """What one engine has computed the other one loads, if it may."""
        path = os.path.join(self.mount.work, "result")
        for server in self.prefill, self.decode:
            subprocess.run(
                [sys.executable, "-m", "ucmfs.bench", "run", server.url,
                 "--scenario", "short", "--requests", "8", "--input", "200",
                 "--output", "8", "--vocab", "900", "--seed", "1",
                 "--without", "-o", path], check=True, timeout=120)
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        for each in result, result["without"]:
            self.assertEqual([(each.get("input"), each.get("output"))
                              for each in each["requests"]], [(200, 8)] * 8)
        self.assertGreater(result["engine"]["load_seconds_count"], 0)
        self.assertFalse(result["without"]["engine"].get("load_seconds_count"))

    def test_4_without_a_prefill_engine(self) -> None:
        self.prefill.end(signal.SIGKILL)
        self.assertEqual(self.tokens("stray"), self.wanted["stray"][:16])
        self.assertGreater(self.proxy.metric(
            "ucmfs_proxy_prefill_failures_total"), 0)

    def test_5_without_a_decode_engine(self) -> None:
        self.decode.end(signal.SIGKILL)
        with self.assertRaises(urllib.error.HTTPError) as error:
            self.tokens("short")
        self.assertEqual(error.exception.code, 502)
        error.exception.close()


if __name__ == "__main__":
    unittest.main()
