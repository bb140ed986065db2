#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""declare.py OUT COMMAND... - the public headers as declarations of ctypes.

COMMAND preprocesses C from standard input ("gcc -E -I..."). OUT, the module
ucmfs._c, gets for Python:

    UCM_*           constants that are whole numbers, of #define and enum
    VERIFY, ...     an enum's names in order, where they count from 0
    Geometry, ...   struct ucm_geometry
    UCM, UCMSPARSE  name -> (result, arguments) of functions, those in headers
                    of libucm and those beside libucmsparse's

What points to a struct is a POINTER, but for structs that Python has as plain
bytes. What points to numbers is a void *: an address, bytes, an array, or what
byref() gives.

The headers' own subset of C is understood. Anything else is an error, but for
structs with unions, which Python does without.
"""

import operator
import os
import re
import subprocess
import sys

TABLES = {
    "UCM": "block blocks client control error hash index load log serve "
           "shards space".split(),
    "UCMSPARSE": "position repr repr_load retrieve sparse "
                 "sparse_cuda".split(),
}
BYTES = ("ucm_id", "ucm_move", "ucm_span")
NUMBERS = {name: f"c_{name[:-2]}" for name in (
    "int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t "
    "uint64_t").split()}
NUMBERS.update({"unsigned": "c_uint", "size_t": "c_size_t",
                "_Bool": "c_bool", "int": "c_int", "float": "c_float",
                "double": "c_double", "char": "c_char"})
CONSTANT = re.compile(r"^\s*#\s*define\s+(UCM_\w+)\s+\S", re.M)


class Unknown(Exception):
    pass


def python_name(name):
    """ucm_loader_options -> LoaderOptions"""
    return "".join(map(str.capitalize, name.split("_")[1:]))


def split(text, separator):
    """At separators that are in no parentheses or braces."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "({") - (character in ")}")
        if character == separator and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def lines_of(command, headers):
    """The preprocessed headers alone, and then a line for each constant."""
    names = []
    for name in headers:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                               f"../include/ucm/{name}.h"),
                  encoding="utf-8") as file:
            names += CONSTANT.findall(file.read())
    source = "".join(f"#include <ucm/{name}.h>\n" for name in headers) + \
        '# 1 "constants"\n' + "".join(f'"{name}" {name}\n' for name in names)
    found = subprocess.run(command, input=source, stdout=subprocess.PIPE,
                           encoding="utf-8", check=True).stdout
    texts, where = {"constants": ""}, None
    for line in found.split("\n"):
        marker = re.match(r'#\s*\d+ "(.*?)"', line)
        if marker:
            folder, name = os.path.split(marker[1])
            where = name[:-2] if os.path.basename(folder) == "ucm" else \
                marker[1]
        elif where in (*headers, "constants"):
            texts[where] = f"{texts.get(where, '')} {line}"
    _, *parts = texts.pop("constants").split('"')
    return texts, dict(zip(parts[::2], parts[1::2]))


