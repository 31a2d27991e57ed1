#!/bin/sh
# What runs on a machine with a GPU, with programs built elsewhere: the proof of the GPU rows, the tests of the engine on
# the GPU, the same under compute-sanitizer, and the benchmarks. Run it from the root of the repository.
#
# usage: tools/gpu_check.sh BUILD_DIR OUTPUT_DIR [step...]      (by default: rows engine pocket bench)
#   rows       every GPU row against the CPU's reference rows
#   engine     goldens, invariance, random models, a hundred thousand steps of serving
#   pocket     models/pocket proven, cold and with its receipt, and evaluated
#   self-test  every fault caught (BUILD_DIR/bin/assay_faulty, built with -DASSAY_FAULTS=ON)
#   memcheck, racecheck   200 decode steps of models/pocket under compute-sanitizer
#   bench      every fast row, then decode and prefill of a 35B-A3B shape with dummy weights
# BUILD_DIR/lib may hold shared libraries that the machine lacks (tools/gpu_check.sh --libraries BUILD_DIR puts them there).
set -u
if [ "${1:-}" = "--libraries" ]; then
  mkdir -p "$2/lib"
  ldd "$2"/bin/* 2>/dev/null | awk '/lib(fmt|spdlog|pcre2|utf8proc|prometheus)/ {print $3}' | sort -u |
    xargs -r -I{} cp -L {} "$2/lib/"
  exit 0
fi
build=$1 out=$2
shift 2
[ $# -gt 0 ] || set -- rows engine pocket bench
mkdir -p "$out"
export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ASSAY_TEST_DEVICE=cuda
bin=$build/bin
shape=models/configs/qwen3.5-35b-a3b.json

sanitize() { compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20 \
  "$bin/assay" bench models/pocket --device cuda --context 64 --decode-tokens 200 --repeats 1; }
run() {
  case $1 in
    rows) "$bin/gpu_rows_test" --json "$out/rows.json" ;;
    engine) "$bin/end_to_end_test" ;;
    pocket)
      rm -rf "$out/receipts" &&
        "$bin/assay" prove models/pocket --device cuda --receipt-dir "$out/receipts" &&
        "$bin/assay" prove models/pocket --device cuda --receipt-dir "$out/receipts" &&
        "$bin/assay" eval models/pocket --device cuda --file models/pocket/eval.jsonl ;;
    self-test) "$bin/assay_faulty" prove models/pocket --device cuda --self-test ;;
    memcheck | racecheck) sanitize "$1" ;;
    bench)
      "$bin/gpu_rows_bench" --json "$out/rows-bench.json" &&
        "$bin/assay" bench $shape --load-format dummy --device cuda --batch 1,8,64 --context 4096 --json \
          >"$out/35b.json" && cat "$out/35b.json" ;;
    *) echo "unknown step $1"; return 2 ;;
  esac
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
failed=0
for step in "$@"; do
  echo "== $step"
  begin=$(date +%s)
  run "$step"
  status=$?
  echo "== $step: $(($(date +%s) - begin)) s, exit status $status"
  [ $status -eq 0 ] || failed=1
done
exit $failed
