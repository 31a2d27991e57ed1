// sample in plain C++, three passes. First and second go over (row, block of 1024 columns) items: each block's largest
// logit and whether it holds NaN or +inf, then its sums of exponentials. Third, one item a row: only the blocks that
// reach near the largest logit are looked at again, for as many leading columns as the row's parameters need; a row
// that needs them all ends in a full sort. A row with adjustments draws from a copy of its logits, which the third pass
// makes and scans. Bound by reading the logits twice: 8 * vocab bytes a row.
//
// Order: in a block the lane order of backend/cpu/lanes.h in fp32; blocks are added in fp64, rising; running sums over
// sorted columns in fp64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/work_queue.h"
#include "ops/host_launch.h"
#include "ops/sample/sample_random.h"
#include "ops/sample/sample_rows.h"
#include "ops/workspace.h"

namespace assay::ops {
namespace {

using cpu::F4;

constexpr int32_t kBlock = 1024;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct BlockStats {
  float largest;       // over all columns
  float real_largest;  // over real columns
  float sum;           // of exp(logit - row's largest), all columns
  float real_sum;      // of exp((logit - row's real largest) / temperature), real columns
  int32_t bad;         // a NaN or +inf
};

struct Candidate {
  float logit;
  int32_t id;
};

bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

float largest_of(const float* data, int32_t count) {
  F4 most = cpu::broadcast(-kInfinity);
  int32_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const F4 value = cpu::load4(data + i);
    most = value > most ? value : most;
  }
  float largest = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  for (; i < count; ++i) largest = std::max(largest, data[i]);
  return largest;
}

bool any_bad(const float* data, int32_t count) {
  int32_t found = 0;
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(data[i]);
    const auto magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
    found |= (magnitude >= 0x7f800000 ? 1 : 0) & (bits != 0xff800000u ? 1 : 0);
  }
  return found != 0;
}

// Sum of exp((data - largest) / temperature).
float sum_of_exp(const float* data, int32_t count, float largest, float temperature) {
  float weight[kBlock];
  const int32_t padded = (count + 7) / 8 * 8;
  for (int32_t i = 0; i < count; ++i) weight[i] = cpu::fast_exp((data[i] - largest) / temperature);
  std::fill(weight + count, weight + padded, 0.0f);
  F4 low = {}, high = {};
  for (int32_t i = 0; i < padded; i += 8) {
    low += cpu::load4(weight + i);
    high += cpu::load4(weight + i + 4);
  }
  return cpu::add_lanes(low, high);
}

// One row after the passes over blocks.
struct Row {
  const float* logits;
  const SampleParams& params;
  const BlockStats* blocks;
  int32_t block_count;
  int32_t real_vocab;
  Candidate* candidates;  // [real_vocab]
  float real_largest;
  double real_total;

  // The real columns with logit >= threshold, unsorted; how many.
  int32_t gather(float threshold) const {
    int32_t count = 0;
    for (int32_t b = 0; b < block_count; ++b) {
      if (!(blocks[b].real_largest >= threshold)) continue;
      const int32_t end = std::min(real_vocab, (b + 1) * kBlock);
      for (int32_t id = b * kBlock; id < end; ++id) {
        candidates[count] = {logits[id], id};
        count += logits[id] >= threshold ? 1 : 0;
      }
    }
    return count;
  }

  // The first columns in sorted order, at least `wanted` of them (or all); how many.
  int32_t leading(int32_t wanted) const {
    for (float reach = 4.0f;; reach *= 2) {
      const float threshold = reach > 1e4f ? -kInfinity : real_largest - reach;
      const int32_t count = gather(threshold);
      if (count < wanted && count < real_vocab) continue;
      const int32_t sorted = std::min(wanted, count);
      std::nth_element(candidates, candidates + sorted - 1, candidates + count, before);
      std::sort(candidates, candidates + sorted, before);
      return sorted;
    }
  }

  float weight(int32_t index) const {
    return cpu::fast_exp((candidates[index].logit - real_largest) / params.temperature);
  }

  int32_t greedy() const {
    for (int32_t b = 0;; ++b) {
      if (blocks[b].real_largest != real_largest) continue;
      for (int32_t id = b * kBlock;; ++id) {
        if (logits[id] == real_largest) return id;
      }
    }
  }

