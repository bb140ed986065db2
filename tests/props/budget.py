# SPDX-License-Identifier: Apache-2.0
"""What the tree may have at most: lines, options, verbs, fields, files on a path.

budget.py SOURCE BUILD [--print] compares it with tests/props/budget.txt. Numbers
there fall when the tree gets smaller; one that rises needs a removal in the same
commit, or a line that says why. --print writes today's numbers.
"""
import os
import re
import subprocess
import sys

SOURCE, BUILD = sys.argv[1:3]
ROOMS = ("common", "hashing", "fs", "gpu", "sparse", "tools", "python",
         "include")
COMMENT = re.compile(r"/\*(?:.|\n)*?\*/|//[^\n]*")
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')


def read(*path):
    with open(os.path.join(SOURCE, *path), errors="replace") as file:
        return file.read()


def files_in(folder, ends):
    for where, folders, names in os.walk(os.path.join(SOURCE, folder)):
        folders[:] = [f for f in folders if f not in ("__pycache__", "dist")
                      and not f.startswith("build") and not f.endswith(".egg-info")]
        for name in sorted(names):
            # python/ucmfs/_c.py is made, not kept
            if name.endswith(ends) and not name.startswith(".") and \
                    name != "_c.py":
                yield os.path.relpath(os.path.join(where, name), SOURCE)


def code_lines(path):
    """Without comments, docstrings and blank lines."""
    text = read(path)
    if path.endswith(".py"):
        text = re.sub(r'"""(?:.|\n)*?"""', "", text)
        lines = (line.strip() for line in text.split("\n"))
        return sum(1 for line in lines if line and line[0] != "#")
    return sum(1 for line in COMMENT.sub("", text).split("\n") if line.strip())


def lines_of(room):
    return sum(code_lines(path)
               for path in files_in(room, (".c", ".h", ".cu", ".cuh", ".py")))


def text_lines(*folders):
    return sum(read(path).count("\n")
               for folder in folders
               for path in files_in(folder, ("",))
               if not path.endswith(".json"))


def body_of(path, start):
    """From the brace of a struct to the brace that ends it, without comments."""
    text = COMMENT.sub("", read(path))
    begin = text.index(start) + len(start)
    depth, at = 1, begin
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[begin:at - 1]


def fields(path, name):
    """Names that a struct declares; those of structs inside of it too."""
    body = body_of(path, f"struct {name} {{")
    body = re.sub(r"\([^()]*\)", "", body)  # parameters of pointers to functions
    return sum(part.count(",") + 1
               for part in re.findall(r"[^;{}]*\w[^;{}]*;", body))


def operations(path, *names):
    return sum(body_of(path, f"struct {name} {{").count("(*")
               for name in names)


def options():
    """Of ucmfs --help: options, settings of ucmfs.conf, words of mount(8)."""
    text = subprocess.run([os.path.join(BUILD, "ucmfs"), "--help"], check=True,
                          capture_output=True, text=True).stdout
    line, file = text[text.index("\nOptions"):].split("\nSettings")
    words = re.findall(r"\n(?:Handed|Accepted)[^:]*:(.*)", line)
    return (len(re.findall(r"\n  [a-z]", line)),
            len(re.findall(r"\n  [a-z]", file)),
            sum(len(each.split()) for each in words))


def verbs():
    return len(re.findall(r"&ucm_\w+_command,", read("tools", "ucm.c")))


def exported():
    return len(read("libucm.sym").split())


def ioctls():
    return len(re.findall(r"#define UCM_CONTROL_\w+ _IO", read("include", "ucm",
                                                               "control.h")))


# ---- paths ----

DEFINITION = re.compile(r"^(?:[a-z_][\w \t\*]*?[ \t\*])?(\w+)\(([^;{}]*?)\)\n\{",
                        re.M)
CALL = re.compile(r"\b([a-z_]\w*)\b")


class Calls:
    """Which function of the product names which others, without types: calls
    through tables of operations are not followed."""

    def __init__(self, folders):
        self.bodies, self.statics, self.globals = {}, {}, {}
        for folder in folders:
            for path in files_in(folder, (".c",)):
                self.take(path)

    def take(self, path):
        text = STRING.sub('""', COMMENT.sub("", read(path)))
        for match in DEFINITION.finditer(text):
            name = match.group(1)
            end = text.find("\n}", match.end())
            is_static = "static " in match.group(0).split(name + "(")[0]
            self.bodies[path, name] = text[match.end():end]
            if is_static:
                self.statics.setdefault(path, set()).add(name)
            else:
                self.globals[name] = path

    def files(self, root, within):
        """How many there are under a folder, with all that they call there."""
        seen, left = set(), [(self.globals[root], root)]
        while left:
            at = left.pop()
            if at in seen:
                continue
            seen.add(at)
            for name in CALL.findall(self.bodies[at]):
                if name in self.statics.get(at[0], ()):
                    left.append((at[0], name))
                elif name in self.globals:
                    left.append((self.globals[name], name))
        return len({p for p, _ in seen if p.startswith(within)})


def measure():
    calls = Calls(("fs", "gpu"))
    rows = {f"lines of {room}": lines_of(room) for room in ROOMS}
    rows["lines of the product"] = sum(rows.values())
    (rows["options of ucmfs"], rows["settings of ucmfs.conf"],
     rows["words of mount(8)"]) = options()
    rows["verbs of ucm"] = verbs()
    rows["ioctls"] = ioctls()
    rows["exported symbols"] = exported()
    rows["operations of a medium"] = operations(
        "fs/medium/medium.h", "ucm_medium_ops", "ucm_file_ops")
    rows["fields of the store"] = fields("fs/store/store.h", "ucm_store")
    rows["fields of a task"] = fields("gpu/load/task/task.h", "ucm_task")
    rows["fields of a piece"] = fields("gpu/load/piece/piece.h", "ucm_piece")
    rows["fields of a handle"] = fields("fs/mount/node/daemon.h", "ucm_handle")
    for name, root, within in (
            ("a commit", "ucm_store_commit", "fs/"),
            ("an open", "ucm_store_open_block", "fs/"),
            ("a loaded piece", "ucm_load_start", "gpu/"),
            ("the next eviction", "ucm_evict_bytes", "fs/"),
            ("a mapped look-up", "ucm_index_lookup", "fs/")):
        rows[f"files on the path of {name}"] = calls.files(root, within)
    rows["lines of ucmfs.8"] = read("man", "ucmfs.8").count("\n")
    rows["lines of TODO"] = read("TODO").count("\n")
    rows["lines of doc and man"] = text_lines("doc", "man")
    return rows


def allowed():
    """NAME: NUMBER, and behind a # why it has risen."""
    rows = {}
    for line in read("tests", "props", "budget.txt").split("\n"):
        line = line.split("#")[0].strip()
        if line:
            name, number = line.rsplit(":", 1)
            rows[name.strip()] = int(number)
    return rows


def main():
    rows = measure()
    if "--print" in sys.argv:
        for name, number in rows.items():
            print(f"{name}: {number}")
        return 0
    budget, failed = allowed(), 0
    for name in sorted(rows.keys() | budget.keys()):
        if name not in budget or name not in rows:
            print(f"FAIL: {name}: measured: {name in rows}, "
                  f"in budget.txt: {name in budget}")
        elif rows[name] > budget[name]:
            print(f"FAIL: {name}: {rows[name]}, and {budget[name]} are allowed")
        else:
            print(f"ok: {name}: {rows[name]} of {budget[name]}")
            continue
        failed = 1
    return failed


sys.exit(main())
