#include "proof/repro.h"

#include <cstring>
#include <filesystem>
#include <optional>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "proof/chains.h"
#include "proof/receipt.h"
#include "proof/verdict_json.h"

namespace assay::proof {
namespace {

using nlohmann::ordered_json;

std::string to_hex(ConstBytes bytes) {
  std::string text;
  for (std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

bool from_hex(const std::string& text, MutableBytes bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<std::byte>(16 * high + low);
  }
  return true;
}

// A file of a build that had what this one has not.
Error not_here(const std::string& path, const std::string& what) {
  return Error{ErrorKind::kUnsupported, "this build has no such row", path, what, "", ""};
}

Error bad_file(const std::string& path, const std::string& what) {
  return Error{ErrorKind::kInvalidArgument, "not a repro file", path, what, "one that `assay prove` wrote", ""};
}

class One : public KernelSink {
 public:
  explicit One(std::string row) : row_(std::move(row)) {}
  bool wanted(std::string_view, const std::string&, std::string_view row) override { return row == row_; }
  void begin(std::string_view, const std::string&, std::string_view) override {}
  void done(Verdict verdict) override { found = std::move(verdict); }
  std::optional<Verdict> found;

 private:
  std::string row_;
};

// The path, where it could be written.
std::optional<std::string> write_repro(const std::string& directory, const Verdict& v, ConstBytes desc,
                                       const ops::Bucket& bucket, const KernelOptions& options) {
  const ordered_json json{{"schema", 1},
                          {"kind", "assay repro"},
                          {"op", v.op},
                          {"desc", v.desc},
                          {"desc_bytes", to_hex(desc)},
                          {"tokens", bucket.tokens},
                          {"sequences", bucket.sequences},
                          {"outputs", bucket.outputs},
                          {"row", v.row},
                          {"seed", options.seed},
                          {"full", options.full},
                          {"repeats", options.repeats},
                          {"reason", v.reason}};
  const std::string path =
      fmt::format("{}/repro-{}-{}-{:08x}.json", directory, v.op, v.row, static_cast<uint32_t>(hash64(v.desc)));
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  if (!write_atomically(path, json.dump(1) + "\n").ok()) return std::nullopt;
  return path;
}

}  // namespace

std::vector<std::string> write_repros(const std::string& directory, const ops::Instances& instances,
                                      const std::vector<Verdict>& verdicts, const KernelOptions& options) {
  std::vector<std::string> paths;
  ops::for_each_op([&]<class Op>() {
    if constexpr (ops::HasCases<Op>) {
      static_assert(std::is_trivially_copyable_v<typename Op::Desc>);
      for (const DescGroup<Op>& group : groups<Op>(instances)) {
        for (const Verdict& v : verdicts) {
          if (v.op != Op::kName || v.desc != describe(group.desc) || v.state != State::kFailed) continue;
          if (v.reason.starts_with("weights:")) continue;
          if (auto path = write_repro(directory, v, std::as_bytes(std::span(&group.desc, 1)), group.bucket, options)) {
            paths.push_back(std::move(*path));
          }
        }
      }
    }
  });
  return paths;
}

Result<Verdict> run_repro(const std::string& path, device::Device& device) {
  ASSAY_ASSIGN(const std::string text, read_file(path));
  const auto json = ordered_json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return bad_file(path, "not JSON");
  const auto string = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string();
  };
  const auto integer = [&](const char* key) {
    return json.contains(key) && json[key].is_number_integer() ? json[key].get<int64_t>() : int64_t{0};
  };
  if (string("kind") != "assay repro" || integer("schema") != 1) return bad_file(path, "another kind or schema");
  KernelOptions options;
  options.seed = static_cast<uint64_t>(integer("seed"));
  options.full = json.contains("full") && json["full"].is_boolean() && json["full"].get<bool>();
  options.repeats = static_cast<int>(std::clamp<int64_t>(integer("repeats"), 2, 1'000'000));
  options.row_budget_ms = 0;
  const auto bounded = [&](const char* key) {
    return static_cast<int32_t>(std::clamp<int64_t>(integer(key), 1, 1 << 20));
  };
  const ops::Bucket bucket{bounded("tokens"), bounded("sequences"), bounded("outputs")};
  ops::Instances instances;
  ops::CaseWeights weights(device);
  const std::string op = string("op"), desc_text = string("desc"), desc_bytes = string("desc_bytes");
  bool known = false;
  ops::for_each_op([&]<class Op>() {
    if constexpr (ops::HasCases<Op>) {
      typename Op::Desc desc;
      if (op != Op::kName || !from_hex(desc_bytes, std::as_writable_bytes(std::span(&desc, 1)))) return;
      if (describe(desc) != desc_text) return;
      known = true;
      ops::CaseRandom random(options.seed);
      instances.add<Op>({desc, bucket, synthetic(desc, weights, random)});
    }
  });
  if (!known) return not_here(path, "op " + op + ", Desc " + desc_text);
  One one(string("row"));
  prove_kernels(instances, device, weights, options, one);
  if (!one.found) return not_here(path, op + " row " + string("row"));
  if (one.found->state == State::kRefused) {
    return Error{ErrorKind::kUnsupported, "the row does not run here", path, one.found->reason, "", ""};
  }
  return std::move(*one.found);
}

}  // namespace assay::proof
