// Damaged safetensors files and indices.
#include "damage/damage.h"

namespace assay::damage {
namespace {

constexpr char kFile[] = "model.safetensors";

// A safetensors file taken apart.
struct Parts {
  ordered_json header;  // without __metadata__
  std::string data;

  explicit Parts(const std::string& bytes) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    header = ordered_json::parse(bytes.substr(sizeof(length), length));
    header.erase("__metadata__");
    data = bytes.substr(sizeof(length) + length);
  }
  std::string bytes() const { return checkpoint::testing::safetensors_bytes(header.dump(), data); }
  std::string with(const std::string& tensor, const std::string& field, ordered_json value) const {
    Parts changed = *this;
    changed.header[tensor][field] = std::move(value);
    return changed.bytes();
  }
  size_t begin(const std::string& tensor) const { return header[tensor]["data_offsets"][0].get<size_t>(); }
  size_t end(const std::string& tensor) const { return header[tensor]["data_offsets"][1].get<size_t>(); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : header.items()) names.push_back(name);
    return names;
  }
};

bool may_be_missing(const std::string& tensor) {
  return tensor.ends_with(".input_scale") || tensor.ends_with(".k_scale") || tensor.ends_with(".v_scale");
}

class Safetensors : public ::testing::TestWithParam<std::string> {
 protected:
  Safetensors() : damaged_(golden(GetParam()), load_engine), parts_(damaged_.bytes(kFile)) {}

  void refuse(const std::string& what, const std::string& bytes, const std::vector<std::string>& wanted) {
    damaged_.refuse(GetParam() + ", " + what, kFile, bytes, wanted);
  }
  void refuse_field(const std::string& tensor, const std::string& field, const ordered_json& value) {
    refuse(tensor + " " + field + " " + value.dump(), parts_.with(tensor, field, value), {kFile, tensor});
  }

  Damaged damaged_;
  const Parts parts_;
};

TEST_P(Safetensors, TruncatedAtEveryBoundary) {
  const std::string& whole = damaged_.bytes(kFile);
  const size_t data_begin = whole.size() - parts_.data.size();
  for (size_t length = 0; length < data_begin; length += length < 32 ? 1 : 37) {
    refuse("cut in the header at " + std::to_string(length), whole.substr(0, length), {kFile});
  }
  for (const std::string& tensor : parts_.names()) {
    for (const size_t end : {parts_.begin(tensor), parts_.begin(tensor) + 1, parts_.end(tensor) - 1}) {
      // The message names one of the tensors that are not whole any more, and by how much the file is short.
      refuse("cut in " + tensor, whole.substr(0, data_begin + end),
             {kFile, "tensor data lies outside the file", std::to_string(end)});
    }
  }
}

TEST_P(Safetensors, LiesAboutOneTensor) {
  for (const std::string& tensor : parts_.names()) {
    const auto size = static_cast<int64_t>(parts_.data.size());
    const auto begin = static_cast<int64_t>(parts_.begin(tensor)), end = static_cast<int64_t>(parts_.end(tensor));
    for (const char* dtype : {"I16", "bf16", "", "F4", "F8_E5M2"}) refuse_field(tensor, "dtype", dtype);
    for (const ordered_json& value : {ordered_json(7), ordered_json(nullptr), ordered_json::array()}) {
      refuse_field(tensor, "dtype", value);
      if (!value.is_array()) refuse_field(tensor, "shape", value);
      refuse_field(tensor, "data_offsets", value);
    }
    for (const ordered_json& offsets :
         {ordered_json({begin, size + 1}), ordered_json({size, size + end - begin}), ordered_json({end, begin}),
          ordered_json({begin, end - 1}), ordered_json({begin, end, end}), ordered_json({-1, end}),
          ordered_json({begin, 18446744073709551615u}), ordered_json({begin, 9223372036854775808u}),
          ordered_json({begin, "end"}), ordered_json({begin + 0.5, end})}) {
      refuse_field(tensor, "data_offsets", offsets);
    }
    for (const ordered_json& shape : {ordered_json({9223372036854775808u}), ordered_json({4611686018427387904, 4}),
                                      ordered_json({-1}), ordered_json({1.5}), ordered_json({"1"}), ordered_json({0}),
                                      ordered_json({3, 65537, 65537, 65537, 65537}), ordered_json({end - begin + 1})}) {
      refuse_field(tensor, "shape", shape);
    }
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      Parts changed = parts_;
      changed.header[tensor].erase(field);
      refuse(tensor + " without " + field, changed.bytes(), {kFile, tensor, "incomplete"});
    }
    for (const ordered_json& entry :
         {ordered_json(nullptr), ordered_json(3), ordered_json("x"), ordered_json({1, 2})}) {
      Parts changed = parts_;
      changed.header[tensor] = entry;
      refuse(tensor + " is " + entry.dump(), changed.bytes(), {kFile, tensor, "not an object"});
    }
  }
}

