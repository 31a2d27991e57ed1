#!/usr/bin/env python3
"""The ledger of what ran on a GPU: bench/results/gpu-ledger.json, machine code hash -> date, machine, what was seen.

usage: tools/gpu_ledger.py list [BUILD_DIR]             rows whose code has changed since it last ran; exits 1 if any has
       tools/gpu_ledger.py add RECORD.json [BUILD_DIR]  enters the rows of a record of gpu_rows_test --json, which ran
                                                        the programs of BUILD_DIR
Both take --cuobjdump PATH and --arch sm_90a. A row's kernels are those of the .cu files named after it.
"""
import argparse
import datetime
import json
import pathlib
import sys

import check_kernels

LEDGER = pathlib.Path(__file__).resolve().parent.parent / "bench/results/gpu-ledger.json"
# Files whose kernels another row launches.
PARTS = {"linear_cuda_wide": ["linear_cuda_gemv"],
         "device_packing_cuda": ["packing_cuda_tile", "packing_cuda_tile_and_rows", "packing_cuda_expert_tile"]}
# Rows without kernels of their own -> the rows whose kernels they launch.
USES = {"linear_cuda_phased": ["linear_cuda_gemv", "linear_cuda_gemm"],
        "linear_cublaslt": ["linear_cuda_gemv"], "router_cuda_tile": ["linear_cuda_gemv"]}


def kernels_by_file(tool, build, arch):
    """File name without .cu -> {kernel name: set of hashes}."""
    files = {}
    for path in check_kernels.objects_below(build):
        if "assay_ops.dir" not in path.parts:
            continue
        for (sm, mangled), kernel in check_kernels.kernels_of(tool, str(path)).items():
            if sm == arch:
                kernels = files.setdefault(path.name[:-len(".cu.o")], {})
                kernels.setdefault(check_kernels.base_name(mangled), set()).add(kernel["sass"])
    return files


def files_of(row):
    """The .cu files that hold the kernels of row `<op>_<row>`."""
    files = [row] + [part for part, of in PARTS.items() if row in of]
    return files + [name for used in USES.get(row, []) for name in files_of(used)]


def rows_of(record):
    """`<op>_<row>` -> what gpu_rows_test saw."""
    rows = {}
    for case in record["rows"]:
        row = rows.setdefault(f"{case['op']}_{case['row']}", {"cases": 0, "failed": 0, "worst_error_over_bound": 0.0})
        row["cases"] += 1
        row["failed"] += not case["ok"]
        row["worst_error_over_bound"] = max(row["worst_error_over_bound"], round(case["error_over_bound"] or 0, 4))
    return rows


def load():
    return json.loads(LEDGER.read_text()) if LEDGER.exists() else {}


def add(arguments, files):
    record, ledger = json.loads(pathlib.Path(arguments.record).read_text()), load()
    today = datetime.date.today().isoformat()
    for row, seen in rows_of(record).items():
        for name in files_of(row):
            for kernel, hashes in files.get(name, {}).items():
                for code in hashes:
                    entry = ledger.setdefault(code, {"kernel": f"{name}: {kernel}", "arch": arguments.arch, "rows": {}})
                    entry["date"], entry["machine"] = today, record["device"]
                    entry["rows"][row] = seen
    ordered = dict(sorted(ledger.items(), key=lambda item: (item[1]["kernel"], item[0])))
    LEDGER.write_text(json.dumps(ordered, indent=1) + "\n")
    print(f"gpu_ledger: {len(ordered)} kernels in {LEDGER}")
    return 0


def changed(files):
    ledger, found = load(), 0
    for name, kernels in sorted(files.items()):
        new = [kernel for kernel, hashes in sorted(kernels.items()) if hashes - ledger.keys()]
        if new:
            found += 1
            print(f"{name}: {', '.join(new)} did not run on a GPU as compiled now")
    print(f"gpu_ledger: {found} of {len(files)} files changed since they last ran on a GPU")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuobjdump")
    parser.add_argument("--arch", default="sm_90a")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list").add_argument("build", nargs="?", default="build/cuda")
    adding = verbs.add_parser("add")
    adding.add_argument("record")
    adding.add_argument("build", nargs="?", default="build/cuda")
    arguments = parser.parse_args()
    files = kernels_by_file(check_kernels.find_cuobjdump(arguments.cuobjdump), arguments.build, arguments.arch)
    return add(arguments, files) if arguments.verb == "add" else changed(files)


if __name__ == "__main__":
    sys.exit(main())
