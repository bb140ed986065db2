# SPDX-License-Identifier: Apache-2.0
"""The package as such: what it needs, what it imports, that it is the C
library's, and what it says where something is missing."""

import ast
import ctypes
import glob
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ucmfs
from ucmfs import _c, _lib, errors, position, retrieve, task
from tests.python.support import BUILDDIR, GEOMETRY, SRCDIR

PACKAGE = os.path.join(SRCDIR, "python", "ucmfs")
# What must not be imported by anything that does not need it.
HEAVY = ("numpy", "torch", "vllm", "yaml", "asyncio")


def sources():
    return sorted(glob.glob(os.path.join(PACKAGE, "**", "*.py"),
                            recursive=True))


def run(code, *flags, **environment):
    """(status, what it said) of Python that imports from the tree."""
    done = subprocess.run(
        [sys.executable, *flags, "-c",
         f"import sys; sys.path.insert(0, {os.path.dirname(PACKAGE)!r})\n"
         + code],
        env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=60)
    return done.returncode, done.stdout.decode()


class Proxy(unittest.TestCase):
    def test_says_what_it_needs(self):
        status, said = run(
            "import runpy; sys.modules['aiohttp'] = None\n"
            "runpy.run_module('ucmfs.proxy', run_name='__main__')")
        self.assertEqual(status, 1)
        self.assertEqual(said, "ucmfs.proxy needs aiohttp 3.9 or newer: "
                         "pip install 'ucmfs[proxy]'\n")


class Source(unittest.TestCase):
    def test_is_python_3_9(self):
        self.assertGreater(len(sources()), 10)
        for path in sources():
            with open(path, encoding="utf-8") as file:
                ast.parse(file.read(), path, feature_version=(3, 9))

    def test_annotations_are_not_evaluated(self):
        # X | Y in an annotation would fail in 3.9 when it is evaluated
        for path in sources():
            with open(path, encoding="utf-8") as file:
                text = file.read()
            if "def " in text:
                self.assertIn("from __future__ import annotations", text,
                              path)

    def test_has_79_columns(self):
        for path in sources():
            if os.path.basename(path) == "_c.py":
                continue
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    self.assertLess(len(line.rstrip("\n")), 80,
                                    f"{path}:{number}")

    def test_is_distributed(self):
        with open(os.path.join(SRCDIR, "python", "Makefile.inc"),
                  encoding="utf-8") as file:
            listed = set(re.findall(r"%D%/(\S+)", file.read()))
        for path in sources():
            name = os.path.relpath(path, os.path.dirname(PACKAGE))
            self.assertIn(name, listed)

    def test_has_the_version_of_configure(self):
        with open(os.path.join(SRCDIR, "configure.ac"),
                  encoding="utf-8") as file:
            version = re.search(r"AC_INIT\(\[ucmfs\], \[([^]]*)\]",
                                file.read()).group(1)
        self.assertEqual(ucmfs.__version__, version)

    def test_exports_what_it_lists(self):
        for name in ucmfs.__all__:
            self.assertIsNotNone(getattr(ucmfs, name), name)
        with self.assertRaises(AttributeError):
            ucmfs.nothing


