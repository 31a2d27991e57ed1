#include "backend/cublaslt/matmul_cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>

#include "backend/cuda/launch.h"

namespace assay::cublaslt {
namespace {

constexpr int kProposals = 32;
constexpr const char* kLibrary = "libcublasLt.so.13";
static_assert(CUBLAS_VER_MAJOR == 13, "kLibrary is of another version than its header");

// The library, loaded once and never unloaded, and its functions.
class Library {
  // Becomes a function of whatever type it is assigned to.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };

  Symbol function(const char* name) {
    void* address = handle_ == nullptr ? nullptr : dlsym(handle_, name);
    if (address == nullptr && problem_.empty()) problem_ = dlerror();
    return {address};
  }

  void* handle_ = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  std::string problem_;

 public:
  decltype(&::cublasLtGetVersion) get_version = function("cublasLtGetVersion");
  decltype(&::cublasLtGetStatusName) get_status_name = function("cublasLtGetStatusName");
  decltype(&::cublasLtCreate) create = function("cublasLtCreate");
  decltype(&::cublasLtMatmulDescCreate) matmul_desc_create = function("cublasLtMatmulDescCreate");
  decltype(&::cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = function("cublasLtMatmulDescSetAttribute");
  decltype(&::cublasLtMatrixLayoutInit_internal) matrix_layout_init = function("cublasLtMatrixLayoutInit_internal");
  decltype(&::cublasLtMatmulPreferenceCreate) matmul_preference_create = function("cublasLtMatmulPreferenceCreate");
  decltype(&::cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute =
      function("cublasLtMatmulPreferenceSetAttribute");
  decltype(&::cublasLtMatmulPreferenceDestroy) matmul_preference_destroy = function("cublasLtMatmulPreferenceDestroy");
  decltype(&::cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic = function("cublasLtMatmulAlgoGetHeuristic");
  decltype(&::cublasLtMatmulAlgoCheck) matmul_algo_check = function("cublasLtMatmulAlgoCheck");
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) matmul_algo_config_get_attribute =
      function("cublasLtMatmulAlgoConfigGetAttribute");
  decltype(&::cublasLtMatmul) matmul = function("cublasLtMatmul");

  // Why it cannot be used; empty: it can.
  const std::string& problem() const { return problem_; }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

Error no_matmul(const MatmulShape& shape, std::string got) {
  return Error{ErrorKind::kUnsupported,
               "no cuBLASLt product",
               fmt::format("n={} k={} bf16->{}", shape.n, shape.k, dtype_name(shape.output)),
               std::move(got),
               "",
               ""};
}

cudaDataType cuda_type(DType dtype) { return dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_32F; }

// [rows, cols] of ours is [cols, rows] of a column-major library.
cublasLtMatrixLayoutOpaque_t layout_of(DType dtype, int64_t rows, int64_t cols, int64_t stride) {
  cublasLtMatrixLayoutOpaque_t layout;
  const cublasStatus_t status = library().matrix_layout_init(
      &layout, sizeof(layout), cuda_type(dtype), static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), stride);
  CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt layout [{}, {}]: {}", rows, cols, library().get_status_name(status));
  return layout;
}

}  // namespace

class Matmul {
 public:
  // y^T = w x^T in the library's terms: w is its first operand, transposed.
  static Result<Matmul> make(cublasLtHandle_t handle, const MatmulShape& shape) {
    Matmul made(handle, shape);
    const Library& lt = library();
    cublasStatus_t status = lt.matmul_desc_create(&made.desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = lt.matmul_desc_set_attribute(made.desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    }
    if (status != CUBLAS_STATUS_SUCCESS) return no_matmul(shape, lt.get_status_name(status));
    cublasLtMatmulHeuristicResult_t proposals[kProposals];
    int count = 0;
    status = made.propose(proposals, count);
    if (status != CUBLAS_STATUS_SUCCESS) return no_matmul(shape, lt.get_status_name(status));
    for (int i = 0; i < count; ++i) {
      if (!made.suits(proposals[i])) continue;
      made.algorithm_ = proposals[i].algo;
      return made;
    }
    return no_matmul(shape, fmt::format("none of {} algorithms adds each output in one chain", count));
  }

  void enqueue(const device::ConstView& x, const void* w, const device::View& y, const device::View& workspace,
               const device::Stream& stream) const {
    auto a = weights(), b = inputs(x.rows, x.stride), d = outputs(x.rows, y.stride);
    const float one = 1.0f, zero = 0.0f;
    const cublasStatus_t status = library().matmul(handle_, desc_, &one, w, &a, x.data, &b, &zero, y.data, &d, y.data,
                                                   &d, &algorithm_, workspace.data, kWorkspaceBytes, cuda::raw(stream));
    CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt n={} k={} T={}: {}", shape_.n, shape_.k, x.rows,
          library().get_status_name(status));
    cuda::finish_launch("cuBLASLt", cuda::raw(stream));
  }

