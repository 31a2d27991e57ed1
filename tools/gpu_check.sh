#!/bin/sh
# What runs on a machine with a GPU, with programs built elsewhere: the proof of the GPU rows, the same under
# compute-sanitizer, and the benchmark of the rows.
#
# usage: tools/gpu_check.sh BUILD_DIR OUTPUT_DIR [test] [memcheck] [racecheck] [bench]      (by default: test bench)
# BUILD_DIR/lib may hold shared libraries that the machine lacks (tools/gpu_check.sh --libraries BUILD_DIR puts them there).
set -u
if [ "${1:-}" = "--libraries" ]; then
  mkdir -p "$2/lib"
  ldd "$2"/bin/gpu_rows_* | awk '/lib(fmt|spdlog)/ {print $3}' | sort -u | xargs -r -I{} cp -L {} "$2/lib/"
  exit 0
fi
build=$1 out=$2
shift 2
[ $# -gt 0 ] || set -- test bench
mkdir -p "$out"
export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
failed=0
for step in "$@"; do
  echo "== $step"
  case $step in
    test) "$build/bin/gpu_rows_test" --json "$out/rows.json" ;;
    memcheck | racecheck) compute-sanitizer --tool "$step" --error-exitcode 9 --print-limit 20 "$build/bin/gpu_rows_test" ;;
    bench) "$build/bin/gpu_rows_bench" --json "$out/bench.json" ;;
    *) echo "unknown step $step"; exit 2 ;;
  esac
  status=$?
  [ $status -eq 0 ] || { echo "$step: exit status $status"; failed=1; }
done
exit $failed