  // From `count` sorted candidates, which are `complete` when no later column can be kept. -1: more are needed.
  int32_t draw(int32_t count, bool complete) const {
    const bool cut_by_share = params.top_p < 1;
    double all = real_total;
    if (params.top_k > 0) {
      all = 0;
      for (int32_t i = 0; i < count; ++i) all += weight(i);
    }
    const double share = cut_by_share ? params.top_p * all : std::numeric_limits<double>::infinity();
    const bool cut = cut_by_share || params.min_p > 0;
    const double uniform = sample_uniform(params.seed, params.counter);
    double sum = 0;
    int32_t kept = 0;
    bool ended = complete;
    while (kept < count) {
      const float next = weight(kept);
      if (kept > 0 && (sum >= share || next < params.min_p)) {
        ended = true;
        break;
      }
      sum += next;
      ++kept;
    }
    if (sum >= share) ended = true;
    if (!ended && cut) return -1;
    const double target = uniform * (ended && (cut || params.top_k > 0) ? sum : real_total);
    double running = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < kept; ++i) {
      const float own = weight(i);
      running += own;
      if (running > target) return candidates[i].id;
      if (own > 0) last = i;
    }
    return ended ? candidates[last].id : -1;  // ended: u * sum rounded up to sum
  }

  int32_t sample() const {
    if (params.temperature <= 0 || params.top_k == 1) return greedy();
    if (params.top_k > 0) {
      const int32_t count = leading(std::min(params.top_k, real_vocab));
      return draw(count, true);
    }
    for (float reach = 4.0f;; reach *= 2) {
      const bool all = reach > 128.0f;
      const int32_t count = gather(all ? -kInfinity : real_largest - reach * params.temperature);
      std::sort(candidates, candidates + count, before);
      const int32_t token = draw(count, all);
      if (token >= 0) return token;
    }
  }
};

class CpuPortable : public Plan<SampleOp::Args> {
 public:
  explicit CpuPortable(const SampleDesc& desc) : desc_(desc) {}

  static int32_t block_count(const SampleDesc& desc) { return (desc.vocab + kBlock - 1) / kBlock; }