 private:
  Matmul(cublasLtHandle_t handle, const MatmulShape& shape) : handle_(handle), shape_(shape) {}

  using Layout = cublasLtMatrixLayoutOpaque_t;
  Layout weights() const { return layout_of(DType::kBf16, shape_.n, shape_.k, shape_.k); }
  Layout inputs(int64_t tokens, int64_t stride) const { return layout_of(DType::kBf16, tokens, shape_.k, stride); }
  Layout outputs(int64_t tokens, int64_t stride) const { return layout_of(shape_.output, tokens, shape_.n, stride); }
  int64_t aligned_stride() const { return (shape_.n + 7) / 8 * 8; }

  cublasStatus_t propose(cublasLtMatmulHeuristicResult_t (&proposals)[kProposals], int& count) const {
    const Library& lt = library();
    cublasLtMatmulPreference_t preference = nullptr;
    cublasStatus_t status = lt.matmul_preference_create(&preference);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      if (status != CUBLAS_STATUS_SUCCESS) return;
      status = lt.matmul_preference_set_attribute(preference, attribute, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, static_cast<uint32_t>(kAlignment));
    }
    auto a = weights(), b = inputs(kProposalTokens, shape_.k), d = outputs(kProposalTokens, aligned_stride());
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = lt.matmul_algo_get_heuristic(handle_, desc_, &a, &b, &d, &d, preference, kProposals, proposals, &count);
    }
    if (preference != nullptr) lt.matmul_preference_destroy(preference);
    return status;
  }

  // One chain of additions an output, for few tokens and for many.
  bool suits(const cublasLtMatmulHeuristicResult_t& proposal) const {
    if (proposal.state != CUBLAS_STATUS_SUCCESS || proposal.workspaceSize > kWorkspaceBytes) return false;
    int32_t splits = 0;
    size_t written = 0;
    const cublasStatus_t status = library().matmul_algo_config_get_attribute(
        &proposal.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits), &written);
    if (status != CUBLAS_STATUS_SUCCESS || splits > 1) return false;
    for (const int64_t tokens : {int64_t{1}, int64_t{17}, int64_t{1} << 14}) {
      auto a = weights(), b = inputs(tokens, shape_.k), d = outputs(tokens, aligned_stride());
      cublasLtMatmulHeuristicResult_t checked;
      if (library().matmul_algo_check(handle_, desc_, &a, &b, &d, &d, &proposal.algo, &checked) !=
              CUBLAS_STATUS_SUCCESS ||
          checked.workspaceSize > kWorkspaceBytes) {
        return false;
      }
    }
    return true;
  }

  cublasLtHandle_t handle_;
  MatmulShape shape_;
  cublasLtMatmulDesc_t desc_ = nullptr;  // never destroyed
  cublasLtMatmulAlgo_t algorithm_ = {};
};

Result<const Matmul*> find_matmul(const MatmulShape& shape) {
  if (!library().problem().empty()) return no_matmul(shape, library().problem());
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;  // by GPU
  static std::map<std::pair<int, MatmulShape>, std::optional<Result<Matmul>>> found;
  const std::lock_guard lock(mutex);
  int gpu = 0;
  if (cudaGetDevice(&gpu) != cudaSuccess) return no_matmul(shape, "no GPU");
  cublasLtHandle_t& handle = handles[gpu];
  if (handle == nullptr) {
    const cublasStatus_t status = library().create(&handle);
    if (status != CUBLAS_STATUS_SUCCESS) return no_matmul(shape, library().get_status_name(status));
  }
  std::optional<Result<Matmul>>& matmul = found[{gpu, shape}];
  if (!matmul) matmul.emplace(Matmul::make(handle, shape));
  if (!matmul->ok()) return matmul->error();
  return static_cast<const Matmul*>(&matmul->value());
}

void enqueue_matmul(const Matmul& matmul, const device::ConstView& x, const void* w, const device::View& y,
                    const device::View& workspace, const device::Stream& stream) {
  matmul.enqueue(x, w, y, workspace, stream);
}

std::string version_text() {
  if (!library().problem().empty()) return "no cuBLASLt";
  const size_t version = library().get_version();  // 130100: 13.1.0
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace assay::cublaslt
