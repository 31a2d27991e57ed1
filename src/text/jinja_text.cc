// Values as text: str, repr and JSON.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <utf8proc.h>

#include "text/jinja_value.h"
#include "text/utf8.h"

namespace assay::text::jinja {
namespace {

bool is_printable(char32_t code) {
  if (code == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

void append_repr(std::string& out, std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos, twice = text.find('"') != std::string_view::npos;
  const char quote = single && !twice ? '"' : '\'';
  out += quote;
  for (size_t i = 0; i < text.size();) {
    const Decoded c = decode_utf8(text, i);
    const auto code = static_cast<uint32_t>(c.code_point);
    if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (code == '\\' || code == static_cast<uint32_t>(quote)) {
      (out += '\\') += static_cast<char>(code);
    } else if (is_printable(c.code_point)) {
      out.append(text.substr(i, c.length));
    } else {
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
    i += c.length;
  }
  out += quote;
}

// Writes containers element by element; every element is charged, so shared parts cannot multiply without bound.
class Writer {
 public:
  explicit Writer(Runtime& runtime) : runtime_(runtime) {}
  virtual ~Writer() = default;

  std::string take() { return std::move(out_); }

 protected:
  void charge() {
    runtime_.work(1);
    if (out_.size() > charged_) {
      runtime_.scan(out_.size() - charged_);
      charged_ = out_.size();
      if (charged_ > Runtime::kMaxBytes) fail("the template makes too much text");
    }
  }

  Runtime& runtime_;
  std::string out_;
  size_t charged_ = 0;
};

class ReprWriter : public Writer {
 public:
  using Writer::Writer;

  void write(const Value& value) {
    charge();
    switch (value.type) {
      case Type::kUndefined:
        out_ += "Undefined";
        break;
      case Type::kNone:
        out_ += "None";
        break;
      case Type::kBool:
        out_ += value.boolean ? "True" : "False";
        break;
      case Type::kInt:
        out_ += fmt::format("{}", value.integer);
        break;
      case Type::kFloat:
        out_ += float_repr(value.real);
        break;
      case Type::kString:
        append_repr(out_, value.text);
        break;
      case Type::kList:
        write_list(*value.list);
        break;
      case Type::kDict:
        write_dict(*value.dict);
        break;
      default:
        out_ += fmt::format("<{}>", type_name(value));
        break;
    }
  }

 private:
  void write_list(const List& list) {
    if (list.kind == ListKind::kGenerator) {
      out_ += "<generator>";
      return;
    }
    const Runtime::Deeper deeper(runtime_);
    const bool tuple = list.kind == ListKind::kTuple;
    out_ += list.kind == ListKind::kView ? "dict_view([" : tuple ? "(" : "[";
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += ", ";
      write(list.items[i]);
    }
    if (tuple && list.items.size() == 1) out_ += ',';
    out_ += list.kind == ListKind::kView ? "])" : tuple ? ")" : "]";
  }

  void write_dict(const Dict& dict) {
    const Runtime::Deeper deeper(runtime_);
    out_ += '{';
    for (size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) out_ += ", ";
      write(dict.entries[i].first);
      out_ += ": ";
      write(dict.entries[i].second);
    }
    out_ += '}';
  }
};

class JsonWriter : public Writer {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : Writer(runtime), style_(style) {}

  void write(const Value& value) {
    charge();
    switch (value.type) {
      case Type::kNone:
        out_ += "null";
        break;
      case Type::kBool:
        out_ += value.boolean ? "true" : "false";
        break;
      case Type::kInt:
        out_ += fmt::format("{}", value.integer);
        break;
      case Type::kFloat:
        out_ += number(value.real);
        break;
      case Type::kString:
        write_text(value.text);
        break;
      case Type::kDict:
        write_dict(*value.dict);
        break;
      case Type::kList:
        if (value.list->kind <= ListKind::kTuple) {
          write_list(*value.list);
          break;
        }
        [[fallthrough]];
      default:
        fail(fmt::format("a value of type {} has no JSON form", type_name(value)));
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_repr(value);
  }

  void write_text(std::string_view text) {
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      const Decoded c = decode_utf8(text, i);
      write_code_point(static_cast<uint32_t>(c.code_point));
      i += c.length;
    }
    out_ += '"';
  }

  void write_code_point(uint32_t code) {
    switch (code) {
      case '"':
        out_ += "\\\"";
        return;
      case '\\':
        out_ += "\\\\";
        return;
      case '\n':
        out_ += "\\n";
        return;
      case '\r':
        out_ += "\\r";
        return;
      case '\t':
        out_ += "\\t";
        return;
      case '\b':
        out_ += "\\b";
        return;
      case '\f':
        out_ += "\\f";
        return;
      default:
        break;
    }
    if (code >= 0x20 && (code < 0x7F || !style_.ensure_ascii)) {
      append_utf8(out_, code);
    } else if (code < 0x10000) {
      out_ += code == 0x7F ? "\x7F" : fmt::format("\\u{:04x}", code);
    } else {
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
    }
  }

  void break_line(int depth) {
    if (style_.indent >= 0) {
      out_ += '\n';
      out_.append(static_cast<size_t>(style_.indent) * depth, ' ');
    }
  }

  void write_list(const List& list) {
    if (list.items.empty()) {
      out_ += "[]";
      return;
    }
    const Runtime::Deeper deeper(runtime_);
    out_ += '[';
    ++depth_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      break_line(depth_);
      write(list.items[i]);
    }
    break_line(--depth_);
    out_ += ']';
  }

  void write_dict(const Dict& dict) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    const Runtime::Deeper deeper(runtime_);
    auto entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto& a, const auto& b) { return compare(runtime_, a.first, b.first) < 0; });
    }
    out_ += '{';
    ++depth_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      break_line(depth_);
      write_key(entries[i].first);
      out_ += style_.key_separator;
      write(entries[i].second);
    }
    break_line(--depth_);
    out_ += '}';
  }

  void write_key(const Value& key) {
    switch (key.type) {
      case Type::kString:
        write_text(key.text);
        break;
      case Type::kNone:
        write_text("null");
        break;
      case Type::kBool:
        write_text(key.boolean ? "true" : "false");
        break;
      case Type::kInt:
        write_text(fmt::format("{}", key.integer));
        break;
      case Type::kFloat:
        write_text(number(key.real));
        break;
      default:
        fail(fmt::format("a key of type {} has no JSON form", type_name(key)));
    }
  }

  const JsonStyle& style_;
  int depth_ = 0;
};

}  // namespace

// Python writes an exponent below 1e-4 and from 1e16 on, and always a point or an exponent.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string_view to_text(Runtime& runtime, const Value& value) {
  if (value.is(Type::kString)) return value.text;
  if (value.is(Type::kUndefined)) return {};
  return runtime.string(repr(runtime, value)).text;
}

std::string repr(Runtime& runtime, const Value& value) {
  ReprWriter writer(runtime);
  writer.write(value);
  return writer.take();
}

std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.write(value);
  return writer.take();
}

}  // namespace assay::text::jinja
