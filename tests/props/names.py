#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No global name has two meanings.

A tag, a constant of an enum or a typedef that other files can see is defined in
one file; what a header only declares, each implementation of an interface may define
for itself. A function is defined in one room, which may have it twice, of which
configure chooses one.
"""
import collections
import glob
import os
import re
import sys

ROOMS = ("common", "hashing", "fs", "gpu", "sparse", "tools", "include")
# declared by an interface, and defined by each that implements it
OWN = {"struct ucm_source"}

COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.S)
TAG = re.compile(r"^(?:typedef )?(struct|union|enum) (\w+)\s*\{", re.M)
ENUM = re.compile(r"\benum\b[^;{()]*\{([^}]*)\}")
CONSTANT = re.compile(r"(?:^|,)\s*([A-Z]\w*)")
TYPEDEF = re.compile(r"^typedef\b[^;{]*?(\w+)\s*;|^typedef\b[^;{]*\{[^}]*\}\s*(\w+);",
                     re.M)
FUNCTION = re.compile(r"^(?!static\b|typedef\b)\w[\w *]*?\b(\w+)\([^;{}]*\)\n\{", re.M)


def names(text, is_header):
    """What a file defines that others may see."""
    for kind, name in TAG.findall(text):
        if is_header or name.startswith("ucm_"):
            yield f"{kind} {name}"
    if is_header:
        for body in ENUM.findall(text):
            yield from (f"constant {name}" for name in CONSTANT.findall(body))
        for pair in TYPEDEF.findall(text):
            yield f"typedef {pair[0] or pair[1]}"
    else:
        yield from (f"function {name}" for name in FUNCTION.findall(text)
                    if name != "main")


def definitions():
    found = collections.defaultdict(list)
    for room in ROOMS:
        for path in sorted(glob.glob(f"{room}/**/*.[ch]", recursive=True)):
            with open(path, encoding="utf-8") as file:
                text = COMMENTS.sub(" ", file.read())
            for name in names(text, path.endswith(".h")):
                found[name].append(os.path.dirname(path)
                                   if name.startswith("function") else path)
    return found


def main():
    os.chdir(os.environ["top_srcdir"])
    found = definitions()
    twice = {name: paths for name, paths in found.items()
             if (len(paths) > 1 and name not in OWN and
                 not (name.startswith("function") and len(set(paths)) == 1))}
    for name, paths in sorted(twice.items()):
        print(f"FAIL: {name}: defined in {', '.join(paths)}")
    for name in sorted(OWN):
        if len(found[name]) < 2:
            print(f"FAIL: {name}: has one definition; take it from OWN")
            twice[name] = found[name]
    print(f"{len(found)} names")
    return 1 if twice or len(found) < 1000 else 0


if __name__ == "__main__":
    sys.exit(main())
