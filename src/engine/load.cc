#include "engine/load.h"

#include <algorithm>
#include <future>
#include <mutex>
#include <utility>

#include "backend/host_link.h"
#include "backend/make_device.h"
#include "base/clock.h"
#include "base/hash.h"
#include "checkpoint/checkpoint_binder.h"
#include "engine/checkpoint_copy.h"
#include "engine/local_engine.h"
#include "engine/sizing.h"
#include "models/make_model.h"
#include "proof/repro.h"
#include "proof/verdict_json.h"

namespace assay::engine {
namespace {

Error bad_option(const std::string& option, const std::string& got, const std::string& wanted) {
  return Error{ErrorKind::kInvalidArgument, "impossible option", option, got, wanted, ""};
}

class Loader {
 public:
  explicit Loader(const LoadOptions& options, ops::OpObserver* observer = nullptr) : options_(options) {
    parts_.observer = observer;
  }

  // The model is for a few steps: a copy of its files into memory would not pay.
  void reads_once() { reads_once_ = true; }

  Result<std::unique_ptr<ObservedEngine>> load() {
    ASSAY_TRY(check_options());
    ASSAY_TRY(open());
    ASSAY_TRY(bind());
    ASSAY_TRY(size());
    if (options_.proof.on) ASSAY_TRY(prove_rows());
    return make_engine();
  }

  Result<proof::Report> prove() {
    ASSAY_TRY(check_options());
    ASSAY_TRY(open());
    ASSAY_TRY(bind());
    ASSAY_TRY(size());
    ASSAY_TRY(prove_rows());
    if (certify_.whole()) {
      keep_pages_of_evidence();
      ASSAY_ASSIGN(const std::unique_ptr<LocalEngine> engine, make_engine());
      return engine->verification();
    }
    return std::move(parts_.report);
  }

  Result<void> visit_instances(const VisitInstances& visit) {
    ASSAY_TRY(check_options());
    ASSAY_TRY(open());
    ASSAY_TRY(bind());
    ASSAY_TRY(size());
    ASSAY_ASSIGN(const ops::Instances instances, collect());
    visit(instances, *parts_.device, *parts_.weights);
    return {};
  }

 private:
  void say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  Result<void> check_options() const {
    if (options_.compute != DType::kBf16 && options_.compute != DType::kF32) {
      return bad_option("compute", std::string(dtype_name(options_.compute)), "BF16 or F32");
    }
    if (options_.max_sequences < 1)
      return bad_option("max_sequences", std::to_string(options_.max_sequences), "at least 1");
    if (options_.max_step_tokens < kPrefillCut) {
      return bad_option("max_step_tokens", std::to_string(options_.max_step_tokens),
                        "at least " + std::to_string(kPrefillCut));
    }
    if (!(options_.memory_utilization > 0 && options_.memory_utilization <= 1)) {
      return bad_option("memory_utilization", fmt::format("{}", options_.memory_utilization), "above 0, at most 1");
    }
    if (options_.context_tokens < 0)
      return bad_option("context_tokens", std::to_string(options_.context_tokens), "above 0");
    if (options_.dummy_layers < 0) return bad_option("dummy_layers", std::to_string(options_.dummy_layers), "above 0");
    return {};
  }

  Result<void> open() {
    ASSAY_ASSIGN(parts_.config, checkpoint::load_text_config(options_.model_directory));
    if (options_.load_format == LoadFormat::kDummy) {
      if (options_.dummy_layers > 0) checkpoint::keep_layers(parts_.config, options_.dummy_layers);
      return {};
    }
    ASSAY_ASSIGN(checkpoint::Checkpoint opened, checkpoint::Checkpoint::open(options_.model_directory));
    parts_.checkpoint = std::make_unique<checkpoint::Checkpoint>(std::move(opened));
    say(fmt::format("{}: {} tensors, {:.1f} MB, {}", options_.model_directory, parts_.checkpoint->tensors().size(),
                    static_cast<double>(parts_.checkpoint->total_bytes()) / 1e6, parts_.config.model_type));
    return {};
  }

