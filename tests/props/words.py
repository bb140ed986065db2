#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How often the project's private words stand where the field's would do.

words.txt has a line for each word and area: documents (man/, doc/, the READMEs),
messages (strings of the product) and sources (its comments and names). The
numbers only fall. --print lists what there is, WORD... where it stands.
"""
import io
import re
import subprocess
import sys
import tokenize

TOP = sys.argv[1]
# What stands, as an expression, and what reads well.
WORDS = {
    # private words
    "anew": ("anew", "again"),
    "condemn": ("condemn(s|ed|ing)?", "quarantine"),
    "doubt": ("(in )?doubt(s|ed|ful)?", "suspect"),
    "exile": ("exile[sd]?", "quarantine"),
    "hungry": ("hungry", "waiting for memory"),
    "lane": ("lanes?", "device queue"),
    "lent": ("lent", "in use by I/O"),
    "mute": ("mute[sd]?", "unresponsive"),
    "silent": ("silent(ly)?", "unresponsive"),
    "toll": ("tolls?", "throttle"),
    "vain": ("(in )?vain", "exhausted"),
    "wish": ("wish(es|ed)?", "promotion request"),
    "withhold": ("with(hold|holds|held)", "pin to tier"),
    # words to remove
    "behind": ("behind", "after"),
    "goes": ("goes(?! (on|into|to|by|with|through|back))|ha(s|ve) gone",
             "is evicted, leaves"),
    "is none": (r"(?<!there )(is|are) none", "is not a ..."),
    "is over": ("(is|are) over", "has ended"),
    "is to be": ("(is|are|was|were) to be", "must be"),
    "lies": ("lies?|lay|lying", "is stored"),
    "meanwhile": ("meanwhile", "in the meantime, or nothing"),
    "nobody": ("nobody|somebody", "no other, another"),
    "of its own": ("of (its|their|his) own", "separate"),
    "shall": ("shall", "must, will"),
    "so many": ("so (many|long)", "this many, while"),
    "tell": ("tells?|told|telling", "report, notify, say"),
    "whoever": ("whoever", "the caller, the reader"),
}
PRODUCT = ("common", "hashing", "fs", "gpu", "sparse", "tools", "python",
           "include")
C = re.compile(r'("(?:[^"\\\n]|\\.)*")|(/\*(?:.|\n)*?\*/|//[^\n]*)')


def files(*patterns):
    return subprocess.run(["git", "-C", TOP, "ls-files", *patterns],
                          check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split()


def parts_of_c(text):
    """(its strings, all else)"""
    text, strings = re.sub(r"(?m)^#include .*$", "", text), []

    def take(match):
        if match[1]:
            strings.append(match[1])
            return '""'
        return match[0]
    rest = C.sub(take, text)
    return "\n".join(strings), rest


def parts_of_python(text):
    """The same; a string that is a statement is a comment."""
    strings, rest, fresh = [], [], True
    for kind, word, *_ in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind == tokenize.STRING and not fresh:
            strings.append(word)
        else:
            rest.append(word)
        if kind not in (tokenize.COMMENT, tokenize.NL):
            fresh = kind in (tokenize.NEWLINE, tokenize.INDENT,
                             tokenize.DEDENT)
    return "\n".join(strings), " ".join(rest)


def areas():
    """(area, file, text)"""
    for name in files("man", "doc/*.md", "README.md", "CONTRIBUTING.md",
                      "SECURITY.md", "python/README.md"):
        if not name.endswith("Makefile.inc"):
            yield "documents", name, read(name)
    for name in files(*PRODUCT):
        if name.endswith((".c", ".h", ".cu", ".cuh")):
            parts = parts_of_c(read(name))
        elif name.endswith(".py"):
            parts = parts_of_python(read(name))
        else:
            continue
        yield "messages", name, parts[0]
        yield "sources", name, parts[1].replace("_", " ")


def read(name):
    with open(f"{TOP}/{name}", encoding="utf-8") as file:
        return file.read()


def measure():
    found = dict.fromkeys(
        (f"{area}: {word}" for area in ("documents", "messages", "sources")
         for word in WORDS), 0)
    for area, _, text in areas():
        for word, (pattern, _) in WORDS.items():
            found[f"{area}: {word}"] += len(re.findall(
                rf"(?i)\b({pattern})\b", text))
    return found


def show(words):
    for area, name, text in areas():
        for word in words:
            for line in text.split("\n"):
                if re.search(rf"(?i)\b({WORDS[word][0]})\b", line):
                    print(f"{area}: {name}: {line.strip()}")


def main():
    found = measure()
    if "--print" in sys.argv:
        for name, number in found.items():
            print(f"{name}: {number}")
        return 0
    if sys.argv[2:]:
        return show(sys.argv[2:])
    allowed = dict(re.findall(r"(?m)^([a-z ]+: [a-z ]+): (\d+)",
                              read("tests/props/words.txt")))
    failed = 0
    for name, number in found.items():
        if number > int(allowed.get(name, 0)):
            word = name.split(": ")[1]
            print(f"FAIL: {name}: {number}, and {allowed.get(name, 0)} are "
                  f"allowed; better: {WORDS[word][1]}")
            failed = 1
        elif number < int(allowed.get(name, 0)):
            print(f"{name}: {number}: words.txt can be lowered")
    return failed


if __name__ == "__main__":
    sys.exit(main())
