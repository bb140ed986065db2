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
from ucmfs import (_lib, _lib_sparse, errors, position, repr_file, retrieve,
                   task)
from tests.python.support import BUILDDIR, SRCDIR

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
            "import ucmfs.attention, ucmfs.repr_file, ucmfs.retrieve\n"
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
            "import ucmfs, ucmfs._lib_sparse as sparse\n"
            "sparse.lib()\n"
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
                ucmfs.ensure_space(path, "x", {"geometry": {}})
            self.assertIn("is ucmfs mounted there?", str(caught.exception))


class Prototypes(unittest.TestCase):
    """_lib.py against the headers."""

    # Pure helpers for C programs, which Python does without.
    UNUSED = re.compile(
        r"ucm_(block_|dtype_|geometry_|id_|scheme_|space_list$|repr_kind_|"
        r"task_arg$|sparse_(cuda_|defaults$))")
    TABLE = {**_lib.PROTOTYPES, **_lib_sparse.PROTOTYPES}
    STRUCTS = {**_lib.STRUCTS, **_lib_sparse.STRUCTS}
    HEADERS = ("block", "blocks", "error", "hash", "index", "lessee", "load",
               "log", "position", "repr", "repr_load", "retrieve", "shards",
               "space", "sparse")

    def headers(self):
        text = ""
        for name in self.HEADERS:
            with open(os.path.join(SRCDIR, "include/ucm", f"{name}.h"),
                      encoding="utf-8") as file:
                text += file.read()
        return re.sub(r"/\*.*?\*/", "", text, flags=re.S)

    def declared(self):
        """name -> (result, [arguments])."""
        return {name: (result.strip(), [
            a.strip() for a in arguments.split(",")])
            for result, name, arguments in re.findall(
                r"^([a-z][\w \n]*?[ *]+)(ucm_\w+)\(([^)]*)\);",
                self.headers(), re.M)}

    def test_are_those_of_the_library(self):
        exported = set()
        for name in ("libucm.sym", "libucmsparse.sym"):
            with open(os.path.join(SRCDIR, name), encoding="utf-8") as file:
                exported |= set(file.read().split())
        self.assertEqual(set(self.TABLE) - exported, set())
        left = {name for name in exported - set(self.TABLE)
                if not self.UNUSED.match(name)}
        self.assertEqual(left, set(), "not in the table")

    def kinds(self, declaration):
        """The ctypes that a C declaration may be."""
        if re.search(r"[*[]|^ucm_log_fn\b", declaration):
            return None  # a pointer
        words = [w for w in declaration.split() if w not in ("const", "enum")]
        return {"int": ctypes.c_int, "unsigned": ctypes.c_uint,
                "size_t": ctypes.c_size_t, "bool": ctypes.c_bool,
                "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
                "double": ctypes.c_double, "float": ctypes.c_float,
                "void": None}.get(words[0], ctypes.c_int)

    def is_pointer(self, kind):
        return kind in (ctypes.c_void_p, ctypes.c_char_p) or \
            isinstance(kind, type(ctypes.POINTER(ctypes.c_int)))

    def test_have_the_arguments_of_the_headers(self):
        declared = self.declared()
        for name, (result, arguments) in self.TABLE.items():
            c_result, c_arguments = declared[name]
            self.assertEqual(len(arguments), len(c_arguments), name)
            pairs = list(zip(arguments, c_arguments))
            if c_result != "void":
                pairs.append((result, c_result))
            for kind, text in pairs:
                want = self.kinds(text)
                if want is None:
                    self.assertTrue(self.is_pointer(kind), f"{name}: {text}")
                else:
                    self.assertIs(kind, want, f"{name}: {text}")

    def test_structs_have_the_compilers_offsets(self):
        compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
        if not compiler:
            self.skipTest("needs a C compiler")
        lines = []
        want = []
        for name, struct in self.STRUCTS.items():
            lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
            want.append((name, ctypes.sizeof(struct)))
            for field, _ in struct._fields_:
                member = f"((struct {name} *)0)->{field}"
                lines.append(f'printf("%zu\\n%zu\\n", offsetof(struct {name}, '
                             f"{field}), sizeof({member}));")
                want.append((f"{name}.{field}", getattr(struct, field).offset))
                want.append((f"{name}.{field} size",
                             getattr(struct, field).size))
        seen = self.compiled(compiler, "\n".join(lines)).split()
        self.assertEqual([f"{n} {s}" for n, s in want],
                         [f"{n[0]} {s}" for n, s in zip(want, seen)])

    def test_names_have_the_compilers_numbers(self):
        compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
        if not compiler:
            self.skipTest("needs a C compiler")
        want = {}
        for prefix, names in (("DTYPE", _lib.DTYPES), ("ORDER", _lib.ORDERS),
                              ("PLANE", _lib.PLANES),
                              ("SCHEME", _lib.SCHEMES),
                              ("VERIFY", _lib.VERIFY),
                              ("COPY", ("host", "cuda")),
                              ("LOAD", ("blocks", "layers")),
                              ("IO", ("auto", "uring", "threads")),
                              ("CHUNK", _lib_sparse.CHUNKS),
                              ("LAYER", _lib_sparse.ROLES)):
            for number, name in enumerate(names):
                want[f"UCM_{prefix}_{name.upper()}"] = number
        for prefix, end, names in (
                ("REPR", "KINDS", _lib_sparse.KINDS),
                ("SCORE", "PERS", _lib_sparse.PERS),
                ("CODE", "FORMS", _lib_sparse.FORMS),
                ("CODE", "MEASURES", _lib_sparse.MEASURES),
                ("CODE", "OVERS", _lib_sparse.OVERS),
                ("ROPE", "PAIRINGS", _lib_sparse.PAIRINGS),
                ("ROPE", "SCALINGS", _lib_sparse.SCALINGS),
                ("HKVD", "RULES", _lib_sparse.RULES)):
            for number, name in enumerate((*names, end)):
                want[f"UCM_{prefix}_{name.upper()}"] = number
        for number, name in enumerate(_lib_sparse.EVICT):
            want[f"UCM_EVICT_{name.upper()}"] = number
        for number, name in enumerate(_lib_sparse.KEEPS):
            want[f"UCM_KEEPS_{name.upper()}"] = number
        want["UCM_METHODS"] = len(_lib_sparse.METHODS)
        for number, name in _lib_sparse.FILE_KINDS.items():
            want[f"UCM_REPR_FILE_{name.upper()}"] = number
        want["UCM_COMPUTE_MAX"] = _lib_sparse.COMPUTE_MAX
        for number, name in enumerate(_lib_sparse.REDUCTIONS):
            want[f"UCM_REDUCE_{name.upper()}"] = number
        want["UCM_REDUCTIONS"] = len(_lib_sparse.REDUCTIONS)
        want["UCM_SCORE_DISTANCE"] = _lib_sparse.DISTANCE
        want["UCM_EVICTS"] = len(_lib_sparse.EVICT)
        for do in retrieve.Do:
            want[f"UCM_DO_{do.name}"] = do.value
        want["UCM_LAYERS_MAX"] = _lib_sparse.LAYERS_MAX
        want["UCM_REPR_FILE_HEADER_BYTES"] = repr_file.HEADER_BYTES
        chunks = position.ChunkConfig()
        want["UCM_CHUNK_TOKENS"] = chunks.chunk_tokens
        want["UCM_CHUNK_BOUNDARY"] = chunks.boundary_tokens
        want["UCM_FAULT_PLANE"] = _lib.FAULT_PLANE
        want["UCM_HASH_PARTIAL"] = _lib.HASH_PARTIAL
        want["UCM_INDEX_PINNED"] = 2
        want["UCM_PLACE_PINNED"] = 1
        want["UCM_LOCATE_PEEK"] = 2
        want["UCM_BLOCKS_PATH_MAX"] = 4096
        want["UCM_ID_BYTES"] = 16
        seen = self.compiled(compiler, "\n".join(
            f'printf("%d\\n", (int){name});' for name in want)).split()
        self.assertEqual(want, dict(zip(want, map(int, seen))))

    def compiled(self, compiler, body):
        with tempfile.TemporaryDirectory() as path:
            source = os.path.join(path, "a.c")
            with open(source, "w", encoding="utf-8") as file:
                file.write("#include <stdio.h>\n" + "".join(
                    f"#include <ucm/{name}.h>\n" for name in self.HEADERS)
                    + "int main(void)\n{\n" + body + "\nreturn 0;\n}\n")
            out = os.path.join(path, "a")
            subprocess.run([compiler, "-std=gnu17", "-o", out, source,
                            f"-I{SRCDIR}/include", f"-I{BUILDDIR}/include"],
                           check=True)
            return subprocess.run([out], check=True,
                                  stdout=subprocess.PIPE).stdout.decode()


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
            library.ucm_outcome_text(_lib.Outcome(*raw), text, len(text))
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