  Result<void> bind() {
    ASSAY_ASSIGN(parts_.device, backend::make_device(options_.device, options_.threads));
    device_ = parts_.device.get();
    for (const std::string& line : backend::describe_machine(device_->caps().backend)) say(line);
    parts_.link = backend::make_host_link(*parts_.device);
    parts_.weights = std::make_unique<WeightStore>(*parts_.device);
    parts_.selector = std::make_unique<ops::Selector>();
    for (const auto& [op, row] : options_.forced_rows) ASSAY_TRY(parts_.selector->force(op, row));
    if (options_.load_format == LoadFormat::kDummy) return bind_dummy();
    if (!reads_once_) {
      ASSAY_ASSIGN(parts_.checkpoint_copies,
                   copy_into_memory(*parts_.checkpoint, *parts_.device, options_.memory_utilization));
    }
    ASSAY_ASSIGN(checkpoint::QuantisationHints hints, checkpoint::load_quantisation_hints(options_.model_directory));
    checkpoint::CheckpointBinder binder(*parts_.checkpoint, std::move(hints));
    ASSAY_TRY(bind(binder));
    for (const std::string& note : binder.notes()) say(note);
    return {};
  }

  Result<void> bind_dummy() {
    checkpoint::DummyOptions dummy = options_.dummy;
    dummy.tied_embeddings = parts_.config.tie_embeddings;
    checkpoint::DummyBinder binder(parts_.dummy, dummy);
    ASSAY_TRY(bind(binder));
    say(fmt::format("{}: {:.1f} MB of dummy weights, {}, {} layers", options_.model_directory,
                    static_cast<double>(parts_.dummy.bytes()) / 1e6, parts_.config.model_type,
                    parts_.config.num_layers));
    return {};
  }

  Result<void> bind(checkpoint::Binder& binder) {
    WeightStore& store = *parts_.weights;
    ASSAY_ASSIGN(parts_.model,
                 models::make_model(
                     parts_.config, binder, [&](ops::WeightSource source) { return store.add(std::move(source)); },
                     options_.compute));
    return {};
  }

  Result<void> size() {
    ASSAY_TRY(size_parts(parts_, options_));
    for (const std::string& line : parts_.summary.ledger.table()) say(line);
    return {};
  }

  // What the model will ask of which ops, without making a plan.
  Result<ops::Instances> collect() {
    ops::Instances instances;
    ops::Selector dry;
    dry.collect_into(&instances);
    ops::MakeContext context{parts_.device->caps(), *parts_.weights, dry};
    ASSAY_ASSIGN([[maybe_unused]] const auto forward, parts_.model->plan(bucket(), context));
    ASSAY_ASSIGN([[maybe_unused]] const auto sample,
                 dry.plan<ops::SampleOp>(sample_desc(parts_, options_), bucket(), {}, context));
    return instances;
  }

  // What packed weights may take: what is allowed less what else is known to go there.
  size_t weight_memory_bytes() const {
    const Ledger& ledger = parts_.summary.ledger;
    int64_t other = 0;
    for (const LedgerLine& line : ledger.lines) other += line.what.starts_with("weights") ? 0 : line.bytes;
    return static_cast<size_t>(std::max<int64_t>(ledger.allowed_bytes - other, 1));
  }

  // What the model is proven on: the text it was given, or made-up ids.
  std::vector<int32_t> proof_text() const {
    constexpr size_t kTextTokens = 2 * kPrefillCut + 7;
    std::vector<int32_t> text = options_.proof.text;
    for (int64_t t = 0; text.size() < kTextTokens; ++t) {
      text.push_back(static_cast<int32_t>((t * 7919 + 13) % parts_.limits.vocab_size));
    }
    text.resize(kTextTokens);
    return text;
  }

