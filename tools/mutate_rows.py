#!/usr/bin/env python3
"""Makes small wrong versions of the fast rows, and asks the kernel evidence about each: the proof must notice.

  tools/mutate_rows.py make  --build BUILD [--count N] [--seed S] [ROW ...]    rewrite, compile, link
  tools/mutate_rows.py run   --build BUILD [--jobs N] [--again] [ROW ...]      prove those not proven yet
  tools/mutate_rows.py table --build BUILD [--json FILE] [ROW ...]             what was killed by what, and the survivors

A row is `linear/cpu_avx2`; none named: all. A mutant is one change of one place (tools/mutant_sites.py): an index or bound
off by one, an operation or comparison turned, a statement, factor or condition left out, a constant changed, arguments
exchanged, an intrinsic replaced. All mutants of a row are compiled at once: which one is active is a number read at run
time (tests/faults/mutant.h). Each is proven in a process of its own with a time limit (tests/faults/prove_mutants.cc).

Places that the compiler wants to know the value of cannot be rewritten; they are found by its errors and counted. Of the
rest `--count` mutants are drawn. Survivors must be explained in bench/results/mutant_survivors.json, as equivalent (the
line changes speed only, or a case that cannot happen) or as a gap of the proof.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import shlex
import subprocess
import sys

from mutant_sites import find_sites, rewrite

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOT = {
    "cpu_avx2": {
        "ops/dot_kernels_avx2.cc": [
            "ops/dot16_kernels.h", "ops/bf16_kernels.h", "ops/fixed_kernels.h", "ops/lane_kernels.h",
            "ops/token_kernels.h", "backend/cpu/simd_avx2.h"
        ]
    },
    "cpu_avx512": {"ops/dot_kernels_avx512.cc": [
            "ops/dot16_kernels.h", "ops/fixed_kernels.h", "ops/token_kernels.h", "backend/cpu/simd_avx512.h"
        ]},
    "cpu_avx512_bf16": {"ops/dot_kernels_avx512_bf16.cc": []},
}
PORTABLE_DOT = {"ops/portable_dot.cc": ["ops/portable_dot.h"]}


def rows():
    """What is mutated for each row: translation units, each with headers of the row's own."""
    table = {}
    for op in ("linear", "experts", "router"):
        choice = ["ops/router/router_cpu_choice.h"] if op == "router" else []
        table[f"{op}/cpu_portable"] = {f"ops/{op}/{op}_cpu_portable.cc": choice, **PORTABLE_DOT}
        for row, kernel in DOT.items():
            table[f"{op}/{row}"] = {f"ops/{op}/{op}_{row}.cc": [f"ops/{op}/{op}_cpu_dot.h", *choice], **kernel,
                                    "ops/cpu_dot.cc": []}
        if op != "router":
            for isa in ("avx2", "avx512"):
                table[f"{op}/cpu_{isa}_phased"] = table[f"{op}/cpu_{isa}"]
    for op, shared, kernels in (("attention", "attention_cpu_tiles.h", "attention_kernels"),
                                ("gated_delta", "gated_delta_cpu_strips.h", "delta_kernels")):
        table[f"{op}/cpu_portable"] = {f"ops/{op}/{op}_cpu_portable.cc": [f"ops/{op}/{shared}"]}
        for isa in ("avx2", "avx512"):
            table[f"{op}/cpu_{isa}"] = {f"ops/{op}/{op}_cpu_{isa}.cc": [f"ops/{op}/{shared}"],
                                        f"ops/{op}/{kernels}_{isa}.cc": [f"ops/{op}/{kernels}.h",
                                                                         f"backend/cpu/simd_{isa}.h"]}
    for op in ("conv_gates", "qk_norm_rope", "rms_norm", "silu_mul"):
        for row in ("portable", "avx2", "avx512"):
            table[f"{op}/cpu_{row}"] = {f"ops/{op}/{op}_cpu_{row}.cc": [f"ops/{op}/{op}_cpu_vector.h"],
                                        f"ops/vector_kernels_{row}.cc": ["ops/vector_kernels.h",
                                                                         f"backend/cpu/simd_{row}.h"]}
    for op in ("sample", "embed"):
        table[f"{op}/cpu_portable"] = {f"ops/{op}/{op}_cpu_portable.cc": []}
    return {row: {unit: headers for unit, headers in units.items() if (ROOT / "src" / unit).exists()}
            for row, units in table.items()}


