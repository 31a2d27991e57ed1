#include "proof/receipt.h"

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "backend/versions.h"
#include "base/file.h"
#include "base/hash.h"
#include "proof/verdict_json.h"

namespace assay::proof {
namespace {

using nlohmann::ordered_json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kSchema = 2, kManifestSchema = 1;
constexpr std::string_view kReceiptKind = "assay receipt", kManifestKind = "assay manifest";

Error io_error(const std::string& what, const std::string& path) {
  return Error{ErrorKind::kIo, what, path, std::strerror(errno), "", ""};
}

// Nothing where there is no such file.
std::optional<Result<std::string>> text_if_there(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return read_file(path);
}

// Held until destroyed; without one (a read-only directory) work goes on.
class Lock {
 public:
  explicit Lock(const std::string& path) : file_(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
    if (file_ >= 0) flock(file_, LOCK_EX);
  }
  ~Lock() {
    if (file_ >= 0) close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_;
};

// An array of a receipt; empty where there is none.
const ordered_json& list_of(const ordered_json& json, const char* key) {
  static const ordered_json kEmpty = ordered_json::array();
  const auto found = json.find(key);
  return found != json.end() && found->is_array() ? *found : kEmpty;
}

std::string text_of(const ordered_json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

double number_of(const ordered_json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : 0;
}

ordered_json to_json(const WeightVerdict& w) {
  return {{"op", w.op},
          {"desc", w.desc},
          {"row", w.row},
          {"weight", w.weight},
          {"layout", w.layout},
          {"hash", hex64(w.hash)},
          {"verdict", state_name(w.state)},
          {"reason", w.reason},
          {"error_over_bound", std::isfinite(w.error_over_bound) ? ordered_json(w.error_over_bound) : ordered_json()},
          {"milliseconds", w.milliseconds}};
}

ordered_json to_json(const ModelEntry& entry) {
  const ModelVerdict& m = entry.verdict;
  return {
      {"key", hex64(entry.key)}, {"tokens", m.tokens}, {"mean_kl", m.mean_kl},       {"max_kl", m.max_kl},
      {"noise_kl", m.noise_kl},  {"limit", m.limit},   {"cut_tokens", m.cut_tokens}, {"milliseconds", m.milliseconds}};
}

// Of all evidence in a receipt.
std::string checksum(const ordered_json& receipt) {
  std::string all;
  for (const char* list : {"kernels", "weights", "models", "choices"}) {
    all += list_of(receipt, list).dump();
  }
  return hex64(hash64(all));
}

// The first that matches; null: none does.
template <class List, class Matches>
auto first_of(List& list, const Matches& matches) -> decltype(list.data()) {
  const auto found = std::find_if(list.begin(), list.end(), matches);
  return found == list.end() ? nullptr : &*found;
}

bool same_kernel(const Verdict& a, const Verdict& b) {
  return a.op == b.op && a.desc == b.desc && a.row == b.row && a.bucket == b.bucket;
}
bool same_weight(const WeightVerdict& a, const WeightVerdict& b) {
  return a.hash == b.hash && a.layout == b.layout && a.op == b.op && a.desc == b.desc && a.row == b.row;
}

template <class Entry>
bool same_key(const Entry& a, const Entry& b) {
  return a.same_key(b);
}

// In the place of the entry of the same key, if there is one.
template <class Entry, class Same>
void put(std::vector<Entry>& list, Entry entry, const Same& same) {
  if (Entry* known = first_of(list, [&](const Entry& other) { return same(other, entry); })) {
    *known = std::move(entry);
  } else {
    list.push_back(std::move(entry));
  }
}

using Hashes = std::map<std::string, std::string>;  // by tensor

// Nothing where there is no manifest, or none that can be read.
std::optional<Hashes> read_manifest(const std::string& path, std::vector<std::string>& notes) {
  const auto text = text_if_there(path);
  if (!text) return std::nullopt;
  const auto json = text->ok() ? ordered_json::parse(**text, nullptr, false) : ordered_json();
  if (text_of(json, "kind") != kManifestKind || number_of(json, "schema") != kManifestSchema ||
      !json.contains("tensors") || !json["tensors"].is_object()) {
    notes.push_back(path + ": ignored: not a manifest, or damaged");
    return std::nullopt;
  }
  Hashes hashes;
  for (const auto& [name, hash] : json["tensors"].items()) {
    hashes[name] = hash.is_string() ? hash.get<std::string>() : "";
  }
  return hashes;
}

std::vector<std::string> differences(Hashes known, const std::vector<ManifestTensor>& tensors) {
  std::vector<std::string> changed;
  for (const ManifestTensor& tensor : tensors) {
    const auto found = known.find(tensor.name);
    if (found == known.end() || found->second != hex64(tensor.hash)) changed.push_back(tensor.name);
    if (found != known.end()) known.erase(found);
  }
  for (const auto& [name, hash] : known) changed.push_back(name + " (gone)");
  return changed;
}

}  // namespace

uint64_t build_id() {
  static const uint64_t id = [] {
    const auto bytes = read_file("/proc/self/exe");
    return bytes.ok() ? hash64(*bytes) : 0;
  }();
  return id;
}

std::string machine_id(const device::DeviceCaps& caps) {
  return fmt::format("{} {} {} threads {} {} glibc {}{}{}{}", device::backend_name(caps.backend), caps.name, caps.uuid,
                     caps.multiprocessors, backend::versions_below(caps.backend), gnu_get_libc_version(),
                     caps.cpu.avx2 ? " avx2" : "", caps.cpu.avx512 ? " avx512" : "",
                     caps.cpu.avx512_bf16 ? " avx512_bf16" : "");
}

std::string default_receipt_directory() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/assay";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/assay";
  return "";
}

Result<void> write_atomically(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  const int file = open(temporary.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return io_error("cannot write", temporary);
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  const bool good = done == text.size() && fsync(file) == 0;
  close(file);
  if (good && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  Error error = io_error("cannot write", path);
  unlink(temporary.c_str());
  return error;
}

Receipt Receipt::open(const std::string& directory, const device::DeviceCaps& caps, std::vector<std::string>& notes) {
  Receipt receipt;
  receipt.build_ = hex64(build_id());
  receipt.machine_ = machine_id(caps);
  if (directory.empty()) return receipt;
  receipt.directory_ = directory;
  receipt.path_ = fmt::format("{}/receipt-{}-{}.json", directory, receipt.build_, hex64(hash64(receipt.machine_)));
  receipt.load(notes);
  return receipt;
}

void Receipt::load(std::vector<std::string>& notes) {
  const auto text = text_if_there(path_);
  if (!text) return;
  const auto json = text->ok() ? ordered_json::parse(**text, nullptr, false) : ordered_json();
  const auto ignore = [&](const std::string& why) { notes.push_back(path_ + ": ignored: " + why); };
  if (json.is_discarded() || !json.is_object()) return ignore("not a receipt, or damaged");
  if (text_of(json, "kind") != kReceiptKind || number_of(json, "schema") != kSchema) {
    return ignore(fmt::format("not a receipt of schema {}", kSchema));
  }
  if (text_of(json, "build") != build_) return ignore("of another build");
  if (text_of(json, "machine") != machine_) return ignore("of another machine: " + text_of(json, "machine"));
  if (text_of(json, "checksum") != checksum(json)) return ignore("its checksum is wrong");
  for (const ordered_json& entry : list_of(json, "kernels")) {
    auto verdict = verdict_from_json(entry);
    if (!verdict || (verdict->state != State::kPassed && verdict->state != State::kFailed)) continue;
    verdict->remembered = true;
    kernels_.push_back({text_of(entry, "effort"), std::move(*verdict)});
  }
  for (const ordered_json& entry : list_of(json, "weights")) {
    const auto hash = parse_hex64(text_of(entry, "hash"));
    if (!hash) continue;
    const bool passed = text_of(entry, "verdict") == state_name(State::kPassed);
    weights_.push_back({.op = text_of(entry, "op"),
                        .desc = text_of(entry, "desc"),
                        .row = text_of(entry, "row"),
                        .weight = text_of(entry, "weight"),
                        .layout = text_of(entry, "layout"),
                        .hash = *hash,
                        .state = passed ? State::kPassed : State::kFailed,
                        .reason = text_of(entry, "reason"),
                        .error_over_bound = passed ? number_of(entry, "error_over_bound") : kInfinity,
                        .milliseconds = number_of(entry, "milliseconds"),
                        .remembered = true});
  }
  for (const ordered_json& entry : list_of(json, "models")) {
    const auto key = parse_hex64(text_of(entry, "key"));
    if (!key) continue;
    ModelVerdict m;
    m.run = m.remembered = true;
    m.tokens = static_cast<int32_t>(number_of(entry, "tokens"));
    m.mean_kl = number_of(entry, "mean_kl");
    m.max_kl = number_of(entry, "max_kl");
    m.noise_kl = number_of(entry, "noise_kl");
    m.limit = number_of(entry, "limit");
    m.cut_tokens = static_cast<int32_t>(number_of(entry, "cut_tokens"));
    m.milliseconds = number_of(entry, "milliseconds");
    models_.push_back({*key, m});
  }
  for (const ordered_json& entry : list_of(json, "choices")) {
    const auto count = [&](const char* key) { return static_cast<int32_t>(number_of(entry, key)); };
    choices_.push_back({text_of(entry, "op"),
                        text_of(entry, "desc"),
                        {count("tokens"), count("sequences"), count("outputs")},
                        text_of(entry, "row")});
  }
}

bool Receipt::KernelEntry::same_key(const KernelEntry& other) const {
  return effort == other.effort && same_kernel(verdict, other.verdict);
}

const Verdict* Receipt::kernel(const Verdict& wanted, std::string_view effort) const {
  const KernelEntry* entry = first_of(
      kernels_, [&](const KernelEntry& known) { return known.effort == effort && same_kernel(known.verdict, wanted); });
  return entry == nullptr ? nullptr : &entry->verdict;
}

const WeightVerdict* Receipt::weight(const WeightVerdict& wanted) const {
  return first_of(weights_, [&](const WeightVerdict& known) { return same_weight(known, wanted); });
}

const ModelVerdict* Receipt::model(uint64_t key) const {
  const ModelEntry* entry = first_of(models_, [&](const ModelEntry& known) { return known.key == key; });
  return entry == nullptr ? nullptr : &entry->verdict;
}

std::string Receipt::choice(std::string_view op, std::string_view desc, const ops::Bucket& bucket) const {
  const ChoiceEntry wanted{std::string(op), std::string(desc), bucket, ""};
  const ChoiceEntry* entry = first_of(choices_, [&](const ChoiceEntry& known) { return known.same_key(wanted); });
  return entry == nullptr ? "" : entry->row;
}

void Receipt::add(const Verdict& verdict, std::string_view effort) {
  const bool ran = verdict.state == State::kPassed || verdict.state == State::kFailed;
  if (!ran || verdict.untried || verdict.remembered) return;
  const bool retried = [&] {
    const Verdict* known = kernel(verdict, effort);
    return known != nullptr && known->state == State::kFailed;
  }();
  put(kernels_, KernelEntry{std::string(effort), verdict, true, retried}, same_key<KernelEntry>);
  changed_ = true;
}

void Receipt::add(const WeightVerdict& verdict) {
  if (verdict.remembered) return;
  put(weights_, verdict, same_weight);
  changed_ = true;
}

// A model that failed is tried again: its parts have passed, so the next start may choose others.
void Receipt::add(uint64_t key, const ModelVerdict& verdict) {
  if (verdict.state != State::kPassed || model(key) != nullptr) return;
  models_.push_back({key, verdict});
  changed_ = true;
}

void Receipt::add_choice(std::string_view op, std::string_view desc, const ops::Bucket& bucket, std::string_view row) {
  if (choice(op, desc, bucket) == row) return;
  put(choices_, ChoiceEntry{std::string(op), std::string(desc), bucket, std::string(row)}, same_key<ChoiceEntry>);
  changed_ = true;
}

std::string Receipt::text() const {
  ordered_json kernels = ordered_json::array(), weights = ordered_json::array(), models = ordered_json::array(),
               choices = ordered_json::array();
  for (const KernelEntry& entry : kernels_) {
    ordered_json json = proof::to_json(entry.verdict);
    json["effort"] = entry.effort;
    kernels.push_back(std::move(json));
  }
  for (const WeightVerdict& verdict : weights_) weights.push_back(to_json(verdict));
  for (const ModelEntry& entry : models_) models.push_back(to_json(entry));
  for (const ChoiceEntry& entry : choices_) {
    choices.push_back({{"op", entry.op},
                       {"desc", entry.desc},
                       {"tokens", entry.bucket.tokens},
                       {"sequences", entry.bucket.sequences},
                       {"outputs", entry.bucket.outputs},
                       {"row", entry.row}});
  }
  ordered_json json{
      {"schema", kSchema}, {"kind", kReceiptKind}, {"build", build_}, {"machine", machine_}, {"checksum", ""}};
  json["kernels"] = std::move(kernels);
  json["weights"] = std::move(weights);
  json["models"] = std::move(models);
  json["choices"] = std::move(choices);
  json["checksum"] = checksum(json);
  return json.dump(1) + "\n";
}

// What others wrote since this was read. Of one row a failure outweighs a pass, unless this process knew of the failure
// and tried again.
void Receipt::merge(const Receipt& others) {
  for (const KernelEntry& theirs : others.kernels_) {
    const KernelEntry* ours = first_of(kernels_, [&](const KernelEntry& known) { return known.same_key(theirs); });
    const bool failed_there = theirs.verdict.state == State::kFailed;
    if (ours == nullptr || !ours->own || (failed_there && !ours->retried)) put(kernels_, theirs, same_key<KernelEntry>);
  }
  for (const WeightVerdict& theirs : others.weights_) {
    if (weight(theirs) == nullptr) weights_.push_back(theirs);
  }
  for (const ModelEntry& theirs : others.models_) {
    if (model(theirs.key) == nullptr) models_.push_back(theirs);
  }
  for (const ChoiceEntry& theirs : others.choices_) {
    if (choice(theirs.op, theirs.desc, theirs.bucket).empty()) choices_.push_back(theirs);
  }
}

Result<void> Receipt::save() {
  if (directory_.empty() || !changed_) return {};
  std::error_code ignored;
  std::filesystem::create_directories(directory_, ignored);
  const Lock lock(directory_ + "/lock");
  Receipt others;
  others.path_ = path_;
  others.build_ = build_;
  others.machine_ = machine_;
  std::vector<std::string> notes;
  others.load(notes);
  merge(others);
  ASSAY_TRY(write_atomically(path_, text()));
  changed_ = false;
  return {};
}

ManifestCheck check_manifest(const std::string& directory, const std::string& model_directory,
                             const std::vector<ManifestTensor>& tensors, bool accept, std::vector<std::string>& notes) {
  std::error_code ignored;
  const std::string model = std::filesystem::weakly_canonical(model_directory, ignored).string();
  ManifestCheck check;
  check.path = model + "/assay-manifest.json";
  std::optional<Hashes> known = read_manifest(check.path, notes);
  if (!known) {
    if (directory.empty()) return {};
    check.path = fmt::format("{}/manifest-{}.json", directory, hex64(hash64(model)));
    if (!accept) known = read_manifest(check.path, notes);
  }
  if (known) {
    check.changed = differences(std::move(*known), tensors);
    return check;
  }
  ordered_json list = ordered_json::object();
  for (const ManifestTensor& tensor : tensors) list[tensor.name] = hex64(tensor.hash);
  const ordered_json manifest{
      {"schema", kManifestSchema}, {"kind", kManifestKind}, {"model", model}, {"tensors", list}};
  std::filesystem::create_directories(directory, ignored);
  if (auto written = write_atomically(check.path, manifest.dump(1) + "\n"); !written.ok()) {
    notes.push_back(written.error().message());
    return {};
  }
  check.first_use = true;
  return check;
}

}  // namespace assay::proof