  Result<void> prove_rows() {
    started_us_ = now_us();
    proof::Report& report = parts_.report;
    certify_ = options_.proof.certify;
    certify_.forced = parts_.selector->forced();
    certify_.progress = [this](const std::string& line) { say(line); };
    certify_.weight_memory_bytes = weight_memory_bytes();
    certify_.text = proof_text();
    parameters_ = parts_.weights->parameters();
    certify_.deeper = [this] { return reference_run().activations; };
    // A device's own rows would be timed beside reference rows of the same device.
    if (certify_.whole() && device_->caps().backend == device::Backend::kCpu) {
      certify_.contact.beside = [this] { reference_run(); };
    }
    if (parts_.checkpoint) {
      const std::vector<proof::ManifestTensor> tensors = manifest_of(*parts_.checkpoint);
      ASSAY_TRY(check_tensors(*parts_.checkpoint, options_.proof, tensors, report));
      for (const proof::ManifestTensor& tensor : tensors) {
        weights_hash_ = hash_fold(hash64(tensor.name, weights_hash_), tensor.hash);
      }
    }
    report.stages.push_back({"tensor hashes", static_cast<double>(now_us() - started_us_) / 1e3});
    receipt_ = proof::Receipt::open(options_.proof.receipt_directory, parts_.device->caps(), report.notes);
    report.receipt_path = receipt_.path();
    report.build = proof::hex64(proof::build_id());
    report.machine = proof::machine_id(parts_.device->caps());
    ASSAY_ASSIGN(const ops::Instances instances, collect());
    proof::Certifier certifier(instances, *parts_.device, *parts_.weights, receipt_, certify_);
    const Result<void> certified = certifier.run(report);
    keep_evidence(report);
    for (const std::string& path :
         proof::write_repros(options_.proof.receipt_directory.empty() ? "." : options_.proof.receipt_directory,
                             instances, report.verdicts, certify_.kernels)) {
      report.notes.push_back("assay repro " + path + " shows the failure again");
    }
    ASSAY_TRY(certified);
    parts_.selector->set_judge(proof::Certifier::judge(report, certify_));
    report.seconds = static_cast<double>(now_us() - started_us_) / 1e6;
    return {};
  }

  // What was seen so far is kept, whatever comes after.
  void keep_evidence(proof::Report& report) {
    const Result<void> saved = receipt_.save();
    if (saved.ok() || report.receipt_path.empty()) return;
    report.notes.push_back(saved.error().message());
    report.receipt_path.clear();
  }

  // Of an engine that serves nobody: pages and slots that the model's evidence uses, and as many that it must not
  // touch.
  void keep_pages_of_evidence() {
    constexpr int32_t kMost = 16;
    EngineLimits& limits = parts_.limits;
    limits.page_count = std::min(limits.page_count, kMost);
    limits.state_slots = std::min(limits.state_slots, kMost);
  }

  Result<std::unique_ptr<ObservedEngine>> make_engine() {
    ASSAY_TRY(make_plans());
    ASSAY_TRY(allocate());
    summarise();
    if (!options_.proof.on) return make_local_engine(std::move(parts_));
    return prove_engine();
  }

  // The engine, with the evidence about the whole model.
  Result<std::unique_ptr<ObservedEngine>> prove_engine() {
    started_us_ = now_us();
    proof::Report report = std::move(parts_.report);
    describe_choice(*parts_.selector, weights_hash_, report);
    ASSAY_ASSIGN(std::unique_ptr<ObservedEngine> engine, make_local_engine(std::move(parts_)));
    ASSAY_TRY(prove_whole(*engine, report));
    keep_evidence(report);
    report.seconds += static_cast<double>(now_us() - started_us_) / 1e6;
    if (!report.proven) report.fingerprint += "-unproven";
    engine->set_verification(std::move(report));
    return engine;
  }