class Declarations:
    def __init__(self, texts, constants):
        self.constants = {}
        self.enums = {}
        self.structs = {}  # name -> [(field, declaration)]
        self.functions = {}  # header -> {name: (result, [argument])}, as in C
        self.pointers = set()  # types of pointers to functions
        for name, value in constants.items():
            try:
                self.constants[name] = self.number(value)
            except Unknown:
                pass  # no whole number: Python does without it
        for header, text in texts.items():
            self.functions[header] = {}
            for statement in split(re.sub(r"\s+", " ", text), ";"):
                self.add(header, statement)

    def number(self, text):
        text = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
        try:
            return operator.index(eval(text.strip().replace("/", "//"),
                                       {"__builtins__": {}}, self.constants))
        except (NameError, SyntaxError, TypeError):
            raise Unknown(text) from None

    def add(self, header, text):
        struct = re.fullmatch(r"struct (\w+) \{(.*)\}", text)
        enum = re.fullmatch(r"enum (\w+) \{(.*)\}", text)
        pointer = re.fullmatch(r"typedef [\w ]+\(\*(\w+)\)\(.*\)", text)
        function = re.fullmatch(r"([\w ]+[ *])(ucm_\w+)\((.*)\)", text)
        if struct and "union {" in text:
            return
        if struct:
            self.structs[struct[1]] = [field for line in split(struct[2], ";")
                                       for field in self.fields(line)]
        elif enum:
            self.add_enum(enum[1], split(enum[2], ","))
        elif pointer:
            self.pointers.add(pointer[1])
        elif function:
            self.functions[header][function[2]] = (
                function[1], [] if function[3] == "void"
                else split(function[3], ","))
        elif not re.fullmatch(r"struct \w+", text):
            raise Unknown(text)

    def fields(self, line):
        """[(name, declaration)]"""
        pointer = re.search(r"\(\*(\w+)\)", line)
        if pointer:
            return [(pointer[1], line)]
        first, *others = split(line, ",")
        base = re.match(r"(?:const |enum |struct )*\w+ ", first)
        texts = [first, *(base[0] + other for other in others)]
        return [(re.search(r"(\w+)(\[.*)?$", text)[1], text) for text in texts]

    def add_enum(self, tag, members):
        """Its constants, and its names if they count from 0. The one that is
        their number is no name."""
        value, names = -1, []
        for member in members:
            name, is_set, text = map(str.strip, member.partition("="))
            value = self.number(text) if is_set else value + 1
            self.constants[name] = value
            if value == len(names) and name not in (
                    f"{tag.upper()}S", f"{tag.upper()}_COUNT"):
                names.append(name)
        prefix = os.path.commonprefix(names).rpartition("_")[0] + "_"
        if names:
            self.enums[tag] = tuple(name[len(prefix):].lower()
                                    for name in names)

    # ---- what ctypes calls them ----

    def kind(self, text, role):
        """role: "field", "result" or "argument"."""
        if "(*" in text or text.split()[0] in self.pointers:
            return "c_void_p"
        text, *dims = re.split(r"\[|\]\[?", text.rstrip("]"))
        name = "" if role == "result" else re.search(r"\w+$", text)[0]
        words = [word for word in re.findall(
            r"\w+", text[:len(text) - len(name)])
            if word not in ("const", "struct")]
        stars = text.count("*")
        if role == "argument":
            stars, dims = stars + len(dims), []
        if words[0] in self.structs or "struct" in text.split():
            return self.struct(words[0], stars, dims, text)
        base = "c_int" if words[0] == "enum" else NUMBERS.get(words[0])
        if words == ["void"]:
            kinds = (None, "c_void_p", "POINTER(c_void_p)")
        elif not base or len(words) > 1 + (words[0] == "enum"):
            raise Unknown(text)
        elif base == "c_char":
            kinds = (self.array(base, dims), "c_char_p")
        else:
            kinds = (self.array(base, dims),
                     f"POINTER({base})" if role == "result" else
                     "c_char_p" if base == "c_uint8" and role == "field"
                     else "c_void_p")
        if stars >= len(kinds):
            raise Unknown(text)
        return kinds[stars]

    def struct(self, name, stars, dims, text):
        if name == "ucm_id" and not stars:
            return self.array("c_uint8 * UCM_ID_BYTES", dims)
        known = name in self.structs
        if stars > 2 or not stars and not known:
            raise Unknown(text)
        if stars:
            return "POINTER(c_void_p)" if stars == 2 else \
                f"POINTER({python_name(name)})" \
                if known and name not in BYTES else "c_void_p"
        return self.array(python_name(name), dims)

    def array(self, base, dims):
        for dim in reversed(dims):
            base = f"{base} * {self.number(dim)}"
        return base

    def module(self):
        yield '"""The public headers: made by declare.py."""'
        yield "from ctypes import *\n"
        for name, value in self.constants.items():
            yield f"{name} = {value}"
        for tag, names in self.enums.items():
            yield f"{tag[4:].upper()} = {names}"
        for name in self.structs:
            yield f"\n\nclass {python_name(name)}(Structure):"
            yield f'    """struct {name}"""'
        yield "\n"
        for name, fields in self.structs.items():
            kinds = ", ".join(f'("{field}", {self.kind(text, "field")})'
                              for field, text in fields)
            yield f"{python_name(name)}._fields_ = [{kinds}]"
        yield "STRUCTS = {" + ", ".join(
            f'"{name}": {python_name(name)}' for name in self.structs) + "}"
        for table, headers in TABLES.items():
            yield f"{table} = {{"
            for header in headers:
                for name, (result, arguments) in self.functions.get(
                        header, {}).items():
                    kinds = "".join(self.kind(argument, "argument") + ", "
                                    for argument in arguments)
                    yield (f'    "{name}": ({self.kind(result, "result")}, '
                           f"({kinds})),")
            yield "}"


def main(out, *command):
    try:
        lines = list(Declarations(*lines_of(
            command, sum(TABLES.values(), []))).module())
    except Unknown as error:
        sys.exit(f"declare.py: not understood: {error}")
    # whole or not at all, also where two build at once
    with open(f"{out}.{os.getpid()}", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(file.name, out)


main(*sys.argv[1:])
