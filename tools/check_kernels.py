#!/usr/bin/env python3
"""Reads the machine code of the CUDA kernels of a build: registers, shared memory, spills, and whether the tensor-core
kernels hold the instructions they are written for. Needs no GPU.

usage: tools/check_kernels.py [BUILD_DIR] [--cuobjdump PATH] [--json FILE]
Prints a table and exits 1 when a kernel spills, asks for more shared memory than sm_120 has, or lacks an instruction.
cuobjdump comes with the CUDA toolkit, or from PyPI: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

MAX_SHARED_BYTES = 101376  # of a block on sm_120
# Kernels that ask for dynamic shared memory at launch, in bytes: the larger of their shapes.
DYNAMIC_SHARED = {"linear_gemm": 83968, "linear_wide": 98304, "attention_split": 66880, "attention_prefill": 98304, "delta_matrices": 82944,
                  "delta_chunks": 98304}
# Kernel -> instructions that must be in its code.
EXPECTED = {
    "linear_gemm": ["HMMA", "LDGSTS"],
    "linear_gemv": ["HMMA", "LDG.E.128"],
    "linear_wide": ["HMMA", "LDG.E.NA.128", "LDGSTS"],
    "experts_gate_up": ["HMMA", "LDG.E.128"],
    "experts_gate_up_alone": ["HMMA", "LDG.E.128"],
    "experts_down": ["HMMA", "LDG.E.128"],
    "experts_down_alone": ["HMMA", "LDG.E.128"],
    "attention_split": ["HMMA", "LDSM", "LDGSTS"],
    "attention_prefill": ["HMMA", "LDSM", "LDGSTS"],
    "delta_matrices": ["HMMA.1688.F32.TF32", "LDS.128"],
    "delta_chunks": ["HMMA.1688.F32.TF32", "LDS.128"],
}
# Kernels that may keep an array in local memory, and why.
LOCAL_MEMORY = {"qk_norm_rope": "sinf and cosf reduce angles above 105,615 with a table in local memory"}
RESOURCE = re.compile(r"Function (\S+):\s*\n\s*(.*)")


def find_cuobjdump(given):
    for candidate in [given, shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"]:
        if candidate and os.path.exists(candidate):
            return candidate
    sys.exit("check_kernels: no cuobjdump: give --cuobjdump PATH, or pip install nvidia-cuda-cuobjdump")


def run(tool, *arguments):
    environment = dict(os.environ, PATH=os.path.dirname(tool) + os.pathsep + os.environ["PATH"])
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True, env=environment).stdout


def base_name(mangled):
    """The function's own name: the last length-prefixed word of the nested name."""
    rest, name = mangled[3:] if mangled.startswith("_ZN") else mangled[2:], mangled
    while match := re.match(r"(\d+)", rest):
        length = int(match.group(1))
        start = len(match.group(1))
        name, rest = rest[start:start + length], rest[start + length:]
    return name


def is_reference(path):
    return "_cuda_reference" in os.path.basename(path)


def by_architecture(text):
    """(sm, section) of each cubin in cuobjdump's output."""
    parts = re.split(r"^arch = (sm_\w+)$", text, flags=re.MULTILINE)
    return zip(parts[1::2], parts[2::2])


def machine_code_hash(body):
    """Of the instructions' bits, so that it does not depend on how a disassembler writes them."""
    return hashlib.sha256("".join(re.findall(r"/\* (0x[0-9a-f]{16}) \*/", body)).encode()).hexdigest()[:16]


def objects_below(build):
    objects = sorted(pathlib.Path(build).rglob("*.cu.o"))
    if not objects:
        sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: no CUDA objects below {build}: configure with -DASSAY_CUDA=ON")
    return objects


def kernels_of(tool, path):
    found = {}
    for sm, section in by_architecture(run(tool, "--dump-resource-usage", path)):
        for mangled, usage in RESOURCE.findall(section):
            numbers = {key: int(value) for key, value in re.findall(r"([A-Z]+)(?:\[\d+\])?:(\d+)", usage)}
            found[sm, mangled] = {"registers": numbers.get("REG", 0), "stack": numbers.get("STACK", 0),
                                  "local": numbers.get("LOCAL", 0), "shared": numbers.get("SHARED", 0)}
    for sm, section in by_architecture(run(tool, "--dump-sass", path)):
        for code in re.split(r"^\s*Function : ", section, flags=re.MULTILINE)[1:]:
            mangled, _, body = code.partition("\n")
            if (sm, mangled.strip()) in found:
                instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]+);", body)
                kernel = found[sm, mangled.strip()]
                kernel["sass"] = machine_code_hash(body)
                wanted = [] if is_reference(path) else EXPECTED.get(base_name(mangled.strip()), [])
                kernel["missing"] = [want for want in wanted if not any(want in line for line in instructions)]
                kernel["spills"] = sum(line.lstrip("@!UPT0123456789 ").startswith(("LDL", "STL")) for line in instructions)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="?", default="build/release")
    parser.add_argument("--cuobjdump")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    tool = find_cuobjdump(arguments.cuobjdump)
    objects = objects_below(arguments.build)
    problems, table = [], []
    print(f"{'file':34} {'kernel':18} {'arch':8} {'regs':>5} {'shared':>7} {'stack':>6} {'local':>6}  sass")
    for path in objects:
        kernels = kernels_of(tool, str(path))
        for (sm, mangled), kernel in sorted(kernels.items()):
            base = base_name(mangled)
            short = f"{path.name[:-5]}: {base}"
            shared = kernel["shared"] + DYNAMIC_SHARED.get(base, 0)
            print(f"{path.name[:-5]:34} {base:18} {sm:8} {kernel['registers']:5} {shared:7} {kernel['stack']:6} "
                  f"{kernel['spills']:6}  {kernel['sass']}")
            table.append({"file": path.name[:-2], "kernel": base, "arch": sm, **kernel, "shared": shared})
            local = kernel["local"] or kernel["stack"] or kernel["spills"]
            if local and not is_reference(path.name) and base not in LOCAL_MEMORY:
                problems.append(f"{short} {sm}: spills or keeps an array in local memory")
            if shared > MAX_SHARED_BYTES:
                problems.append(f"{short} {sm}: {shared} bytes of shared memory, at most {MAX_SHARED_BYTES}")
            if kernel["missing"]:
                problems.append(f"{short} {sm}: no {', '.join(kernel['missing'])} in its code")
    seen = {row["kernel"] for row in table}
    problems += [f"kernel {name}, whose instructions are checked, is not in the build" for name in EXPECTED if name not in seen]
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(table, indent=1) + "\n")
    for problem in problems:
        print(f"check_kernels: {problem}")
    print(f"kernels: {len(table)} in {len(objects)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