TEST_P(Safetensors, WrongShapesAndTypes) {
  for (const std::string& tensor : parts_.names()) {
    ordered_json shape = parts_.header[tensor]["shape"];
    shape.push_back(1);
    if (shape.size() == 1) shape.push_back(1);  // a scalar may be [] or [1]
    refuse_field(tensor, "shape", shape);
    ordered_json turned = parts_.header[tensor]["shape"];
    std::reverse(turned.begin(), turned.end());
    if (turned != parts_.header[tensor]["shape"]) refuse_field(tensor, "shape", turned);
    const std::string dtype = parts_.header[tensor]["dtype"];
    if (dtype == "F32") refuse_field(tensor, "dtype", "I32");
    if (dtype == "U8") refuse_field(tensor, "dtype", "I8");
    if (dtype == "F8_E4M3") refuse_field(tensor, "dtype", "BOOL");
  }
}

TEST_P(Safetensors, MissingExtraAndRenamedTensors) {
  for (const std::string& tensor : parts_.names()) {
    Parts more = parts_;
    more.header[tensor + "_extra"] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
    refuse("an extra " + tensor, more.bytes(), {tensor + "_extra", "does not use"});
    if (may_be_missing(tensor)) continue;
    Parts less = parts_;
    less.header.erase(tensor);
    refuse("no " + tensor, less.bytes(), {tensor, "missing"});
    Parts renamed = less;
    renamed.header["x." + tensor] = parts_.header[tensor];
    refuse("renamed " + tensor, renamed.bytes(), {tensor, "missing"});
  }
}

TEST_P(Safetensors, OverlapsAndDuplicates) {
  const std::vector<std::string> names = parts_.names();
  for (const std::string& tensor : names) {
    Parts doubled = parts_;
    std::string header = doubled.header.dump();
    header.insert(1, ordered_json(tensor).dump() + ":" + doubled.header[tensor].dump() + ",");
    refuse("two of " + tensor, checkpoint::testing::safetensors_bytes(header, doubled.data),
           {kFile, tensor, "appears twice"});
    const auto size = static_cast<int64_t>(parts_.end(tensor) - parts_.begin(tensor));
    // Over the first bytes of the file, or of what follows if it is the first itself.
    const int64_t begin = parts_.begin(tensor) == 0 ? 1 : 0;
    refuse(tensor + " overlaps", parts_.with(tensor, "data_offsets", {begin, begin + size}), {kFile, "overlaps"});
  }
}

// One element of a tensor replaced by these bytes.
std::string with_value(const Parts& parts, const std::string& tensor, size_t at, std::string_view value) {
  Parts changed = parts;
  changed.data.replace(parts.begin(tensor) + at, value.size(), value);
  return changed.bytes();
}

template <class T>
std::string_view view_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

TEST_P(Safetensors, BadValues) {
  for (const std::string& tensor : parts_.names()) {
    const std::string dtype = parts_.header[tensor]["dtype"];
    const size_t bytes = parts_.end(tensor) - parts_.begin(tensor);
    if (dtype == "F8_E4M3") {
      for (const uint8_t byte : {0x7f, 0xff, 0x80, 0xb8}) {
        for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
          refuse(tensor + " holds a bad scale", with_value(parts_, tensor, at, view_of(byte)),
                 {kFile, tensor, "scale"});
        }
      }
    }
    if (tensor.ends_with("_scale_2") || tensor.ends_with(".input_scale") || tensor.ends_with(".k_scale")) {
      for (const float value : {NAN, INFINITY, 0.0f, -1.0f, -0.0f, -INFINITY}) {
        refuse(tensor + " is " + std::to_string(value), with_value(parts_, tensor, 0, view_of(value)),
               {kFile, tensor, "positive"});
      }
    }
    const bool vector = tensor.find("norm") != std::string::npos || tensor.ends_with("A_log") ||
                        tensor.ends_with("dt_bias") || tensor.find("conv1d") != std::string::npos;
    if (!vector) continue;
    for (const size_t at : {size_t{0}, bytes - 4}) {
      for (const float value : {NAN, INFINITY}) {
        // bf16 of these is the upper half; in F16 both halves are NaNs or infinite enough.
        const uint32_t bits = std::bit_cast<uint32_t>(value) | std::bit_cast<uint32_t>(value) >> 16;
        refuse(tensor + " is not finite", with_value(parts_, tensor, at, view_of(bits)), {kFile, tensor, "finite"});
      }
    }
  }
}

