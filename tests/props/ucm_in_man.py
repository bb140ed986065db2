#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ucm(1) and ucm COMMAND --help say the same of command lines.

--help is printed from the commands' tables. Each form in its usage stands in the
SYNOPSIS, and nothing else does. A section whose title is names of commands
describes options of all of them, with the same letter and value; every option
is in such a section or among the common ones, and every common one is an option
of some command.
"""
import re
import subprocess
import sys

COMMON = "Common options"
OPTION = re.compile(r"  (?:    |(-.), )(--[a-z0-9-]+)(?: (\S+))?(?:  |$)")
FONTS = {"B", "I", "BR", "RB", "BI", "IB", "RI", "IR"}
failed = False


def fail(text):
    global failed
    failed = True
    print("FAIL:", text)


def help_of(ucm, *command):
    return subprocess.run([ucm, *command, "--help"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.splitlines()


def tag(letter, name, value):
    return ", ".join(filter(None, [letter, name])) + (
        f" {value}" if value else "")


def table_of(ucm, *command):
    """Its forms and its options; and the words of forms with others."""
    lines = help_of(ucm, *command)
    forms = {line[7:].replace("[options]", "[OPTIONS]")
             for line in lines[:lines.index("")]}
    options = {tag(*match.groups())
               for match in map(OPTION.match, lines) if match}
    words = {word for form in forms
             for word in re.findall(r"\[OPTIONS\] (--[a-z]+|[a-z]+)", form)}
    return forms, options, words


def tables(ucm):
    """Of each command, and each form of it, its forms and its options."""
    found = {}
    for line in help_of(ucm):
        command = re.match(r"  ([a-z]+)  ", line)
        if not command:
            continue
        verb = command[1]
        *found[verb], words = table_of(ucm, verb)
        if any(line.startswith("Options of each form:")
               for line in help_of(ucm, verb)):
            for word in words:
                *found[f"{verb} {word}"], _ = table_of(ucm, verb, word)
    return found


def plain(line):
    """A line of roff without its marks."""
    macro, _, rest = line[1:].partition(" ")
    rest = re.sub(r"\\f[BIRP]|\\:", "", rest if line[0] == "." else line)
    words = rest.replace("\\-", "-").replace("\\ ", "\0")
    if line[0] == "." and macro in FONTS:
        words = [a or b for a, b in re.findall(r'"([^"]*)"|(\S+)', words)]
        words = (" " if len(macro) == 1 else "").join(words)
    return words.replace("\0", " ")


def sections(man):
    """The lines of each section, by its title."""
    found, lines = {}, []
    with open(man, encoding="utf-8") as file:
        for line in file.read().splitlines():
            title = re.match(r'\.S[SH] "?(.*?)"?$', line)
            if title:
                lines = found[title[1].replace("\\-", "-")] = []
            elif line and not line.startswith('.\\"'):
                lines.append(line)
    return found


def synopsis(lines):
    """Its forms: "ucm pin|warm ID" is two."""
    found = set()
    for form in "\n".join(lines).split("\n.br\n"):
        _, commands, rest = (" ".join(map(plain, form.split("\n")))
                             + " ").split(" ", 2)
        found |= {f"ucm {command} {rest}".rstrip()
                  for command in commands.split("|")}
    return found


def described(lines):
    """The options that have a paragraph."""
    tags = [plain(lines[i + 1]) for i, line in enumerate(lines)
            if re.match(r"\.T[PQ]", line)]
    return {tag for tag in tags if tag.startswith("-")}


def commands_of(title, commands):
    """Those that a section is about; none: it is about something else."""
    names = set(re.split(r",? and |, ", title))
    return names if names <= commands else set()


def main(ucm, man):
    table, page = tables(ucm), sections(man)
    if len(table) < 20 or min(len(o) for _, o in table.values()) < 2:
        fail(f"found only {table}")
    want = set().union(*(forms for forms, _ in table.values()))
    got = synopsis(page["SYNOPSIS"]) - {"ucm --help | --version",
                                        "ucm COMMAND --help"}
    for form in sorted(want ^ got):
        fail(f"only in {'--help' if form in want else 'the SYNOPSIS'}: {form}")

    common = described(page[COMMON])
    missing = {command: options - common
               for command, (_, options) in table.items()}
    for title, lines in page.items():
        options = described(lines)
        commands = commands_of(title, set(table))
        if options and not commands and title != COMMON:
            fail(f"section {title} has options and is of no command")
        for command in commands:
            for form in missing:
                if form.split()[0] == command or form == command:
                    missing[form] = missing[form] - options
            for option in sorted(options - table[command][1]):
                fail(f"ucm(1) describes {option}, which ucm {command} "
                     "does not have")
    for command, options in missing.items():
        for option in sorted(options):
            fail(f"ucm(1) does not describe {option} of ucm {command}")
    for option in common - set().union(*(o for _, o in table.values())):
        fail(f"no command has the common option {option}")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
