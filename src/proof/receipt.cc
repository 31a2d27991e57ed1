#include "proof/receipt.h"

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "proof/verdict_json.h"

namespace assay::proof {
namespace {

using nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr std::string_view kReceiptKind = "assay receipt", kManifestKind = "assay manifest";

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Error io_error(const std::string& what, const std::string& path) {
  return Error{ErrorKind::kIo, what, path, std::strerror(errno), "", ""};
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
          {"error_over_bound", w.error_over_bound},
          {"milliseconds", w.milliseconds}};
}

ordered_json to_json(const ModelEntry& entry) {
  const ModelVerdict& m = entry.verdict;
  return {
      {"key", hex64(entry.key)}, {"tokens", m.tokens}, {"mean_kl", m.mean_kl},       {"max_kl", m.max_kl},
      {"noise_kl", m.noise_kl},  {"limit", m.limit},   {"cut_tokens", m.cut_tokens}, {"milliseconds", m.milliseconds}};
}

bool same_kernel(const Verdict& a, const Verdict& b) {
  return a.op == b.op && a.desc == b.desc && a.row == b.row && a.bucket == b.bucket;
}
bool same_weight(const WeightVerdict& a, const WeightVerdict& b) {
  return a.hash == b.hash && a.layout == b.layout && a.op == b.op && a.desc == b.desc && a.row == b.row;
}

}  // namespace

uint64_t build_id() {
  static const uint64_t id = [] {
    const auto bytes = read_text("/proc/self/exe");
    return bytes ? hash64(*bytes) : 0;
  }();
  return id;
}

