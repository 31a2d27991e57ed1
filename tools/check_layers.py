#!/usr/bin/env python3
"""Checks who includes whom, and what files are called. The rules are the tables below; docs/architecture.md explains them.

usage: tools/check_layers.py [--root DIR] [--self-test]
Prints one line a violation and exits 1 if there is any.
"""
import argparse
import os
import pathlib
import re
import sys
import tempfile

# Folder -> what it may include besides itself: folders, or single headers.
BELOW_DEVICE = {"base", "numeric"}
BELOW_OPS = BELOW_DEVICE | {"device", "backend"}
STEP_HEADERS = {"engine/engine.h", "engine/step.h", "ops/sample/sample.h"}  # what a step and its results are made of
MAY_INCLUDE = {
    "base": set(),
    "numeric": {"base"},
    "device": BELOW_DEVICE,
    "backend": BELOW_DEVICE | {"device"},
    "ops": BELOW_OPS,
    "proof": BELOW_OPS | {"ops"},
    "checkpoint": BELOW_DEVICE | {"device"},
    "state": {"base", "device"},
    "models": BELOW_OPS | {"ops", "checkpoint", "state"},
    "engine": BELOW_OPS | {"ops", "checkpoint", "state", "models", "proof"},
    "scheduler": {"base", "state"} | STEP_HEADERS,
    "text": {"base"},
    "server": {"base", "scheduler", "text"} | STEP_HEADERS,
}
ORDER = ["base", "numeric", "device", "backend", "ops", "proof", "checkpoint", "state", "models", "engine", "scheduler",
         "text", "server"]
BELOW_MODELS = set(ORDER[:ORDER.index("models")])
ABOVE_OPS = set(ORDER[ORDER.index("ops") + 1:]) | {"apps"}

SOURCE_SUFFIXES = {".cc", ".h", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|curand|cusparse|nccl|nvrtc|nvtx|nvml|mma\.h|cooperative_groups|"
                         r"cub/|cute/|cutlass/|thrust/|nvtx3/|crt/)")
