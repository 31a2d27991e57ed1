// Random serving of pocket with every step run twice: from the same inputs come the same bits. A hundred thousand steps
// on a GPU, where kernels that race would sooner or later differ; a few hundred on a CPU.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "end_to_end/sequence_runner.h"
#include "engine/load.h"
#include "scheduler/scheduler.h"

namespace assay {
namespace {

using engine::Step;
using engine::StepResult;
using engine::TokenSource;

constexpr int32_t kSequences = 16;

std::unique_ptr<engine::LocalEngine> load_pocket() {
  engine::LoadOptions options;
  options.model_directory = "models/pocket";
  options.device = testing::test_device();
  options.max_sequences = kSequences;
  options.max_step_tokens = 256;
  options.context_tokens = 512;
  return engine::load(options).value();
}

scheduler::Request random_request(std::mt19937& random, int32_t vocabulary) {
  scheduler::Request request;
  request.prompt.resize(1 + random() % (random() % 4 == 0 ? 300 : 40));
  for (int32_t& id : request.prompt) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
  request.max_tokens = 1 + static_cast<int32_t>(random() % 200);
  request.temperature = random() % 3 == 0 ? 0.0f : 1.0f;
  request.seed = random();
  return request;
}

// The step as it can run again: what it gave back is poisoned already, and the tokens of the step before are known.
Step again(const Step& step, const StepResult& before) {
  Step copy = step;
  copy.freed_pages.clear();
  copy.freed_slots.clear();
  for (TokenSource& source : copy.tokens) {
    if (source.id < 0) source = TokenSource::literal(before.outputs.at(static_cast<size_t>(source.output)).token);
  }
  return copy;
}

bool same(const StepResult& a, const StepResult& b) {
  return a.outputs.size() == b.outputs.size() && a.sentinel == b.sentinel &&
         std::memcmp(a.outputs.data(), b.outputs.data(), a.outputs.size() * sizeof(ops::SampleResult)) == 0;
}

TEST(Serving, EveryStepTwiceGivesTheSameBits) {
  const int64_t steps = testing::test_device() == "cpu" ? 300 : 100'000;
  const auto engine = load_pocket();
  scheduler::Scheduler scheduler(engine->limits(), kSequences);
  std::mt19937 random(5);
  uint64_t requests = 0;
  int64_t tokens = 0;
  StepResult before;
  for (int64_t done = 0; done < steps; ++done) {
    if (scheduler.open() == 0 || (scheduler.open() < kSequences && random() % 8 == 0)) {
      scheduler.add(++requests, random_request(random, engine->limits().vocab_size));
    }
    const Step* step = scheduler.schedule();
    ASSERT_NE(step, nullptr);
    const Step second = again(*step, before);
    engine->submit(*step);
    const StepResult first = engine->collect();
    engine->submit(second);
    before = engine->collect();
    ASSERT_TRUE(same(first, before)) << "step " << done;
    tokens += static_cast<int64_t>(before.outputs.size());
    scheduler.update(before);
  }
  std::printf("%ld steps, %ld tokens of %lu requests\n", static_cast<long>(steps), static_cast<long>(tokens),
              static_cast<unsigned long>(requests));
}

}  // namespace
}  // namespace assay