TEST_P(Safetensors, LiesAboutTheHeader) {
  const std::string& whole = damaged_.bytes(kFile);
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{whole.size() - 7},
                                uint64_t{100'000'001}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
    refuse("header of " + std::to_string(length), std::string(view_of(length)) + whole.substr(8), {kFile});
  }
  for (const std::string& header :
       {std::string("[]"), std::string("null"), std::string("{"), std::string("{\"a\":}"), std::string("\0\0", 2),
        std::string("{\"\xff\":1}"), deep_json(200), deep_json(1'000'000), std::string(1'000'000, '['),
        std::string("{\"a\":{\"dtype\":\"F32\"}}")}) {
    refuse("header " + header.substr(0, 30), checkpoint::testing::safetensors_bytes(header, parts_.data), {kFile});
  }
}

INSTANTIATE_TEST_SUITE_P(Damage, Safetensors, ::testing::Values("dense_gates_nvfp4", "moe_fused_bf16"),
                         [](const auto& info) { return info.param; });

// Matrices that run as one must be of one format; F16 and BF16 have the same size.
TEST(Formats, MixedInOneWeight) {
  Damaged damaged(golden("moe_fused_bf16"), load_engine);
  const Parts parts(damaged.bytes(kFile));
  for (const char* tensor : {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                             "model.layers.0.self_attn.v_proj.weight", "model.layers.1.linear_attn.in_proj_z.weight",
                             "model.layers.1.linear_attn.in_proj_a.weight",
                             "model.layers.0.mlp.shared_expert.up_proj.weight", "model.layers.0.mlp.experts.down_proj",
                             "model.layers.1.mlp.gate.weight", "model.layers.1.mlp.shared_expert_gate.weight"}) {
    damaged.refuse(tensor, kFile, parts.with(tensor, "dtype", "F16"), {tensor, "two formats", "f16", "bf16"});
  }
}

TEST(Index, LiesAboutShards) {
  constexpr char kIndex[] = "model.safetensors.index.json";
  Damaged damaged(golden("moe_wrapped_sharded"), load_engine);
  const ordered_json index = damaged.json(kIndex);
  const auto with = [&](const std::string& tensor, const ordered_json& file) {
    ordered_json changed = index;
    changed["weight_map"][tensor] = file;
    return changed.dump();
  };
  int at = 0;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (++at % 7 != 0) continue;
    const auto refuse = [&](const ordered_json& to, const std::vector<std::string>& wanted) {
      damaged.refuse(tensor + " in " + to.dump(), kIndex, with(tensor, to), wanted);
    };
    refuse("absent.safetensors", {"absent.safetensors", tensor, "missing"});
    refuse(file == "model-00001-of-00003.safetensors" ? "model-00002-of-00003.safetensors"
                                                      : "model-00001-of-00003.safetensors",
           {".safetensors", tensor});
    refuse(3, {kIndex, tensor});
    refuse(nullptr, {kIndex, tensor});
    refuse("../" + file.get<std::string>(), {kIndex, tensor, "plain file name"});
    refuse("/etc/passwd", {kIndex, tensor, "plain file name"});
    refuse("", {kIndex, tensor});
    refuse("..", {tensor});
    ordered_json less = index;
    less["weight_map"].erase(tensor);
    damaged.refuse(tensor + " not in the index", kIndex, less.dump(), {tensor, "not in the index"});
    damaged.refuse("one too many in the index", kIndex, with(tensor + "_more", file), {tensor + "_more", "missing"});
  }
  for (const char* shard : {"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"}) {
    damaged.refuse(std::string("without ") + shard, shard, std::nullopt, {shard, "missing"});
    const std::string& bytes = damaged.bytes(shard);
    for (size_t length = 0; length < bytes.size(); length += bytes.size() / 16 + 1) {
      damaged.refuse(std::string("cut ") + shard, shard, bytes.substr(0, length), {shard});
    }
  }
  damaged.refuse("no index", kIndex, std::nullopt, {"no weights found"});
  for (const char* text : {"", "{}", "[]", "{\"weight_map\":[]}", "{\"weight_map\":null}", "{\"weight_map\":{}}"}) {
    damaged.refuse(std::string("index ") + text, kIndex, text, {});
  }
  const std::string text = index.dump();
  for (size_t length = 0; length < text.size(); length += 97) {
    damaged.refuse("cut index", kIndex, text.substr(0, length), {kIndex});
  }
  std::printf("%d damaged indices and shards\n", damaged.count());
  EXPECT_GE(damaged.count(), 250);
}

}  // namespace
}  // namespace assay::damage