class Row:
    def __init__(self, name, units, build):
        self.name = name
        self.units = units
        self.build = pathlib.Path(build).resolve()
        self.folder = self.build / "mutants" / name.replace("/", "_")

    def program(self):
        return self.folder / "prove_mutants"

    def commands(self):
        """The compile command of each unit."""
        database = subprocess.run(["ninja", "-C", self.build, "-t", "compdb"], capture_output=True, text=True, check=True)
        wanted = {str(ROOT / "src" / unit): unit for unit in self.units}
        found = {}
        for entry in json.loads(database.stdout):
            unit = wanted.get(str((self.build / entry["file"]).resolve()))
            if unit is not None and " -c " in entry["command"]:
                found[unit] = shlex.split(entry["command"])
        missing = set(self.units) - set(found)
        if missing:
            sys.exit(f"not compiled in {self.build}: {', '.join(sorted(missing))}")
        return found

    def sites(self, commands):
        sites = {}
        for unit, headers in self.units.items():
            wanted = [ROOT / "src" / path for path in (unit, *headers) if (ROOT / "src" / path).exists()]
            for site in find_sites(commands[unit], ROOT / "src" / unit, wanted):
                sites.setdefault((site.path, *site.order()), site)
        return list(sites.values())

    def make(self, count, seed):
        commands = self.commands()
        sites = self.sites(commands)
        number = 0
        for site in sites:
            site.first = number
            number += len(site.names)
        # As many sites as hold somewhat more than `count` mutants, so that compiling stays short.
        random.Random(seed).shuffle(sites)
        chosen, held = [], 0
        for site in sites:
            if held < count * 1.15:
                chosen.append(site)
                held += len(site.names)
        refused = self.compile(commands, chosen)
        kept = [site for site in chosen if site not in refused]
        self.link()
        mutants = [{"mutant": site.first + i, "change": change, **self.place(site)}
                   for site in kept for i, change in enumerate(site.names)][:count]
        record = {"row": self.name, "places": len(sites), "mutants_possible": number,
                  "not_compiled": sum(len(site.names) for site in refused), "mutants": mutants}
        (self.folder / "mutants.json").write_text(json.dumps(record, indent=1))
        (self.folder / "results.jsonl").unlink(missing_ok=True)
        print(f"{self.name}: {number} mutants in {len(sites)} places; {len(mutants)} drawn, "
              f"{record['not_compiled']} not compiled", flush=True)

    def place(self, site):
        text = pathlib.Path(site.path).read_bytes()
        before = text[:site.begin]
        number = before.count(b"\n")
        return {"file": str(pathlib.Path(site.path).relative_to(ROOT)), "line": number + 1,
                "column": site.begin - (before.rfind(b"\n") + 1) + 1,
                "code": text.split(b"\n")[number].decode().strip(),
                "text": " ".join(text[site.begin:site.end].decode().split())[:80]}

    def compile(self, commands, sites):
        """Rewrites and compiles; returns the sites that had to be left as they were."""
        refused = []
        lines = self.write(sites)
        stale = set(self.units)
        while stale:
            wrong = []
            for unit in stale:
                wrong += self.compile_unit(commands[unit], unit, lines)
            refused += [site for site in wrong if site not in refused]
            before = {unit: self.texts(unit) for unit in self.units}
            lines = self.write([site for site in sites if site not in refused])
            stale = {unit for unit in self.units if self.texts(unit) != before[unit]}
        return refused

    def texts(self, unit):
        paths = [self.folder / "src" / path for path in (unit, *self.units[unit])]
        return [path.read_text() for path in paths if path.exists()]

    def write(self, sites):
        """The rewritten files; returns the site of each line that begins with one."""
        lines = {}
        for path in {path for unit, headers in self.units.items() for path in (unit, *headers)}:
            source = ROOT / "src" / path
            if not source.exists():
                continue
            target = self.folder / "src" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            text, placed = rewrite(source.read_bytes(), [site for site in sites if site.path == str(source)])
            target.write_text(text)
            lines.update({(str(target), line): site for line, site in placed.items()})
            left_out = [site for site in sites if site.path == str(source) and site not in placed.values()]
            for site in left_out:
                sites.remove(site)
        return lines

    def object(self, unit):
        return self.folder / (unit.replace("/", "_") + ".o")

    def compile_unit(self, words, unit, lines):
        """Sites that the compiler's errors name; none: it is compiled."""
        kept, skip = [], False
        for word in words:
            if skip:
                skip = False
            elif word in ("-o", "-MF", "-MT", "-include"):
                skip = True
            elif word not in ("-c", "-MD", "-O3", "-Wall", "-Wextra", "-Winvalid-pch") and not word.endswith(".cc"):
                kept.append(word)
        first = next(i for i, word in enumerate(kept) if word.startswith("-I"))
        command = [*kept[:first], f"-I{self.folder / 'src'}", *kept[first:], "-O1", "-w", "-fmax-errors=0",
                   "-fno-diagnostics-show-caret", "-fdiagnostics-color=never", "-include",
                   str(ROOT / "tests/faults/mutant.h"), "-c", "-o", str(self.object(unit)),
                   str(self.folder / "src" / unit)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.build)
        wrong = []
        for path, line in re.findall(r"^(\S+?):(\d+):", done.stderr, re.MULTILINE) if done.returncode != 0 else []:
            site = lines.get((str((self.build / path).resolve()), int(line)))
            if site is not None and site not in wrong:
                wrong.append(site)
        if done.returncode != 0 and not wrong:
            sys.exit(f"{self.name}: errors that no place explains:\n{done.stderr[:3000]}")
        return wrong

    def link(self):
        listed = subprocess.run(["ninja", "-C", self.build, "-t", "commands", "prove_mutants"], capture_output=True,
                                text=True, check=True).stdout.strip().split("\n")[-1]
        words = shlex.split(listed.replace(": && ", "").replace(" && :", ""))
        at = words.index("-o")
        words[at + 1] = str(self.program())
        words[at:at] = [str(self.object(unit)) for unit in self.units]  # before the libraries: their symbols are taken
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.build)
        if done.returncode != 0:
            sys.exit(f"{self.name}: {done.stderr[:3000]}")

    def run(self, jobs, seconds, again):
        record = json.loads((self.folder / "mutants.json").read_text())
        done = self.verdicts()
        if again:  # with the evidence of this build
            done = {mutant: verdict for mutant, verdict in done.items() if verdict["verdict"] in ("killed", "none")}
            self.link()
        left = [mutant["mutant"] for mutant in record["mutants"] if mutant["mutant"] not in done]
        if not left:
            return
        command = [str(self.program()), *self.name.split("/"), "--jobs", str(jobs), "--seconds", str(seconds)]
        with open(self.folder / "results.jsonl", "a") as out:
            ran = subprocess.run(command, input="\n".join(map(str, left)), text=True, stdout=out)
        if ran.returncode != 0:
            print(f"{self.name}: not run", flush=True)

    def verdicts(self):
        path = self.folder / "results.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return {verdict["mutant"]: verdict for verdict in map(json.loads, lines)}

    def results(self):
        """Each mutant with its verdict; None where the row was not run. Functions of src/backend that the row does not
        use are not its own."""
        verdicts = self.verdicts()
        if not verdicts:
            return None
        record = json.loads((self.folder / "mutants.json").read_text())
        if verdicts[-1]["verdict"] != "survived":
            sys.exit(f"{self.name}: the row as it is fails: {verdicts[-1]}")
        mutants = [{**mutant, **verdicts[mutant["mutant"]]} for mutant in record["mutants"]
                   if mutant["mutant"] in verdicts]
        record["mutants"] = [mutant for mutant in mutants if mutant["verdict"] != "none" and not
                             (mutant["verdict"] == "unreached" and mutant["file"].startswith("src/backend/"))]
        return record