std::string machine_id(const device::DeviceCaps& caps) {
  return fmt::format("{} {} {} threads {} glibc {}{}{}{}", device::backend_name(caps.backend), caps.name, caps.uuid,
                     caps.multiprocessors, gnu_get_libc_version(), caps.cpu.avx2 ? " avx2" : "",
                     caps.cpu.avx512 ? " avx512" : "", caps.cpu.avx512_bf16 ? " avx512_bf16" : "");
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
  const auto text = read_text(path_);
  if (!text) return;
  const auto json = ordered_json::parse(*text, nullptr, false);
  const auto ignore = [&](const std::string& why) { notes.push_back(path_ + ": ignored: " + why); };
  if (json.is_discarded() || !json.is_object()) return ignore("not a receipt, or damaged");
  if (text_of(json, "kind") != kReceiptKind || number_of(json, "schema") != kSchema) {
    return ignore(fmt::format("not a receipt of schema {}", kSchema));
  }
  if (text_of(json, "build") != build_) return ignore("of another build");
  if (text_of(json, "machine") != machine_) return ignore("of another machine: " + text_of(json, "machine"));
  const uint64_t sum =
      hash64(json.value("kernels", ordered_json()).dump() + json.value("weights", ordered_json()).dump() +
             json.value("models", ordered_json()).dump());
  if (text_of(json, "checksum") != hex64(sum)) return ignore("its checksum is wrong");
  for (const ordered_json& entry : json["kernels"]) {
    auto verdict = verdict_from_json(entry);
    if (!verdict || verdict->state != State::kPassed) continue;
    verdict->remembered = true;
    kernels_.push_back({text_of(entry, "effort"), std::move(*verdict)});
  }
  for (const ordered_json& entry : json["weights"]) {
    WeightVerdict w{text_of(entry, "op"),
                    text_of(entry, "desc"),
                    text_of(entry, "row"),
                    text_of(entry, "weight"),
                    text_of(entry, "layout"),
                    0,
                    State::kPassed,
                    "",
                    number_of(entry, "error_over_bound"),
                    number_of(entry, "milliseconds"),
                    true};
    const auto hash = parse_hex64(text_of(entry, "hash"));
    if (!hash) continue;
    w.hash = *hash;
    weights_.push_back(std::move(w));
  }
  for (const ordered_json& entry : json["models"]) {
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
}

const Verdict* Receipt::kernel(const Verdict& wanted, std::string_view effort) const {
  for (const KernelEntry& entry : kernels_) {
    if (entry.effort == effort && same_kernel(entry.verdict, wanted)) return &entry.verdict;
  }
  return nullptr;
}

const WeightVerdict* Receipt::weight(const WeightVerdict& wanted) const {
  for (const WeightVerdict& known : weights_) {
    if (same_weight(known, wanted)) return &known;
  }
  return nullptr;
}

const ModelVerdict* Receipt::model(uint64_t key) const {
  for (const ModelEntry& entry : models_) {
    if (entry.key == key) return &entry.verdict;
  }
  return nullptr;
}

// Only what passed is kept: what failed is tried again at the next start.
void Receipt::add(const Verdict& verdict, std::string_view effort) {
  if (verdict.state != State::kPassed || kernel(verdict, effort) != nullptr) return;
  kernels_.push_back({std::string(effort), verdict});
  changed_ = true;
}

void Receipt::add(const WeightVerdict& verdict) {
  if (verdict.state != State::kPassed || weight(verdict) != nullptr) return;
  weights_.push_back(verdict);
  changed_ = true;
}

void Receipt::add(uint64_t key, const ModelVerdict& verdict) {
  if (verdict.state != State::kPassed || model(key) != nullptr) return;
  models_.push_back({key, verdict});
  changed_ = true;
}

std::string Receipt::text() const {
  ordered_json kernels = ordered_json::array(), weights = ordered_json::array(), models = ordered_json::array();
  for (const KernelEntry& entry : kernels_) {
    ordered_json json = proof::to_json(entry.verdict);
    json["effort"] = entry.effort;
    kernels.push_back(std::move(json));
  }
  for (const WeightVerdict& verdict : weights_) weights.push_back(to_json(verdict));
  for (const ModelEntry& entry : models_) models.push_back(to_json(entry));
  const uint64_t sum = hash64(kernels.dump() + weights.dump() + models.dump());
  ordered_json json{
      {"schema", kSchema}, {"kind", kReceiptKind}, {"build", build_}, {"machine", machine_}, {"checksum", hex64(sum)}};
  json["kernels"] = std::move(kernels);
  json["weights"] = std::move(weights);
  json["models"] = std::move(models);
  return json.dump(1) + "\n";
}

Result<void> Receipt::save() {
  if (directory_.empty() || !changed_) return {};
  std::error_code ignored;
  std::filesystem::create_directories(directory_, ignored);
  const Lock lock(directory_ + "/lock");
  Receipt others;  // what another process wrote since ours was read
  others.path_ = path_;
  others.build_ = build_;
  others.machine_ = machine_;
  std::vector<std::string> notes;
  others.load(notes);
  for (const KernelEntry& entry : others.kernels_) add(entry.verdict, entry.effort);
  for (const WeightVerdict& verdict : others.weights_) add(verdict);
  for (const ModelEntry& entry : others.models_) add(entry.key, entry.verdict);
  ASSAY_TRY(write_atomically(path_, text()));
  changed_ = false;
  return {};
}

ManifestCheck check_manifest(const std::string& directory, const std::string& model_directory,
                             const std::vector<ManifestTensor>& tensors, bool accept, std::vector<std::string>& notes) {
  ManifestCheck check;
  std::error_code ignored;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(model_directory, ignored);
  const std::string published = canonical.string() + "/assay-manifest.json";
  const bool from_publisher = std::filesystem::exists(published, ignored);
  if (!from_publisher && directory.empty()) return check;
  check.path =
      from_publisher ? published : fmt::format("{}/manifest-{}.json", directory, hex64(hash64(canonical.string())));
  std::map<std::string, std::string> known;
  const auto text = read_text(check.path);
  const auto json = text ? ordered_json::parse(*text, nullptr, false) : ordered_json();
  const bool good = json.is_object() && text_of(json, "kind") == kManifestKind &&
                    number_of(json, "schema") == kSchema && json.contains("tensors") && json["tensors"].is_object();
  if (text && !good) notes.push_back(check.path + ": ignored: not a manifest, or damaged");
  if (good && (!accept || from_publisher)) {
    for (const auto& [name, hash] : json["tensors"].items())
      known[name] = hash.is_string() ? hash.get<std::string>() : "";
    for (const ManifestTensor& tensor : tensors) {
      const auto found = known.find(tensor.name);
      if (found == known.end() || found->second != hex64(tensor.hash)) check.changed.push_back(tensor.name);
      if (found != known.end()) known.erase(found);
    }
    for (const auto& [name, hash] : known) check.changed.push_back(name + " (gone)");
    return check;
  }
  if (from_publisher) return check;
  check.first_use = true;
  ordered_json list = ordered_json::object();
  for (const ManifestTensor& tensor : tensors) list[tensor.name] = hex64(tensor.hash);
  const ordered_json manifest{
      {"schema", kSchema}, {"kind", kManifestKind}, {"model", canonical.string()}, {"tensors", list}};
  std::filesystem::create_directories(directory, ignored);
  if (auto written = write_atomically(check.path, manifest.dump(1) + "\n"); !written.ok()) {
    notes.push_back(written.error().message());
  }
  return check;
}

}  // namespace assay::proof
