#!/usr/bin/env python3
"""Makes small wrong versions of a row's source, and asks the kernel evidence about each: the proof must notice.

usage: tools/mutate_rows.py --build BUILD_DIR [--count N] [--seed S] [--list] src/ops/linear/linear_cpu_portable.cc ...

A mutant is one change of one place: an index or bound off by one, a comparison turned, a sum turned into a difference, a
minimum into a maximum, a factor left out, a zero into a one. Each is compiled with the flags of its target, linked in front
of the library into the kernel tests of src/proof, and run with a time limit. Killed: a test failed, the program crashed or
hung. Not compiled: no mutant. What is left survived; survivors are printed with their lines and must be explained, as
equivalent (the line changes speed only, or a case that cannot happen) or as a gap of the proof.
"""
import argparse
import json
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile

RULES = [  # name, pattern, replacement
    ("+1 dropped", r" \+ 1\b", ""),
    ("-1 dropped", r" - 1\b", ""),
    ("< to <=", r"(?<=[\w\)]) < (?=[\w\(])", " <= "),
    ("<= to <", r" <= ", " < "),
    ("+ to -", r"(?<=[\w\)\]]) \+ (?=[\w\(])", " - "),
    ("- to +", r"(?<=[\w\)\]]) - (?=[\w\(])", " + "),
    ("+= to =", r" \+= ", " = "),
    ("* to +", r"(?<=[\w\)\]]) \* (?=[\w\(])", " + "),
    ("/ to *", r"(?<=[\w\)\]]) / (?=[\w\(])", " * "),
    ("min to max", r"std::min\b", "std::max"),
    ("max to min", r"std::max\b", "std::min"),
    ("0 to 1", r"= 0;", "= 1;"),
    ("0.0f to 1.0f", r"\b0\.0f\b", "1.0f"),
    ("1.0f to 2.0f", r"\b1\.0f\b", "2.0f"),
    ("== to !=", r" == ", " != "),
    ("&& to ||", r" && ", " || "),
    ("increment by two", r"\+\+(\w+)\)", r"\1 += 2)"),
    ("scale left out", r" \* \w*scale\w*\b", ""),
]
SKIP = re.compile(r"^\s*(//|#|CHECK|using |namespace |template|static_assert|\.name|const Impl|constinit|return fmt)|#include|fmt::format|CHECK\(")


def mutants(text):
    """(line number, rule, new text) of every place where a rule fits."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.startswith("namespace {")), 0)
    for number, line in enumerate(lines):
        if number < start or SKIP.search(line):
            continue
        code = line.split("//")[0]
        for name, pattern, replacement in RULES:
            for match in re.finditer(pattern, code):
                changed = code[:match.start()] + match.expand(replacement) + code[match.end():]
                yield number + 1, name, "\n".join(lines[:number] + [changed] + lines[number + 1:])


def compile_command(build, source):
    database = subprocess.run(["ninja", "-C", build, "-t", "compdb"], capture_output=True, text=True, check=True).stdout
    for entry in json.loads(database):
        if pathlib.Path(entry["file"]).resolve() == source.resolve() and " -c " in entry["command"]:
            return shlex.split(entry["command"])
    sys.exit(f"{source}: not compiled in {build}")


def link_command(build):
    """The command that links proof_test."""
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", "proof_test"], capture_output=True, text=True, check=True)
    line = commands.stdout.strip().split("\n")[-1]
    return shlex.split(line.replace(": && ", "").replace(" && :", ""))


def with_output(command, source, new_source, output):
    replaced = []
    for word in command:
        word = str(new_source) if word == str(source) or word.endswith(source.as_posix()) else word
        replaced.append(word)
    replaced[replaced.index("-o") + 1] = str(output)
    for flag in ("-MF", "-MT"):
        if flag in replaced:
            replaced[replaced.index(flag) + 1] = str(output) + flag
    return replaced


def verdict(build, compile_words, link_words, source, text, folder, timeout):
    mutant, obj, program = folder / source.name, folder / "mutant.o", folder / "mutant_test"
    mutant.write_text(text)
    done = subprocess.run(with_output(compile_words, source, mutant, obj), cwd=build, capture_output=True)
    if done.returncode != 0:
        return "not compiled"
    words = list(link_words)
    words[words.index("-o") + 1] = str(program)
    words.insert(words.index("-o"), str(obj))  # in front of the library: its symbols are taken
    done = subprocess.run(words, cwd=build, capture_output=True, text=True)
    if done.returncode != 0:
        return "not linked"
    op = source.parent.name
    try:
        done = subprocess.run([str(program), "--gtest_filter=Kernels*"], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "killed: hung"
    if done.returncode < 0:
        return "killed: crashed"
    if done.returncode == 0:
        return "SURVIVED"
    kind = re.search(rf"{op} .*?: (identity|sampled|projection|guards|repeats|order)", done.stdout)
    return f"killed: {kind.group(1) if kind else 'a test failed'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--count", type=int, default=200, help="mutants a file, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    parser.add_argument("sources", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    survivors = 0
    for source in arguments.sources:
        text = source.read_text()
        chosen = list(mutants(text))
        random.Random(arguments.seed).shuffle(chosen)
        chosen = sorted(chosen[:arguments.count], key=lambda mutant: mutant[0])
        compile_words = None if arguments.list else compile_command(arguments.build, source)
        link_words = None if arguments.list else link_command(arguments.build)
        counts = {}
        for number, name, changed in chosen:
            line = changed.split("\n")[number - 1].strip()
            result = "listed"
            if not arguments.list:
                with tempfile.TemporaryDirectory() as folder:
                    result = verdict(arguments.build, compile_words, link_words, source, changed, pathlib.Path(folder),
                                     arguments.timeout)
            counts[result] = counts.get(result, 0) + 1
            survivors += result == "SURVIVED"
            print(f"{source}:{number}: {name}: {result}: {line}", flush=True)
        print(f"{source}: " + ", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
