// sample in plain C++, three passes. First and second go over (row, block of 1024 columns) items: each block's largest
// logit and whether it holds NaN or +inf, then its sums of exponentials. Third, one item a row: the blocks that reach
// near the largest logit are looked at again, for as many columns as the row's parameters need (sample_ranking.h). A
// row with adjustments draws from a copy of its logits, which the third pass makes and scans. Bound by the
// exponentials, one a column and a second one of a row that is drawn: about fifteen operations each.
//
// Order: in a block the lane order of backend/cpu/lanes.h in fp32, blocks in fp64, rising; the weights that tokens are
// drawn by add up exactly.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/work_queue.h"
#include "ops/host_launch.h"
#include "ops/sample/sample_random.h"
#include "ops/sample/sample_ranking.h"
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
  double real_sum;     // of the weights of real columns (sample_ranking.h)
  int32_t bad;         // a NaN or +inf
};

// Of `count` columns; NaNs are passed over.
float largest_of(const float* data, int32_t count) {
  cpu::F8 most = {cpu::broadcast(-kInfinity), cpu::broadcast(-kInfinity)};
  const auto add = [&](cpu::F8 value) {
    most.low = cpu::larger(value.low, most.low);
    most.high = cpu::larger(value.high, most.high);
  };
  int32_t i = 0;
  for (; i + 8 <= count; i += 8) add(cpu::load8(data + i));
  if (i < count) add(cpu::load_part(data + i, count - i, -kInfinity));
  const F4 four = cpu::larger(most.low, most.high);
  return std::max(std::max(four[0], four[1]), std::max(four[2], four[3]));
}

bool any_nan(const float* data, int32_t count) {
  int32_t found = 0;
  for (int32_t i = 0; i < count; ++i) found |= (std::bit_cast<int32_t>(data[i]) & 0x7fffffff) > 0x7f800000 ? 1 : 0;
  return found != 0;
}

// Sum of exp(data - largest).
float sum_of_exp(const float* data, int32_t count, float largest) {
  cpu::F8 sum = {};
  const auto add = [&](cpu::F8 value) {
    sum.low += cpu::fast_exp(value.low - largest);
    sum.high += cpu::fast_exp(value.high - largest);
  };
  int32_t i = 0;
  for (; i + 8 <= count; i += 8) add(cpu::load8(data + i));
  if (i < count) add(cpu::load_part(data + i, count - i, -kInfinity));
  return cpu::add_lanes(sum);
}