GPU_FILE = re.compile(r"(_(cuda|cublaslt|cudnn)(_.*)?\.[a-z]+|\.cuh?)$")
BACKEND_IN_NAME = re.compile(r"(^|[_-])(cpu|cuda|cublaslt|cublas|cudnn|avx2|avx512)([_.-]|$)")
MODEL_NAME = re.compile(r"qwen|kimi|llama", re.IGNORECASE)
# A definition may not share code with what it judges: no decoding or arithmetic of a fast row, no packed layout. Running
# work in parallel and launching kernels is not arithmetic.
FAST_HEADER = re.compile(r"(_layouts\.h$|^backend/|^ops/[^/]+/.*_(cpu|cuda|cublaslt|cudnn)[_.])")
PLAIN_HEADERS = {"backend/cpu/doorbell.h", "backend/cpu/thread_pool.h", "backend/cuda/launch.h"}
REFERENCE_HEADER = re.compile(r"^(numeric/decode\.h|ops/reference[^/]*)$")
NOT_A_ROW = re.compile(r"_(reference|test|cases)\.[a-z]+$")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'',
                               re.DOTALL)
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Tree:
    """The sources below one root, with their includes."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.text = {}
        for top in ("src", "apps", "tests", "bench"):
            for folder, _, names in os.walk(self.root / top):
                for name in sorted(names):
                    path = pathlib.Path(folder) / name
                    if path.suffix in SOURCE_SUFFIXES:
                        self.text[path.relative_to(self.root).as_posix()] = path.read_text(errors="replace")
        self.includes = {path: INCLUDE.findall(text) for path, text in self.text.items()}

    def reached_from(self, path):
        """Project headers that a file includes, directly or not, each with the file that names it."""
        found, waiting = {}, [path]
        while waiting:
            current = waiting.pop()
            for kind, header in self.includes.get(current, []):
                if kind == '"' and header not in found:
                    found[header] = current
                    waiting.append("src/" + header)
        return found


def folder_of(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "src" else parts[0]


def check_includes(tree, path):
    folder = folder_of(path)
    for kind, header in tree.includes[path]:
        if CUDA_HEADER.search(header) and folder != "backend" and not GPU_FILE.search(path):
            yield f"{path}: CUDA header <{header}> outside backend/ and GPU files"
        if kind != '"' or folder not in MAY_INCLUDE:
            continue
        target = header.split("/")[0]
        if target == folder or target not in MAY_INCLUDE:
            continue
        if target not in MAY_INCLUDE[folder] and header not in MAY_INCLUDE[folder]:
            yield f"{path}: {folder} may not include {header}"


def check_independence(tree, path):
    parts = path.split("/")
    if parts[:2] != ["src", "ops"] or len(parts) != 4:
        return
    name = parts[3]
    if "_reference." in name:
        for header, by in tree.reached_from(path).items():
            if FAST_HEADER.search(header) and header not in PLAIN_HEADERS:
                yield f"{path}: a reference row reaches {header} (included by {by})"
    elif not NOT_A_ROW.search(name):
        for header, by in tree.reached_from(path).items():
            if REFERENCE_HEADER.search(header):
                yield f"{path}: a row reaches the reference's {header} (included by {by})"


def check_names(tree, path):
    folder, name = folder_of(path), path.split("/")[-1]
    if folder in BELOW_MODELS:
        if MODEL_NAME.search(name):
            yield f"{path}: a model's name in a file below models/"
        code = COMMENT_OR_STRING.sub(" ", tree.text[path])
        for identifier in sorted({word for word in IDENTIFIER.findall(code) if MODEL_NAME.search(word)}):
            yield f"{path}: identifier {identifier} has a model's name below models/"
    if folder in ABOVE_OPS and (BACKEND_IN_NAME.search(name) or GPU_FILE.search(name)):
        yield f"{path}: a backend's name in a file above ops/"
    if path.startswith("src/") and folder not in MAY_INCLUDE:
        yield f"{path}: folder src/{folder} is not in the layout"


def violations(root):
    tree = Tree(root)
    for path in sorted(tree.text):
        for check in (check_includes, check_independence, check_names):
            yield from check(tree, path)


# Planted files; each list holds the beginnings of the violations that must be found, and nothing else may be.
GOOD = {
    "src/base/result.h": "#pragma once\n#include <string>\n",
    "src/numeric/decode.h": '#include "base/result.h"\n',
    "src/backend/cuda/launch.h": "#include <cuda_runtime.h>\n",
    "src/device/device_cuda.cc": "#include <cuda_runtime.h>\n",
    "src/ops/linear/linear.h": '#include "base/result.h"\n// as in Qwen3\n',
    "src/ops/linear/linear_layouts.h": '#include "ops/linear/linear.h"\n',
    "src/ops/linear/linear_reference.cc": '#include "numeric/decode.h"\n#include "backend/cpu/thread_pool.h"\n',
    "src/ops/reference_cuda.cuh": '#include "backend/cuda/launch.h"\n#include "ops/file_layout_cuda.h"\n',
    "src/ops/file_layout_cuda.h": "",
    "src/ops/linear/linear_cuda_reference.cu": '#include "ops/reference_cuda.cuh"\n',
    "src/ops/linear/linear_cpu_avx2.cc": '#include "ops/linear/linear_layouts.h"\n',
    "src/ops/linear/linear_cuda_gemv.cu": "#include <cuda_bf16.h>\n",
    "src/ops/linear/linear_test.cc": '#include "numeric/decode.h"\n#include "ops/linear/linear_layouts.h"\n',
    "src/ops/sample/sample.h": "",
    "src/checkpoint/config.cc": 'bool known = architecture == "Qwen3_5MoeForCausalLM";  // not kimi\n',
    "src/models/qwen35.cc": '#include "ops/linear/linear.h"\nclass Qwen35;\n',
    "src/engine/engine.h": "",
    "src/scheduler/loop.h": '#include "engine/engine.h"\n#include "ops/sample/sample.h"\n',
    "src/server/server.h": '#include "scheduler/loop.h"\n',
    "apps/assay/serve.cc": '#include "server/server.h"\n#include "engine/engine.h"\n',
}
BAD = [
    ("src/numeric/x.h", '#include "ops/linear/linear.h"\n', "numeric may not include ops/linear/linear.h"),
    ("src/ops/linear/x.h", '  #  include "models/qwen35.h"\n', "ops may not include models/qwen35.h"),
    ("src/state/x.cc", '#include "ops/linear/linear.h"\n', "state may not include ops/linear/linear.h"),
    ("src/text/x.cc", '#include "scheduler/loop.h"\n', "text may not include scheduler/loop.h"),
    ("src/scheduler/x.cc", '#include "engine/load.h"\n', "scheduler may not include engine/load.h"),
    ("src/scheduler/y.cc", '#include "ops/linear/linear.h"\n', "scheduler may not include ops/linear/linear.h"),
    ("src/server/x.cc", '#include "engine/load.h"\n', "server may not include engine/load.h"),
    ("src/server/y.cc", '#include "checkpoint/config.h"\n', "server may not include checkpoint/config.h"),
    ("src/engine/x.cc", '#include "text/tokenizer.h"\n', "engine may not include text/tokenizer.h"),
    ("src/engine/y.cc", "#include <cuda_runtime.h>\n", "CUDA header <cuda_runtime.h>"),
    ("src/device/device.cc", "#include <cuda.h>\n", "CUDA header <cuda.h>"),
    ("src/ops/linear/linear_cpu_portable.cc", '#include "numeric/decode.h"\n',
     "a row reaches the reference's numeric/decode.h"),
    ("src/ops/linear/linear_layouts.cc", '#include "ops/helper.h"\n', "a row reaches the reference's numeric/decode.h"),
    ("src/ops/linear/linear_cuda_gemm.cu", '#include "ops/reference_cuda.cuh"\n',
     "a row reaches the reference's ops/reference_cuda.cuh"),
    ("src/ops/attention/attention_cuda_reference.cu", '#include "backend/cuda/mma.h"\n',
     "a reference row reaches backend/cuda/mma.h"),
    ("src/ops/helper.h", '#include "numeric/decode.h"\n', None),
    ("src/ops/experts/experts_reference.cc", '#include "ops/linear/linear_layouts.h"\n',
     "a reference row reaches ops/linear/linear_layouts.h"),
    ("src/ops/router/router_reference.cc", '#include "backend/cpu/vector.h"\n',
     "a reference row reaches backend/cpu/vector.h"),
    ("src/ops/embed/embed_reference.cc", '#include "ops/embed/embed_cpu_common.h"\n',
     "a reference row reaches ops/embed/embed_cpu_common.h"),
    ("src/ops/embed/embed_kimi.cc", "", "a model's name in a file below models/"),
    ("src/ops/embed/embed.cc", "int llama_rows = 0;\n", "identifier llama_rows has a model's name"),
    ("src/engine/step_cuda.cc", "", "a backend's name in a file above ops/"),
    ("src/models/forward_cpu.cc", "", "a backend's name in a file above ops/"),
    ("apps/assay/bench_cublaslt.cc", "", "a backend's name in a file above ops/"),
    ("src/extra/x.h", "", "folder src/extra is not in the layout"),
]


def plant(root, files):
    for path, text in files.items():
        target = pathlib.Path(root) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def self_test():
    problems = []
    with tempfile.TemporaryDirectory() as root:
        plant(root, GOOD)
        problems += [f"false alarm: {line}" for line in violations(root)]
        plant(root, {path: text for path, text, _ in BAD})
        found = list(violations(root))
    for path, _, wanted in BAD:
        mine = [line for line in found if line.startswith(path + ":")]
        expected = 0 if wanted is None else 1
        if len(mine) != expected or (wanted and wanted not in mine[0]):
            problems.append(f"planted in {path}: wanted {wanted!r}, found {mine}")
    planted = {path for path, _, _ in BAD}
    problems += [f"false alarm: {line}" for line in found if line.split(":")[0] not in planted]
    for problem in problems:
        print(f"self-test: {problem}")
    if not problems:
        print(f"layers self-test: ok, {sum(wanted is not None for _, _, wanted in BAD)} planted violations found")
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, help="of the repository")
    parser.add_argument("--self-test", action="store_true", help="plant violations and see them found")
    arguments = parser.parse_args()
    if arguments.self_test:
        return 0 if self_test() else 1
    found = list(violations(arguments.root))
    for line in found:
        print(line)
    print(f"layers: {len(found)} violations" if found else "layers: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
