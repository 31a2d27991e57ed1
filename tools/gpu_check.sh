#!/usr/bin/env bash
# All that a machine with a GPU should run, in one command: builds, proves, tests, looks for races, measures. Takes some 20
# minutes on an H200 with 16 cores. Run it from the root of the repository.
#
# usage: tools/gpu_check.sh [BUILD_DIR [OUTPUT_DIR [step...]]]      (build/gpu, build/gpu/check, all steps in this order)
#   build      with the CUDA rows and the faults of a GPU's own
#   rows       every GPU row against the CPU's reference rows
#   prove      models/pocket cold, then with its receipt; its evaluation
#   self-test  every fault caught, a process an op
#   model      goldens, invariance, random models, GPU against CPU; no GPU memory taken while serving
#   serving    random serving: 100,000 steps against each request alone, and 100,000 steps run twice
#   memcheck   200 decode steps of models/pocket under compute-sanitizer
#   racecheck  the same, a process a kind of kernel, and every op's rows: racecheck breaks cuBLASLt's kernels
#   bench      every fast row; decode, prefill and op tables of pocket and of 35B-A3B, 122B and (8 layers) 397B shapes with
#              dummy weights
# OUTPUT_DIR/check.json: the machine, and of each step its seconds and whether it passed. What it printed lies beside it.
set -u
build=${1:-build/gpu} out=${2:-build/gpu/check}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- build rows prove self-test model serving memcheck racecheck bench
mkdir -p "$out"
bin=$build/bin
pocket=(models/pocket --device cuda)
dummy=(models/configs/SHAPE.json --load-format dummy --device cuda)
steps=("$bin/assay" bench "${pocket[@]}" --context 64 --decode-tokens 100 --repeats 1)  # a warm-up and a timing: 200
ops=(embed rms_norm linear silu_mul router experts qk_norm_rope attention conv_gates gated_delta sample)

# Runs `$1 ARGUMENT` for all further arguments side by side; fails if one does.
each() {
  local call=$1 failed=0 argument
  local -A processes
  shift
  for argument in "$@"; do
    "$call" "$argument" >"$out/$call-${argument// /_}.txt" 2>&1 &
    processes[$argument]=$!
  done
  for argument in "$@"; do
    wait "${processes[$argument]}" || { failed=1; echo "FAILED: $call $argument"; }
    tail -n 1 "$out/$call-${argument// /_}.txt"
  done
  return $failed
}
sanitize() { compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20 "${@:2}"; }
self_test_of() { "$bin/assay_faulty" prove "${pocket[@]}" --self-test --op "$1"; }
races_of_rows() { sanitize racecheck "$bin/gpu_rows_test" --op "$1" --without-row cublaslt; }
races_of_kernels() {
  sanitize racecheck --kernel-name "kernel_substring=$1" "${steps[@]}" --force linear=cuda_phased
}
bench_of() { "$bin/assay" bench "${@:2}" --batch "${batches:-1,8,64}" --ops --json >"$out/bench-$1.json"; }
serve() { "$bin/end_to_end_test" --gtest_filter="Serving.$1*"; }
step() {
  case $1 in
    build)
      cmake --preset release -B "$build" -DASSAY_CUDA=ON -DASSAY_CUDA_FAULTS=ON \
        -DASSAY_CUDA_ARCHS="${ASSAY_CUDA_ARCHS:-90a}" &&
        cmake --build "$build" -j "$(nproc)" --target assay assay_faulty gpu_rows_test gpu_rows_bench \
          end_to_end_test allocation_test ;;
    rows) "$bin/gpu_rows_test" --json "$out/rows.json" ;;
    prove)
      rm -rf "$out/receipts"
      for _ in cold warm; do
        "$bin/assay" prove "${pocket[@]}" --receipt-dir "$out/receipts" --export "$out/proof.json" || return 1
      done
      "$bin/assay" eval "${pocket[@]}" --file models/pocket/eval.jsonl ;;
    self-test) each self_test_of "${ops[@]}" ;;
    model) "$bin/end_to_end_test" --gtest_filter='-Serving.*' && "$bin/allocation_test" --gtest_filter='Gpu.*' ;;
    serving) each serve Hundred EveryStep ;;
    memcheck) sanitize memcheck "${steps[@]}" ;;
    racecheck)
      each races_of_rows "${ops[@]}" &&
        each races_of_kernels linear experts attention delta conv norm silu router sample embed ;;
    bench)
      "$bin/gpu_rows_bench" --json "$out/rows-bench.json" &&
        bench_of pocket "${pocket[@]}" --context 512 &&
        bench_of 35b "${dummy[@]/SHAPE/qwen3.5-35b-a3b}" --context 4096,8192 --decode-tokens 64 &&
        batches=1,8,48 bench_of 122b "${dummy[@]/SHAPE/qwen3.5-122b-a10b}" --context 4096 --decode-tokens 32 --repeats 2 &&
        bench_of 397b "${dummy[@]/SHAPE/qwen3.5-397b-a17b}" --dummy-layers 8 --context 4096 --decode-tokens 32 --repeats 2 ;;
    *) echo "no step is called $1"; return 2 ;;
  esac
}

export ASSAY_TEST_DEVICE=cuda
machine=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "$machine, $commit"
failed=0 results=()
for name in "$@"; do
  begin=$SECONDS
  step "$name" >"$out/$name.txt" 2>&1
  status=$?
  [ $status -eq 0 ] && passed=true || { passed=false failed=1; tail -n 20 "$out/$name.txt"; }
  results+=("{\"step\": \"$name\", \"passed\": $passed, \"seconds\": $((SECONDS - begin))}")
  echo "$name: status $status, $((SECONDS - begin)) s"
  {
    printf '{"machine": "%s", "commit": "%s", "steps": [\n' "$machine" "$commit"
    (IFS=$'\n'; echo "${results[*]}") | sed '$!s/$/,/'
    echo ']}'
  } >"$out/check.json"
done
exit $failed