// Sum of the weights exp((data - largest) / temperature), exact.
double sum_of_weights(const float* data, int32_t count, float largest, float temperature) {
  double sums[4] = {};
  const auto add = [&](F4 value) {
    float weight[4];
    cpu::store4(weight, rounded_weight(cpu::fast_exp((value - largest) / temperature)));
    for (int lane = 0; lane < 4; ++lane) sums[lane] += weight[lane];
  };
  int32_t i = 0;
  for (; i + 4 <= count; i += 4) add(cpu::load4(data + i));
  if (i < count) add(cpu::load_part(data + i, count - i, -kInfinity).low);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// One row after the passes over blocks.
struct Row {
  const float* logits;
  const SampleParams& params;
  const BlockStats* blocks;
  int32_t block_count;
  int32_t real_vocab;
  Candidate* candidates;  // [real_vocab + Ranking::kPad]
  Candidate* members;     // [real_vocab]
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

  int32_t greedy() const {
    for (int32_t b = 0;; ++b) {
      if (blocks[b].real_largest != real_largest) continue;
      for (int32_t id = b * kBlock;; ++id) {
        if (logits[id] == real_largest) return id;
      }
    }
  }

  // From the columns within `reach` temperatures of the largest logit. -1: more are needed.
  int32_t draw(float reach) const {
    using Prefix = Ranking::Prefix;
    const bool complete = reach >= kRankingReach;  // any other column has weight zero
    const int32_t count = gather(real_largest - reach * params.temperature);
    const Ranking ranking(candidates, count, real_largest, params.temperature, reach, members);
    Prefix kept{real_vocab, real_total};
    const auto keep = [&](const Prefix& prefix) {
      if (prefix.count < kept.count) kept = prefix;
    };
    if (params.top_k > 0) {
      if (count < params.top_k && !complete) return -1;
      keep(ranking.first(params.top_k));
    }
    if (params.top_p < 1) {
      const double share = params.top_p * kept.sum;
      const Prefix prefix = ranking.reaching(share);
      if (prefix.sum < share && !complete) return -1;
      keep(prefix);
    }
    if (params.min_p > 0) {
      const int32_t likely = ranking.count_at_least(params.min_p);
      if (likely == count && !complete) return -1;
      keep(ranking.first(std::max(likely, 1)));
    }
    // Below the sum also where u * sum rounds up to it.
    const double target = std::min(sample_uniform(params.seed, params.counter) * kept.sum, std::nextafter(kept.sum, 0));
    const Prefix chosen = ranking.reaching(std::nextafter(target, kept.sum));
    return chosen.sum > target ? chosen.last : -1;
  }

  int32_t sample() const {
    if (params.temperature <= 0 || params.top_k == 1) return greedy();
    for (float reach = 4;; reach *= 2) {
      const int32_t token = draw(reach);
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
    Candidate* members;
    float* adjusted;
    BlockStats* blocks;
  };

  static Scratch place_scratch(Workspace& workspace, const SampleDesc& desc) {
    const View candidates = workspace.take(DType::kU8, desc.real_vocab + Ranking::kPad, sizeof(Candidate));
    const View members = workspace.take(DType::kU8, desc.real_vocab, sizeof(Candidate));
    const View adjusted = workspace.take(DType::kF32, 1, desc.real_vocab);
    const View blocks = workspace.take(DType::kU8, block_count(desc), sizeof(BlockStats));
    return {static_cast<Candidate*>(candidates.data), static_cast<Candidate*>(members.data),
            static_cast<float*>(adjusted.data), static_cast<BlockStats*>(blocks.data)};
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
    const int32_t all = columns(block, desc_.vocab), real = columns(block, desc_.real_vocab);
    stats.real_largest = largest_of(data, real);
    stats.largest = std::max(stats.real_largest, largest_of(data + real, all - real));
    stats.bad = stats.largest == kInfinity || any_nan(data, all) ? 1 : 0;
  }

  void add_up(const SampleOp::Args& args, int64_t row, int64_t block, const Largest& largest, BlockStats& stats) const {
    if (largest.bad || largest.real == -kInfinity) return;  // finish() reports it
    const float* data = args.logits.row<float>(row) + block * kBlock;
    const SampleParams& params = args.params[row];
    const bool sampled = params.target < 0 && params.temperature > 0 && params.adjustment_count == 0;
    stats.sum = sum_of_exp(data, columns(block, desc_.vocab), largest.all);
    stats.real_sum =
        sampled ? sum_of_weights(data, columns(block, desc_.real_vocab), largest.real, params.temperature) : 0;
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
    Row work{scratch.adjusted,   params,          scratch.blocks, blocks, desc_.real_vocab,
             scratch.candidates, scratch.members, -kInfinity,     0};
    for (int32_t b = 0; b < blocks; ++b) {
      scratch.blocks[b].real_largest = largest_of(scratch.adjusted + b * kBlock, columns(b, desc_.real_vocab));
      work.real_largest = std::max(work.real_largest, scratch.blocks[b].real_largest);
    }
    for (int32_t b = 0; b < blocks && params.temperature > 0; ++b) {
      work.real_total += sum_of_weights(scratch.adjusted + b * kBlock, columns(b, desc_.real_vocab), work.real_largest,
                                        params.temperature);
    }
    return work.sample();
  }

  SampleResult finish(const SampleOp::Args& args, int64_t row, const BlockStats* blocks, char* slot) const {
    Workspace workspace(View(slot, DType::kU8, 1, slot_bytes(desc_)));
    const Scratch scratch = place_scratch(workspace, desc_);
    SampleResult result = {};
    const Largest largest = largest_of_blocks(blocks);
    if (largest.bad || largest.real == -kInfinity) {
      result.numerical_error = 1;
      return result;
    }
    const SampleParams& params = args.params[row];
    CHECK(params.target < desc_.vocab, "target {} of {}", params.target, desc_.vocab);
    Row work{args.logits.row<float>(row),
             params,
             blocks,
             block_count(desc_),
             desc_.real_vocab,
             scratch.candidates,
             scratch.members,
             largest.real,
             0};
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
      result.top_ids[i] = scratch.candidates[i].id;
      result.top_logprobs[i] = static_cast<float>(scratch.candidates[i].logit - log_sum);
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
    .order = [](const SampleDesc&) { return order_id("sample: exact weights; eight lanes, blocks of 1024 columns"); },
    .layout = [](const SampleDesc&) { return LayoutId{nullptr}; },
    .can_run = [](const SampleDesc& desc, const DeviceCaps& caps) -> Refusal {
      if (desc.vocab > kRankingColumns) return fmt::format("more than {} columns", kRankingColumns);
      return refuse_sample(desc, caps);
    },
    .workspace_bytes = workspace_bytes,
    .make = [](const SampleDesc& desc, const Bucket&, const NoWeights&,
               MakeContext&) -> Result<std::unique_ptr<Plan<SampleOp::Args>>> {
      return std::unique_ptr<Plan<SampleOp::Args>>(new CpuPortable(desc));
    }};

}  // namespace assay::ops