  Result<void> prove_whole(LocalEngine& engine, proof::Report& report) {
    const std::vector<int32_t>& text = certify_.text;
    uint64_t key = hash64(std::as_bytes(std::span(text)), hash64(report.fingerprint, weights_hash_));
    for (const proof::ChosenRow& row : report.chosen) key = hash64(row.op + row.desc + row.row, key);
    if (const proof::ModelVerdict* known = receipt_.model(key)) {
      report.model = *known;
      return {};
    }
    const int64_t start = now_us();
    EngineProbe probe(engine);
    if (!probe.possible()) {
      report.notes.emplace_back("the whole model was not run: steps give too few logits, or there are too few pages");
      return {};
    }
    say("proving the whole model");
    const ReferenceRun& reference = reference_run();
    ASSAY_TRY(reference.failure);
    report.model = proof::prove_model(probe, reference.logits, text);
    if (reference.logits.same.empty())
      report.notes.emplace_back("the model is too large to compare with reference rows as a whole");
    report.stages.push_back({"model", static_cast<double>(now_us() - start) / 1e3});
    receipt_.add(key, report.model);
    if (report.model.state == proof::State::kPassed) return {};
    report.proven = false;
    if (certify_.allow_unproven) return {};
    return Error{ErrorKind::kNumerical,
                 "the model as a whole failed its proof",
                 options_.model_directory,
                 report.model.reason,
                 "",
                 "--explain shows the rows in use; --allow-unproven serves all "
                 "the same"};
  }

  // A short text through the same model on reference rows. Empty where that would take too long.
  struct ReferenceRun {
    proof::ReferenceLogits logits;
    std::vector<std::vector<double>> activations;
    Result<void> failure;
  };

  // Made once, by whoever asks first.
  const ReferenceRun& reference_run() {
    constexpr int64_t kMostParameters = 200'000'000;
    std::call_once(reference_made_, [&] {
      if (parameters_ > kMostParameters) return;
      std::vector<std::vector<double>> unused;
      auto exact = std::async(std::launch::async, [&]() -> Result<std::vector<float>> {
        if (options_.compute == DType::kF32) return std::vector<float>();
        return reference_logits(DType::kF32, unused);
      });
      Result<std::vector<float>> same = reference_logits(options_.compute, reference_.activations);
      Result<std::vector<float>> in_f32 = exact.get();
      for (const auto* result : {&same, &in_f32}) {
        if (!result->ok()) reference_.failure = result->error();
      }
      if (reference_.failure.ok()) reference_.logits = {std::move(same).value(), std::move(in_f32).value()};
    });
    return reference_;
  }

  Result<std::vector<float>> reference_logits(DType compute, std::vector<std::vector<double>>& activations) const {
    constexpr size_t kTokens = 24;
    LoadOptions plain = options_;
    plain.proof = {};
    plain.progress = {};
    plain.compute = compute;
    plain.context_tokens = 2 * kPageTokens;
    plain.max_sequences = 2;
    plain.max_step_tokens = kPrefillCut;
    const device::Backend backend = device_->caps().backend;
    const bool host = backend == device::Backend::kCpu;
    plain.forced_rows = {{"*", host ? "reference" : std::string(device::backend_name(backend)) + "_reference"}};
    Loader own(plain);
    own.reads_once();
    ASSAY_ASSIGN(const auto engine, own.load());
    EngineProbe probe(*engine);
    std::vector<float> logits = probe.logits(std::span(certify_.text).first(kTokens), proof::Arrangement::kWhole);
    activations = probe.activations();
    return logits;
  }

  ops::Bucket bucket() const { return largest_bucket(parts_.limits); }

  Result<void> make_plans() {
    // The proof has packed weights for rows that were not chosen, and may have chosen other rows than the first.
    ASSAY_ASSIGN(const PackingList weights, packing_list(parts_));
    parts_.weights->keep_only(weights);
    write_ledger(parts_, options_, weights);
    ops::MakeContext context{parts_.device->caps(), *parts_.weights, *parts_.selector};
    parts_.selector->set_observer(parts_.observer);
    ASSAY_ASSIGN(parts_.forward, parts_.model->plan(bucket(), context));
    ASSAY_ASSIGN(parts_.sample,
                 parts_.selector->plan<ops::SampleOp>(sample_desc(parts_, options_), bucket(), {}, context));
    say(fmt::format("weights packed: {:.1f} MB", static_cast<double>(parts_.weights->packed_bytes()) / 1e6));
    return {};
  }

