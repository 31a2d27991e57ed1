// Faults that only a GPU's rows can have: the wrong rows of gpu_faults.cmake, and healthy ones that run where or when
// they should not.
#include <cuda_runtime.h>

#include "backend/cuda/launch.h"
#include "fault.h"
#include "fault_tables.h"
#include "ops/all_ops.h"

namespace assay::ops {

#define ASSAY_GPU_FAULT(Op, row, name, rare) extern const Impl<Op> row;
#include "gpu_fault_rows.inc"
#undef ASSAY_GPU_FAULT

}  // namespace assay::ops

namespace assay::faults {
namespace {

using ops::AttentionOp;
using ops::LinearOp;

bool recording(const ops::Launch& launch) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(cuda::raw(launch.stream), &status), "cudaStreamIsCapturing");
  return status == cudaStreamCaptureStatusActive;
}

device::Stream another_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
    return made;
  }();
  return {device::Backend::kCuda, stream};
}

template <class Op>
void add_blind(std::vector<Entry>& list, const char* name, std::function<void(Run<Op>&)> before) {
  Fault<Op> entry{name};
  entry.run = [before = std::move(before)](Run<Op>& run) {
    if (!run.after) before(run);
  };
  entry.blind = true;
  list.push_back(fault<Op>(std::move(entry)));
}

}  // namespace

void add_gpu_faults(std::vector<Entry>& list) {
  add_blind<LinearOp>(list, "unsynchronised stream: the row runs beside the others",
                      [](Run<LinearOp>& run) { run.launch.stream = another_stream(); });
  // Inputs of the run with most tokens so far: their memory is still there, and holds enough rows.
  add_blind<LinearOp>(list, "graph: it keeps the pointer to another step's inputs",
                      [largest = std::make_shared<ops::ConstView>()](Run<LinearOp>& run) {
                        if (recording(run.launch)) {
                          if (largest->cols == run.args.x.cols) run.args.x = *largest;
                        } else if (run.index == 0 || run.args.x.rows > largest->rows) {
                          *largest = run.args.x;
                        }
                      });
  add_blind<LinearOp>(list, "graph: it keeps the token count of its recording", [](Run<LinearOp>& run) {
    if (recording(run.launch)) run.args.tokens.live = nullptr;
  });
  add_blind<AttentionOp>(list, "graph: it keeps the token count of its recording", [](Run<AttentionOp>& run) {
    if (recording(run.launch)) run.args.batch.tokens.live = nullptr;
  });
#define ASSAY_GPU_FAULT(Op, row, name, rare) list.push_back(row_fault<ops::Op>(name, ops::row, rare));
#include "gpu_fault_rows.inc"
#undef ASSAY_GPU_FAULT
}

}  // namespace assay::faults