  void enqueue(const SampleOp::Args& args, const Launch& launch) const override {
    cpu::ThreadPool& pool = cpu::pool_of(launch.stream);
    Workspace workspace(launch.workspace);
    const int64_t blocks = block_count(desc_);
    const View memory = workspace.take(DType::kU8, args.rows, blocks * int64_t{sizeof(BlockStats)});
    BlockStats* stats = static_cast<BlockStats*>(memory.data);
    const int64_t slot_bytes = CpuPortable::slot_bytes(desc_);
    const View slots = workspace.rest();
    CHECK(slots.cols >= slot_bytes, "workspace of {} bytes", launch.workspace.cols);
    pool.parallel_for(args.rows * blocks, 8, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) scan(args, item / blocks, item % blocks, stats[item]);
    });
    pool.parallel_for(args.rows * blocks, 4, [&](int64_t begin, int64_t end) {
      Largest largest;
      for (int64_t item = begin; item < end; ++item) {
        if (item == begin || item % blocks == 0) largest = largest_of_blocks(stats + item / blocks * blocks);
        add_up(args, item / blocks, item % blocks, largest, stats[item]);
      }
    });
    cpu::for_each_item(pool, args.rows, slots.cols / slot_bytes, [&](int64_t row, int64_t slot) {
      args.results[row] = finish(args, row, stats + row * blocks, slots.row<char>(0) + slot * slot_bytes);
      if (args.results[row].numerical_error != 0) raise_flags(launch, Sentinel::kNonFiniteLogits);
    });
  }

  // Of one row at a time: candidates; adjusted logits and their blocks.
  static int64_t slot_bytes(const SampleDesc& desc) {
    Workspace counted;
    place_scratch(counted, desc);
    return static_cast<int64_t>(counted.used());
  }

 private:
  struct Scratch {
    Candidate* candidates;
    float* adjusted;
    BlockStats* blocks;
  };

  static Scratch place_scratch(Workspace& workspace, const SampleDesc& desc) {
    const View candidates = workspace.take(DType::kU8, desc.real_vocab, sizeof(Candidate));
    const View adjusted = workspace.take(DType::kF32, 1, desc.real_vocab);
    const View blocks = workspace.take(DType::kU8, block_count(desc), sizeof(BlockStats));
    return {static_cast<Candidate*>(candidates.data), static_cast<float*>(adjusted.data),
            static_cast<BlockStats*>(blocks.data)};
  }

  struct Largest {
    float all = -kInfinity;
    float real = -kInfinity;
    bool bad = false;
  };

  Largest largest_of_blocks(const BlockStats* blocks) const {
    Largest largest;
    for (int32_t b = 0; b < block_count(desc_); ++b) {
      largest.all = std::max(largest.all, blocks[b].largest);
      largest.real = std::max(largest.real, blocks[b].real_largest);
      largest.bad |= blocks[b].bad != 0;
    }
    return largest;
  }

  int32_t columns(int64_t block, int32_t limit) const {
    return static_cast<int32_t>(std::clamp<int64_t>(limit - block * kBlock, 0, kBlock));
  }

  void scan(const SampleOp::Args& args, int64_t row, int64_t block, BlockStats& stats) const {
    const float* data = args.logits.row<float>(row) + block * kBlock;
    stats.largest = largest_of(data, columns(block, desc_.vocab));
    stats.real_largest = largest_of(data, columns(block, desc_.real_vocab));
    stats.bad = any_bad(data, columns(block, desc_.vocab)) ? 1 : 0;
  }

  void add_up(const SampleOp::Args& args, int64_t row, int64_t block, const Largest& largest, BlockStats& stats) const {
    if (largest.bad || largest.real == -kInfinity) return;  // finish() reports it
    const float* data = args.logits.row<float>(row) + block * kBlock;
    const SampleParams& params = args.params[row];
    const bool sampled = params.target < 0 && params.temperature > 0 && params.adjustment_count == 0;
    stats.sum = sum_of_exp(data, columns(block, desc_.vocab), largest.all, 1.0f);
    stats.real_sum =
        sampled ? sum_of_exp(data, columns(block, desc_.real_vocab), largest.real, params.temperature) : 0.0f;
  }

  // The token of a row with adjustments.
  int32_t sample_adjusted(const SampleOp::Args& args, int64_t row, const Scratch& scratch) const {
    const SampleParams& params = args.params[row];
    std::copy_n(args.logits.row<float>(row), desc_.real_vocab, scratch.adjusted);
    for (int32_t i = 0; i < params.adjustment_count; ++i) {
      const LogitAdjustment& adjustment = args.adjustments[params.first_adjustment + i];
      if (adjustment.token >= desc_.real_vocab) continue;
      float& logit = scratch.adjusted[adjustment.token];
      logit = adjusted_logit(logit, adjustment);
    }
    const int32_t blocks = (desc_.real_vocab + kBlock - 1) / kBlock;
    Row work{scratch.adjusted, params, scratch.blocks, blocks, desc_.real_vocab, scratch.candidates, -kInfinity, 0};
    for (int32_t b = 0; b < blocks; ++b) {
      scratch.blocks[b].real_largest = largest_of(scratch.adjusted + b * kBlock, columns(b, desc_.real_vocab));
      work.real_largest = std::max(work.real_largest, scratch.blocks[b].real_largest);
    }
    for (int32_t b = 0; b < blocks && params.temperature > 0; ++b) {
      work.real_total += sum_of_exp(scratch.adjusted + b * kBlock, columns(b, desc_.real_vocab), work.real_largest,
                                    params.temperature);
    }
    return work.sample();
  }

  SampleResult finish(const SampleOp::Args& args, int64_t row, const BlockStats* blocks, char* slot) const {
    Workspace workspace(View(slot, DType::kU8, 1, slot_bytes(desc_)));
    const Scratch scratch = place_scratch(workspace, desc_);
    Candidate* candidates = scratch.candidates;
    SampleResult result = {};
    const Largest largest = largest_of_blocks(blocks);
    if (largest.bad || largest.real == -kInfinity) {
      result.numerical_error = 1;
      return result;
    }
    const SampleParams& params = args.params[row];
    CHECK(params.target < desc_.vocab, "target {} of {}", params.target, desc_.vocab);
    Row work{
        args.logits.row<float>(row), params, blocks, block_count(desc_), desc_.real_vocab, candidates, largest.real, 0};
    double sum = 0;
    for (int32_t b = 0; b < work.block_count; ++b) {
      sum += blocks[b].sum;
      work.real_total += blocks[b].real_sum;
    }
    const double log_sum = largest.all + std::log(sum);
    if (params.target >= 0) {
      result.token = params.target;
    } else {
      result.token = params.adjustment_count > 0 ? sample_adjusted(args, row, scratch) : work.sample();
    }
    result.logprob = static_cast<float>(work.logits[result.token] - log_sum);
    result.top_count = std::clamp(params.top_logprobs, 0, std::min(kMaxTopLogprobs, desc_.real_vocab));
    if (result.top_count > 0) work.leading(result.top_count);
    for (int32_t i = 0; i < result.top_count; ++i) {
      result.top_ids[i] = candidates[i].id;
      result.top_logprobs[i] = static_cast<float>(candidates[i].logit - log_sum);
    }
    return result;
  }

  SampleDesc desc_;
};

size_t workspace_bytes(const SampleDesc& desc, const Bucket& bucket, MakeContext& context) {
  Workspace counted;
  counted.take(DType::kU8, std::max(bucket.tokens, bucket.sequences),
               CpuPortable::block_count(desc) * int64_t{sizeof(BlockStats)});
  const auto slot = static_cast<size_t>(CpuPortable::slot_bytes(desc));
  return counted.used() + slot * static_cast<size_t>(std::max(1, context.caps.multiprocessors));
}

}  // namespace

constinit const Impl<SampleOp> kSampleCpuPortable = {
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const SampleDesc&) { return order_id("sample: eight lanes, blocks of 1024 columns"); },
    .layout = [](const SampleDesc&) { return LayoutId{nullptr}; },
    .can_run = refuse_sample,
    .workspace_bytes = workspace_bytes,
    .make = [](const SampleDesc& desc, const Bucket&, const NoWeights&,
               MakeContext&) -> Result<std::unique_ptr<Plan<SampleOp::Args>>> {
      return std::unique_ptr<Plan<SampleOp::Args>>(new CpuPortable(desc));
    }};

}  // namespace assay::ops
