#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hashing/tree alone spells paths of the block tree.

Looked at are the literals of the C sources of all rooms, of the tools and the
benchmarks, and of the Python package. Prose is not meant: in a text with spaces
only words that begin with a conversion ("%s/.ucmfs/id: %s") count.
"""
import ast
import glob
import os
import re
import sys

top = os.environ["top_srcdir"]
SPELLER = ("hashing/tree.c", "hashing/tree.h")
# (file, literal): why it may stand there
JUSTIFIED = {
    # a line of the log
    ("fs/store/find/examine.c", "%s: %s.bin: %s: left alone"): "a message",
    # weights of models, which are looked for by their endings
    ("python/ucmfs/vllm/fingerprint.py", ".bin"): "not a block",
    # asked before libucm is loaded, which a check of options goes without
    ("python/ucmfs/config.py", ".ucmfs"): "is this a mount, or a tier?",
}
MIN_LITERALS = 3000

PATH = re.compile(r"""
    (^|/)(blocks|spaces|files|\.ucmfs)/     # a folder, and what is in it
  | /(blocks|spaces|files|\.ucmfs)$         # the folder of something
  | ^\.ucmfs$
  | (^|/)space\.json$
  | \.bin$
  | %02x/ | %\.2s/                          # a bucket
""", re.X)
# names that are also words: only where they are joined or compared
BARE = {"blocks", "spaces", "files"}
COMPARED = re.compile(r'(strcmp\(name, |(open_dir|openat|mkdir|stat)\([^;]*)'
                      r'"(blocks|spaces|files)"')


def words(literal):
    if not re.search(r"\s", literal):
        return [literal]
    return [word.rstrip(":,;") for word in literal.split()
            if word.startswith("%")]


def spells(literal):
    return any(PATH.search(word) for word in words(literal))


def literals_of_c(path):
    with open(f"{top}/{path}", encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^\s*#\s*include.*$", "", text, flags=re.M)
    for line in text.split(";"):
        found = COMPARED.search(line)
        if found:
            yield found[3] + "/"
    for literal in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text):
        yield literal


def literals_of_python(path):
    with open(f"{top}/{path}", encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        # os.path.join(root, "spaces", name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) \
                and node.func.attr == "join":
            for part in node.args:
                if isinstance(part, ast.Constant) and part.value in BARE:
                    yield f"{part.value}/"
        # name[:2], name + ".bin"
        if isinstance(node, ast.Subscript) and \
                ast.unparse(node.slice) == ":2" and \
                re.search(r"hex|name|id", ast.unparse(node.value)):
            yield "%.2s/"


def sources():
    for pattern in ("common", "hashing", "fs/*", "fs/store/*", "gpu/*", "tools",
                    "tools/*", "bench"):
        for path in sorted(glob.glob(f"{top}/{pattern}/*.[ch]")):
            yield os.path.relpath(path, top), literals_of_c
    for path in sorted(glob.glob(f"{top}/python/ucmfs/**/*.py",
                                 recursive=True)):
        yield os.path.relpath(path, top), literals_of_python


seen, used, failed = 0, set(), False
for path, literals_of in sources():
    if path in SPELLER:
        continue
    for literal in literals_of(path):
        seen += 1
        if not spells(literal):
            continue
        if (path, literal) in JUSTIFIED:
            used.add((path, literal))
            continue
        print(f"FAIL: {path} spells a path: {literal!r}")
        failed = True
for path, literal in sorted(set(JUSTIFIED) - used):
    print(f"FAIL: no longer, and still justified: {path}: {literal!r}")
    failed = True
# it would find one
for literal in ("%s/spaces/%s", ".ucmfs/socket", "%02x/%s.bin",
                "%s/.ucmfs/debug: %s", "spaces/NAME/space.json"):
    if not spells(literal):
        print(f"FAIL: not found: {literal!r}")
        failed = True
if seen < MIN_LITERALS:
    print(f"FAIL: found {seen} literals only")
    failed = True
print(f"{seen} literals, {len(used)} justified")
sys.exit(failed)