  Result<void> allocate() {
    const EngineLimits& limits = parts_.limits;
    device::Device& device = *parts_.device;
    const auto outputs = static_cast<size_t>(limits.max_step_outputs);
    const StepBytes step = step_bytes(parts_, options_);
    ASSAY_ASSIGN(parts_.workspace, device.allocate(static_cast<size_t>(step.workspace)));
    ASSAY_ASSIGN(parts_.state,
                 StateMemory::make(device, parts_.model->state_shape(),
                                   {limits.page_tokens, limits.page_count, limits.state_slots}, options_.compute));
    ASSAY_ASSIGN(parts_.arrays, StepArrays::make(device, *parts_.link, limits));
    ASSAY_ASSIGN(parts_.logits, device.allocate(static_cast<size_t>(step.logits)));
    ASSAY_ASSIGN(parts_.sample_params, device.allocate(outputs * sizeof(ops::SampleParams)));
    ASSAY_ASSIGN(parts_.sample_results, device.allocate(outputs * sizeof(ops::SampleResult)));
    const auto adjustments = static_cast<size_t>(limits.max_step_adjustments);
    ASSAY_ASSIGN(parts_.sample_adjustments, device.allocate(adjustments * sizeof(ops::LogitAdjustment)));
    ASSAY_ASSIGN(parts_.sentinel, device.allocate(static_cast<size_t>(sentinel_bytes(parts_))));
    return {};
  }

  void summarise() {
    ModelSummary& summary = parts_.summary;
    summary.architecture = parts_.config.model_type;
    summary.parameters = parts_.weights->parameters();
    summary.checkpoint_bytes =
        static_cast<int64_t>(parts_.checkpoint ? parts_.checkpoint->total_bytes() : parts_.dummy.bytes());
    summary.packed_bytes = static_cast<int64_t>(parts_.weights->packed_bytes());
    summary.kv_bytes = page_bytes(parts_, options_) * parts_.limits.page_count;
    summary.state_bytes = slot_bytes(parts_, options_) * parts_.limits.state_slots;
    summary.workspace_bytes = static_cast<int64_t>(parts_.workspace.bytes() + parts_.logits.bytes());
    summary.device = parts_.device->caps().name;
    summary.threads = parts_.device->caps().multiprocessors;
  }

  const LoadOptions& options_;
  bool reads_once_ = false;
  EngineParts parts_;
  device::Device* device_ = nullptr;  // of parts_, also once those have gone into an engine
  proof::CertifyOptions certify_;
  proof::Receipt receipt_;
  uint64_t weights_hash_ = 0;  // of all tensors
  int64_t started_us_ = 0;
  int64_t parameters_ = 0;
  std::once_flag reference_made_;
  ReferenceRun reference_;
};

}  // namespace

Result<std::unique_ptr<LocalEngine>> load(const LoadOptions& options) {
  ASSAY_ASSIGN(std::unique_ptr<LocalEngine> engine, load_observed(options, nullptr));
  return engine;
}

Result<std::unique_ptr<ObservedEngine>> load_observed(const LoadOptions& options, ops::OpObserver* observer) {
  return Loader(options, observer).load();
}

Result<proof::Report> prove(const LoadOptions& options) { return Loader(options).prove(); }

Result<void> visit_instances(const LoadOptions& options, const VisitInstances& visit) {
  return Loader(options).visit_instances(visit);
}

Result<void> answer_contact(const LoadOptions& options) {
  return visit_instances(options,
                         [&](const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights) {
                           proof::ContactChild child;
                           proof::prove_kernels(instances, device, weights, options.proof.certify.kernels, child);
                         });
}

}  // namespace assay::engine