class Imports(unittest.TestCase):
    def test_are_light(self):
        status, said = run(
            "import ucmfs\n"
            "ucmfs.Geometry, ucmfs.Loader, ucmfs.Store, ucmfs.Index\n"
            "ucmfs.Hasher, ucmfs.ensure_space, ucmfs.validate_config\n"
            "import ucmfs.factory, ucmfs.presets, ucmfs.codes\n"
            "import ucmfs.attention, ucmfs.repr_space, ucmfs.retrieve\n"
            "import ucmfs.sparse_base, ucmfs.sparse_cuda\n"
            f"print([m for m in {HEAVY} if m in sys.modules])\n"
            "print(ucmfs._lib._library)")
        self.assertEqual(said, "[]\nNone\n")
        self.assertEqual(status, 0)

    def test_work_without_the_heavy_ones(self):
        # as if none of them were installed; hashing is the library's
        status, said = run(
            "class Blocker:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.partition('.')[0] in ('numpy', 'torch', 'vllm',"
            " 'yaml'):\n"
            "            raise ImportError(name)\n"
            "sys.meta_path.insert(0, Blocker())\n"
            "import ucmfs\n"
            "h = ucmfs.Hasher('prefix', block_size=16)\n"
            "print(h.request(range(16)).hex())\n"
            "open('/dev/null')\n"
            "try:\n"
            "    ucmfs.regions_of([[1, 2]], ucmfs.Geometry(1, 1,"
            " k_bytes=1), dims='BD', num_pages=1)\n"
            "except ucmfs.InvalidArgument as e:\n"
            "    print(e)\n", "-S")
        self.assertEqual(status, 0, said)
        self.assertIn("is no tensor: one of torch or numpy", said)

    def test_yaml_that_is_missing_is_named(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("storage_backends: /x\n")
            file.flush()
            status, said = run(
                "sys.modules['yaml'] = None\n"
                "import ucmfs\n"
                "try:\n"
                f"    ucmfs.validate_config({file.name!r})\n"
                "except ucmfs.ConfigError as e:\n"
                "    print(e)\n")
        self.assertEqual(status, 0, said)
        self.assertIn("YAML needs PyYAML (python3-yaml", said)


class Library(unittest.TestCase):
    def test_that_is_missing_is_named(self):
        status, said = run(
            "import ucmfs\n"
            "try:\n"
            "    ucmfs.Hasher('sha256', block_size=16)\n"
            "except ucmfs.LibraryMissing as e:\n"
            "    assert isinstance(e, ucmfs.UcmfsError)\n"
            "    print(e)\n", UCMFS_LIBRARY="/nowhere/libucm.so")
        self.assertEqual(status, 0, said)
        self.assertIn("/nowhere/libucm.so", said)
        self.assertIn("$UCMFS_LIBRARY", said)
        self.assertIn("make install", said)

    def test_that_is_another_is_refused(self):
        status, said = run(
            "import ctypes.util, os\n"
            "os.environ['UCMFS_LIBRARY'] = ctypes.util.find_library('c')\n"
            "import ucmfs\n"
            "try:\n"
            "    ucmfs.crc32c(b'')\n"
            "except ucmfs.LibraryMissing as e:\n"
            "    print(e)\n")
        self.assertEqual(status, 0, said)
        self.assertIn("has no ucm_", said)

    def test_of_sparse_retrieval_alone_may_be_missing(self):
        with tempfile.TemporaryDirectory() as path:
            alone = os.path.join(path, "libucm.so")
            os.symlink(_lib.lib()._name, alone)
            status, said = run(
                "import ucmfs, ucmfs.sparse, ucmfs.star\n"
                "ucmfs.crc32c(b'')\n"
                "try:\n"
                "    ucmfs.star.kept(128, 0.5)\n"
                "except ucmfs.LibraryMissing as e:\n"
                "    print(e)\n", UCMFS_LIBRARY=alone)
        self.assertEqual(status, 0, said)
        self.assertIn("libucmsparse is not there", said)
        self.assertIn(path, said)

    @unittest.skipUnless(os.path.exists(os.path.join(
        BUILDDIR, "libucmsparse.la")), "libucmsparse is not built")
    def test_is_one_that_both_libraries_use(self):
        status, said = run(
            "import ucmfs, ucmfs._lib as library\n"
            "library.sparse()\n"
            "with open('/proc/self/maps') as maps:\n"
            "    print(len({line.split()[5] for line in maps\n"
            "               if '/libucm.so' in line}))\n")
        self.assertEqual((status, said.strip()), (0, "1"))

    def test_without_a_mount_says_so(self):
        with tempfile.TemporaryDirectory() as path:
            for call in (ucmfs.Loader, ucmfs.Index,
                         lambda m: ucmfs.Store(mount=m, tensor_size=512)):
                with self.assertRaises((ucmfs.NotFound,
                                        ucmfs.NotConnected)) as caught:
                    call(path)
                self.assertIn(path, str(caught.exception))
            with self.assertRaises(ucmfs.NotFound) as caught:
                ucmfs.ensure_space(path, "x", {"geometry": GEOMETRY.to_json()})
            self.assertIn("is ucmfs mounted there?", str(caught.exception))


class Declarations(unittest.TestCase):
    """_c.py, which declare.py has made of the headers."""

    HEADERS = os.path.join(SRCDIR, "include")

    def compiler(self):
        """Its words: CC may have options, or ccache before it."""
        compiler = os.environ.get("CC", "cc").split()
        if not shutil.which(compiler[0]):
            self.skipTest("needs a C compiler")
        return compiler

    def test_have_the_functions_of_the_libraries(self):
        exported = []
        for name in ("libucm.sym", "libucmsparse.sym"):
            with open(os.path.join(SRCDIR, name), encoding="utf-8") as file:
                exported.append(set(file.read().split()))
        self.assertEqual(set(_c.UCM) - exported[0], set())
        self.assertEqual({*_c.UCM, *_c.UCMSPARSE}, set.union(*exported))

    def test_have_pointers_of_the_kinds_that_calls_need(self):
        """A row for each rule."""
        pointer, void = ctypes.POINTER, ctypes.c_void_p
        for name, result, *arguments in (
                ("ucm_layout_new", ctypes.c_int, pointer(_c.Geometry),
                 ctypes.c_uint64, pointer(void), pointer(_c.Error)),
                ("ucm_layout_free", None, void),
                ("ucm_layout_regions", pointer(_c.Region), void),
                ("ucm_loader_prefix", ctypes.c_int, void, ctypes.c_uint, void,
                 ctypes.c_size_t, void),
                ("ucm_blocks_path", ctypes.c_int, void, ctypes.c_char_p, void,
                 ctypes.c_char_p),
                ("ucm_space_list", ctypes.c_int, ctypes.c_char_p,
                 ctypes.c_char_p, void, void, pointer(_c.Error)),
                ("ucm_log_redirect", ctypes.c_int, void, void),
                ("ucm_task_done", ctypes.c_bool, void)):
            self.assertEqual(_c.UCM[name], (result, tuple(arguments)), name)
        self.assertEqual(
            dict(_c.RetrievalJob._fields_)["score"], ctypes.c_void_p)
        self.assertEqual(dict(_c.HashMeta._fields_)["extras"], _c.HashExtras)

    def test_are_those_of_the_compiler(self):
        compiler = self.compiler()
        want = {f"(long long){name}": value
                for name, value in vars(_c).items() if name.startswith("UCM_")}
        for name, struct in _c.STRUCTS.items():
            want[f"sizeof(struct {name})"] = ctypes.sizeof(struct)
            for field, _ in struct._fields_:
                at = getattr(struct, field)
                want[f"offsetof(struct {name}, {field})"] = at.offset
                want[f"sizeof(((struct {name} *)0)->{field})"] = at.size
        with tempfile.TemporaryDirectory() as path:
            source = os.path.join(path, "a.c")
            with open(source, "w", encoding="utf-8") as file:
                file.write("#include <stdio.h>\n" + "".join(
                    f"#include <ucm/{os.path.basename(name)}>\n"
                    for name in glob.glob(self.HEADERS + "/ucm/*.h")) +
                    "int main(void)\n{\n" + "".join(
                        f'printf("%lld\\n", (long long)({expression}));\n'
                        for expression in want) + "return 0;\n}\n")
            out = os.path.join(path, "a")
            subprocess.run([*compiler, "-std=gnu17", "-o", out, source,
                            f"-I{self.HEADERS}"], check=True)
            seen = subprocess.run([out], check=True,
                                  stdout=subprocess.PIPE).stdout.split()
        self.assertEqual(want, dict(zip(want, map(int, seen))))

    def test_have_the_names_of_the_headers(self):
        want = {"UCM_METHODS": len(_lib.METHODS),
                "UCM_CHUNK_TOKENS": position.ChunkConfig().chunk_tokens,
                "UCM_CHUNK_BOUNDARY": position.ChunkConfig().boundary_tokens}
        for prefix, names in (("ORDER", _lib.ORDERS), ("PLANE", _lib.PLANES),
                              ("VERIFY", ("full", "header", "none", "once")),
                              ("SCORE", ("head", "group", "block")),
                              ("REDUCE", _c.REDUCTION), ("KEEPS", _c.KEEPS)):
            for number, name in enumerate(names):
                want[f"UCM_{prefix}_{name.upper()}"] = number
        for do in retrieve.Do:
            want[f"UCM_DO_{do.name}"] = do.value
        self.assertEqual(want, {name: getattr(_c, name) for name in want})
        self.assertEqual(_c.VERIFY, ("full", "header", "none", "once"))
        self.assertEqual(_c.SCORE_PER, ("head", "group", "block"))

    def test_that_are_not_understood_stop_the_build(self):
        compiler = self.compiler()
        for declaration in ("struct ucm_odd { long double x; };",
                            "struct ucm_odd { unsigned x : 3; };",
                            "typedef int ucm_odd;",
                            "struct ucm_odd { struct ucm_unknown x; };",
                            "ucm_odd_t ucm_odd(void);",
                            "int ucm_odd(int ***x);"):
            with tempfile.TemporaryDirectory() as path:
                os.mkdir(os.path.join(path, "python"))
                shutil.copy(os.path.join(SRCDIR, "python", "declare.py"),
                            os.path.join(path, "python"))
                shutil.copytree(self.HEADERS, os.path.join(path, "include"))
                with open(os.path.join(path, "include/ucm/space.h"), "a",
                          encoding="utf-8") as file:
                    file.write(declaration + "\n")
                done = subprocess.run(
                    [sys.executable, os.path.join(path, "python/declare.py"),
                     os.path.join(path, "out"), *compiler, "-E", "-x", "c",
                     f"-I{path}/include", "-"], stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1, declaration)
                self.assertIn(b"not understood: ", done.stderr)
                self.assertEqual(os.listdir(path), ["python", "include"])


class Handles(unittest.TestCase):
    def handles(self):
        """(one that is open, a call, what it says when it is closed)"""
        hasher = ucmfs.Hasher("prefix", block_size=16)
        layout = ucmfs.Layout(ucmfs.Geometry(1, 1, k_bytes=1), 1)
        queue = ucmfs.Completions()
        yield hasher, lambda: hasher.count(16), "hash prefix: it is closed"
        yield layout, layout.seal, "layout: it is closed"
        yield queue, queue.fileno, "completions: it is closed"

    def test_that_are_closed_say_so(self):
        for handle, call, says in self.handles():
            with handle:
                self.assertTrue(handle._open())
            handle.close()
            with self.assertRaisesRegex((ValueError, RuntimeError), says):
                call()

    def test_of_the_parent_are_not_closed_in_a_child(self):
        for handle, _, _ in self.handles():
            handle._pid += 1
            closed = []
            handle._lib = type("Library", (), {handle._CLOSE: closed.append})
            handle.close()
            self.assertEqual((closed, bool(handle._handle)), ([], False))


class Errors(unittest.TestCase):
    CASES = (
        (2, ucmfs.NotFound), (107, ucmfs.NotConnected), (110, ucmfs.Timeout),
        (28, ucmfs.NoSpace), (105, ucmfs.Dropped), (125, ucmfs.Cancelled),
        (16, ucmfs.Busy), (22, ucmfs.InvalidArgument), (5, ucmfs.UcmfsError))

    def test_are_named_after_causes(self):
        for number, kind in self.CASES:
            for err in (number, -number):
                error = errors.from_errno(err, "block x", "why")
                self.assertIs(type(error), kind)
                self.assertEqual(error.errno, number)
                self.assertIn("block x: why", str(error))
                self.assertIsInstance(error, OSError)

    def test_are_also_what_python_has(self):
        self.assertTrue(issubclass(ucmfs.Timeout, TimeoutError))
        self.assertTrue(issubclass(ucmfs.InvalidArgument, ValueError))
        self.assertTrue(issubclass(ucmfs.ConfigError, ValueError))

    def test_survive_pickle(self):
        damaged = errors.BlockDamaged(b"x" * 16, "plane checksum differs", 5)
        copy = pickle.loads(pickle.dumps(damaged))
        self.assertEqual((copy.block, copy.fault, copy.plane, copy.errno),
                         (b"x" * 16, "plane checksum differs", 5, 74))
        self.assertEqual(str(copy), str(damaged))
        for error in (errors.ConfigError("a.b", "why"),
                      errors.NamespaceMismatch("n", "k", 1, None),
                      errors.LibraryMissing("why"),
                      errors.from_errno(2, "a", "b")):
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy), copy.__dict__),
                             (type(error), str(error), error.__dict__))

    def test_outcomes_read_as_in_c(self):
        library = _lib.lib()
        text = ctypes.create_string_buffer(256)
        for raw in ((0, 0, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0),
                    (-2, 0, 0, 0, 0), (-74, 11, 0, 0, 5), (-74, 11, 0, 0, 4),
                    (-74, 3, 0, 0, 7), (-28, 0, 0, 0, 0), (-125, 0, 0, 0, 0),
                    (-74, 1, 0, 0, 0)):
            library.ucm_outcome_text(_c.Outcome(*raw), text, len(text))
            outcome = task._outcome(*raw)
            self.assertEqual(outcome.text, text.value.decode(), raw)
            self.assertEqual(outcome.ok, not raw[0])
            if raw[0]:
                self.assertEqual(outcome.exception(b"i" * 16).errno, -raw[0])


class Times(unittest.TestCase):
    def test_milliseconds_for_c(self):
        for seconds, want in ((0, 0), (-1, 0), (0.0001, 1), (0.03, 30),
                              (1.5, 1500), (3600, 3600000),
                              (1e9, 0x7fffffff),
                              (float("inf"), 0x7fffffff)):
            self.assertEqual(task.milliseconds(seconds), want, seconds)


if __name__ == "__main__":
    unittest.main()
