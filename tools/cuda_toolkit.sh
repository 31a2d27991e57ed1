#!/usr/bin/env bash
# Finds what building and checking CUDA code needs, nvcc 13 and cuobjdump, and prints it for a shell to take over:
#   eval "$(tools/cuda_toolkit.sh)"     sets CUDACXX and CUOBJDUMP
# Those on PATH or in /usr/local/cuda are taken; what is missing pip puts into build/venv, from NVIDIA's packages on PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/venv

say() { echo "cuda_toolkit: $*" >&2; }

find_tool() {
  command -v "$1" 2>/dev/null || { [ -x "/usr/local/cuda/bin/$1" ] && echo "/usr/local/cuda/bin/$1"; } || true
}

# The folder of the packages' toolkit.
packaged() { echo "$PWD/$("$venv/bin/python" -c 'import sysconfig, os; print(os.path.relpath(sysconfig.get_path("purelib")))')/nvidia/cu13"; }

install() {
  say "installing $*"
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv" >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 ||
    { say "no nvcc or cuobjdump on PATH, and pip could not install them: put a CUDA toolkit 13.0 or later on PATH"; exit 1; }
}

nvcc=${CUDACXX:-$(find_tool nvcc)}
if [ -z "$nvcc" ]; then
  install nvidia-cuda-{nvcc,crt,runtime,cccl}==13.0.* nvidia-nvvm==13.0.* nvidia-cublas==13.1.*
  ln -sfn lib "$(packaged)/lib64"  # where nvcc looks
  nvcc=$(packaged)/bin/nvcc
fi
"$nvcc" --version >/dev/null || { say "$nvcc does not run"; exit 1; }

cuobjdump=$(find_tool cuobjdump)
if [ -z "$cuobjdump" ]; then
  install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
  cuobjdump=$(packaged)/bin/cuobjdump
fi
say "$("$nvcc" --version | sed -n 's/.*release \([^,]*\),.*/CUDA \1/p'), $nvcc, $cuobjdump"
printf 'export CUDACXX=%q CUOBJDUMP=%q\n' "$nvcc" "$cuobjdump"
