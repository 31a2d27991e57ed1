#!/usr/bin/env python3
"""Makes small wrong versions of the CUDA rows on a machine with a GPU, and asks the kernel evidence about each.

usage: tools/mutate_cuda_rows.py BUILD [--count N] [--seed S] [--jobs N] [--seconds N] [--json FILE] [ROW ...]

A row is `attention/cuda_split`; none named: all. A mutant is one change of one place: an operator turned, a whole number
one larger, a barrier left out. Places are found by the text alone, so some mutants do not compile; they are counted. Each
is compiled by the command of its file, linked into an assay of its own, and proven: `assay prove MODEL --device cuda --op
OP --row ROW`, with models/pocket or, for kernels that it does not reach, dummy weights of a large model's shapes. Killed:
the row failed. Survived: it passed. A row that hangs or crashes has failed. Prints a table; FILE gets every mutant. --seconds: none begins later.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import random
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Row -> its sources.
FILES = {
    "attention/cuda_prefill": ["attention_cuda_prefill"], "attention/cuda_split": ["attention_cuda_split"],
    "conv_gates/cuda_head": ["conv_gates_cuda_head"], "embed/cuda_gather": ["embed_cuda_gather"],
    "experts/cuda_grouped": ["experts_cuda_grouped"], "gated_delta/cuda_chunk": ["gated_delta_cuda_chunk"],
    "gated_delta/cuda_recurrent": ["gated_delta_cuda_recurrent"], "linear/cublaslt": ["linear_cublaslt"],
    "linear/cuda_gemm": ["linear_cuda_gemm"], "linear/cuda_gemv": ["linear_cuda_gemv"],
    "linear/cuda_wide": ["linear_cuda_wide"], "qk_norm_rope/cuda_warp": ["qk_norm_rope_cuda_warp"],
    "rms_norm/cuda_block": ["rms_norm_cuda_block"], "router/cuda_tile": ["router_cuda_tile"],
    "sample/cuda_parts": ["sample_cuda_parts"], "silu_mul/cuda_elementwise": ["silu_mul_cuda_elementwise"],
}
POCKET = ["models/pocket"]
LARGE = ["models/configs/qwen3.5-35b-a3b.json", "--load-format", "dummy", "--dummy-layers", "1"]
# Kernels that another row runs, and those that only matrices of a large model reach.
PROVEN_AS = {"linear/cuda_wide": ("linear/cuda_gemv", LARGE)}
# clang-format puts binary operators between blanks, and leaves none around the brackets of templates.
CHANGES = [(r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "), (r" / ", " * "), (r" % ", " / "), (r" < ", " <= "),
           (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "), (r" && ", " || "),
           (r" \|\| ", " && "), (r" \+= ", " -= "), (r" \*= ", " += "), (r" & ", " | "), (r" \^ ", " | "),
           (r" << ", " >> "), (r" >> ", " << "), (r"\b__syncthreads\(\);", ";"), (r"\b__syncwarp\(\);", ";"),
           (r"(?<![\w.])(\d+)(?=[;,)\]: ])", None), (r"\bfmaxf\(", "fminf("), (r"(?<=\()!", "")]
# Lines without arithmetic of the row's own: comments, text, what the compiler alone reads, how launches overlap.
SKIPPED = re.compile(r"^\s*(//|#|static_assert|template|namespace|using|asm)|__launch_bounds__|\"|operator|Refusal|refuse|unroll|overlap")


def places(text):
    """(offset, end, replacement, line number) of every mutant of a source."""
    found, offset = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        code = line.split("//")[0]
        if not SKIPPED.search(line):
            for pattern, new in CHANGES:
                for match in re.finditer(pattern, code):
                    changed = str(int(match[1]) + 1) if new is None else new
                    found.append((offset + match.start(), offset + match.end(), changed, number))
        offset += len(line) + 1
    return found


class Workshop:
    def __init__(self, build):
        self.build = build.resolve()
        listed = subprocess.run(["ninja", "-C", self.build, "-t", "compdb"], capture_output=True, text=True, check=True)
        self.compile = {pathlib.Path(entry["file"]).stem: shlex.split(entry["command"])
                        for entry in json.loads(listed.stdout)
                        if entry["file"].endswith(".cu") and "assay_ops.dir" in entry["command"]}
        link = subprocess.run(["ninja", "-C", self.build, "-t", "commands", "assay"], capture_output=True, text=True, check=True)
        self.link = shlex.split(link.stdout.strip().split("\n")[-1].replace(": && ", "").replace(" && :", ""))

    def try_mutant(self, mutant, deadline):
        if time.time() > deadline:
            return {**mutant, "verdict": "not begun"}
        folder = self.build / "cuda_mutants" / f"{mutant['number']}"
        folder.mkdir(parents=True, exist_ok=True)
        source = ROOT / mutant["file"]
        text = source.read_text()
        begin, end = mutant.pop("begin"), mutant.pop("end")
        changed = folder / source.name
        changed.write_text(text[:begin] + mutant["new"] + text[end:])
        built, program = folder / "row.o", folder / "assay"
        words = list(self.compile[source.stem])
        words[words.index("-o") + 1] = str(built)
        words[words.index("-MF") + 1] = str(folder / "row.d")
        words = [str(changed) if word.endswith(source.name) else word for word in words]
        if subprocess.run([*words, "-w", f"-I{source.parent}"], capture_output=True, cwd=self.build).returncode != 0:
            return {**mutant, "verdict": "not compiled"}
        words = list(self.link)
        at = words.index("-o")
        words[at + 1] = str(program)
        words[at:at] = [str(built)]  # before the libraries: its symbols are taken
        linked = subprocess.run(words, capture_output=True, text=True, cwd=self.build)
        if linked.returncode != 0:
            sys.exit(linked.stderr[:3000])
        verdict = self.prove(program, mutant["row"])
        program.unlink()
        return {**mutant, **verdict}

    def prove(self, program, row):
        proven_as, model = PROVEN_AS.get(row, (row, POCKET))
        op, name = proven_as.split("/")
        done = subprocess.run([program, "prove", *model, "--device", "cuda", "--no-receipt", "--op", op, "--row", name,
                               "--row-timeout-ms", "20000", "--json"], capture_output=True, text=True, cwd=ROOT)
        try:
            verdicts = json.loads(done.stdout)["verdicts"]
        except (json.JSONDecodeError, KeyError):
            return {"verdict": "killed", "by": "contact", "where": done.stderr[-200:]}
        failed = [verdict for verdict in verdicts if verdict["verdict"] == "failed"]
        if not failed:
            return {"verdict": "survived" if done.returncode == 0 else f"exit code {done.returncode}"}
        return {"verdict": "killed", "by": failed[0]["reason"].split(":")[0], "where": failed[0]["reason"][:200]}


def drawn(row, count, seed):
    mutants = []
    for stem in FILES[row]:
        file = f"src/ops/{row.split('/')[0]}/{stem}.cu"
        text = (ROOT / file).read_text()
        lines = text.split("\n")
        for begin, end, new, line in places(text):
            mutants.append({"row": row, "file": file, "line": line, "code": lines[line - 1].strip(), "begin": begin,
                            "end": end, "old": text[begin:end], "new": new})
    random.Random(seed).shuffle(mutants)
    return mutants[:count]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--count", type=int, default=12, help="mutants a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=86400)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_intermixed_args()
    for row in arguments.rows:
        if row not in FILES:
            sys.exit(f"{row}: not one of {', '.join(FILES)}")
    chosen = arguments.rows or list(FILES)
    workshop, deadline = Workshop(arguments.build), time.time() + arguments.seconds
    healthy = {row: workshop.prove(workshop.build / "bin/assay", row) for row in chosen}
    wrong = {row: verdict for row, verdict in healthy.items() if verdict["verdict"] != "survived"}
    if wrong:
        sys.exit(f"rows as they are fail: {wrong}")
    by_row = [drawn(row, arguments.count, arguments.seed) for row in chosen]
    # One of each row after the other, so that a time limit leaves some of all.
    mutants = [row[i] for i in range(arguments.count) for row in by_row if i < len(row)]
    for number, mutant in enumerate(mutants):
        mutant["number"] = number
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = []
        for result in pool.map(lambda mutant: workshop.try_mutant(mutant, deadline), mutants):
            results.append(result)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print("| row | mutants | not compiled | killed | by | survived |\n|---|---|---|---|---|---|")
    for row in chosen:
        mine = [mutant for mutant in results if mutant["row"] == row and mutant["verdict"] != "not begun"]
        count = collections.Counter(mutant["verdict"] for mutant in mine)
        by = collections.Counter(mutant["by"] for mutant in mine if mutant["verdict"] == "killed")
        said = ", ".join(f"{kind} {number}" for kind, number in by.most_common())
        print(f"| {row} | {len(mine)} | {count['not compiled']} | {count['killed']} | {said} | "
              f"{len(mine) - count['not compiled'] - count['killed']} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