def explanation(reasons, row, mutant):
    """The reason given for a survivor of a row: of this code, change and verdict."""
    for entry in reasons:
        if (mutant["file"] == entry["file"] and entry["code"] in mutant["code"] and
                mutant["change"] in entry.get("changes", [mutant["change"]]) and
                entry.get("text", mutant["text"]) == mutant["text"] and
                entry.get("verdict", mutant["verdict"]) == mutant["verdict"] and
                row in entry.get("rows", [row])):
            return entry["reason"]
    return None


def table(chosen, reasons_path, json_path):
    reasons = json.loads(reasons_path.read_text()) if reasons_path.exists() else []
    kinds, listed, unexplained = collections.Counter(), [], 0
    print("| row | places | mutants | not compiled | killed | by | survived, explained | survived, open |")
    print("|---|---|---|---|---|---|---|---|")
    records = []
    for row in chosen:
        record = row.results()
        if record is None:
            continue
        by = collections.Counter(mutant["by"] for mutant in record["mutants"] if mutant["verdict"] == "killed")
        kinds += by
        survivors = [mutant for mutant in record["mutants"] if mutant["verdict"] != "killed"]
        for mutant in survivors:
            mutant["reason"] = explanation(reasons, row.name, mutant)
        kept = ("file", "line", "code", "text", "change", "verdict", "reason")
        records.append({"row": row.name, "places": record["places"], "not_compiled": record["not_compiled"],
                        "mutants": len(record["mutants"]), "killed": dict(by.most_common()),
                        "survived": [{key: mutant[key] for key in kept} for mutant in survivors]})
        open_ones = [mutant for mutant in survivors if mutant["reason"] is None]
        unexplained += len(open_ones)
        listed += [(row.name, mutant) for mutant in survivors]
        said = ", ".join(f"{kind} {count}" for kind, count in by.most_common())
        print(f"| {row.name} | {record['places']} | {len(record['mutants'])} | {record['not_compiled']} | "
              f"{sum(by.values())} | {said} | {len(survivors) - len(open_ones)} | {len(open_ones)} |")
    print(f"\nBy kind: {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}.\n")
    groups = collections.defaultdict(list)
    for row, mutant in listed:
        groups[(mutant["file"], mutant["reason"] or "OPEN")].append((row, mutant))
    print("| file | survivors | of rows | reason |\n|---|---|---|---|")
    for (file, reason), members in sorted(groups.items()):
        places = collections.Counter(f"{m['line']}: `{m['text']}` {m['change']}" + (" (never reached)" if
                                     m["verdict"] == "unreached" else "") for _, m in members)
        names = ", ".join(sorted({row for row, _ in members}))
        listed_places = "<br>".join(places).replace("|", "\\|")
        print(f"| {file} | {listed_places} | {names} | {reason} |")
    if json_path is not None:
        json_path.write_text(json.dumps(records, indent=1) + "\n")
    return 1 if unexplained else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["make", "run", "table"])
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--build", required=True)
    parser.add_argument("--count", type=int, default=200, help="mutants a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=86400, help="begin no proof of a row after so long")
    parser.add_argument("--again", action="store_true", help="prove survivors again")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--reasons", type=pathlib.Path, default=ROOT / "bench/results/mutant_survivors.json")
    arguments = parser.parse_intermixed_args()
    known = rows()
    for name in arguments.rows:
        if name not in known:
            sys.exit(f"{name}: not one of {', '.join(known)}")
    chosen = [Row(name, known[name], arguments.build) for name in arguments.rows or known]
    if arguments.action == "table":
        return table(chosen, arguments.reasons, arguments.json)
    for row in chosen:
        if arguments.action == "make":
            row.make(arguments.count, arguments.seed)
        else:
            row.run(arguments.jobs, arguments.seconds, arguments.again)
    return 0


if __name__ == "__main__":
    sys.exit(main())
