// Values of the template language: Python's, as far as templates see them.
//
// Values are plain handles. What they point to (characters, lists, dictionaries) belongs to the Runtime of one
// rendering, or to the template and the context, which outlive it; nothing is freed before the end. So values may form
// cycles or chains of any length without harm, and the Runtime's bounds hold for all memory.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace assay::text::jinja {

// Thrown by the lexer, parser and interpreter; caught where a template is parsed or rendered.
struct Fault {
  std::string message;
  int line = 0;              // 0: not known yet
  bool by_template = false;  // the template called raise_exception
};

// Wide enough for every integer of a JSON document (int64 and uint64) and their sums. Going beyond it is a Fault.
using Int = __int128;

enum class Type : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kDict,
  kCallable,
  kNamespace,
  kLoop
};

// A generator can be walked once, has no length and is always true; a view (dict.items()) cannot be indexed.
enum class ListKind : uint8_t { kList, kTuple, kGenerator, kView };

struct List;
struct Dict;
struct Callable;
struct Namespace;
struct Loop;

struct Value {
  Type type = Type::kUndefined;
  union {
    bool boolean;
    Int integer;
    double real;
    std::string_view text;  // kString: UTF-8. kUndefined: what is undefined, for messages
    List* list;
    Dict* dict;
    const Callable* callable;
    Namespace* space;
    Loop* loop;
  };

  Value() : text() {}
  static Value undefined(std::string_view what) {
    Value v;
    v.text = what;
    return v;
  }
  static Value none() {
    Value v;
    v.type = Type::kNone;
    return v;
  }
  static Value of(bool b) {
    Value v;
    v.type = Type::kBool;
    v.boolean = b;
    return v;
  }
  static Value of(Int i) {
    Value v;
    v.type = Type::kInt;
    v.integer = i;
    return v;
  }
  static Value of(double d) {
    Value v;
    v.type = Type::kFloat;
    v.real = d;
    return v;
  }
  static Value of(std::string_view s) {
    Value v;
    v.type = Type::kString;
    v.text = s;
    return v;
  }
  static Value of(List* l) {
    Value v;
    v.type = Type::kList;
    v.list = l;
    return v;
  }
  static Value of(Dict* d) {
    Value v;
    v.type = Type::kDict;
    v.dict = d;
    return v;
  }
  static Value of(const Callable* c) {
    Value v;
    v.type = Type::kCallable;
    v.callable = c;
    return v;
  }
  static Value of(Namespace* n) {
    Value v;
    v.type = Type::kNamespace;
    v.space = n;
    return v;
  }
  static Value of(Loop* l) {
    Value v;
    v.type = Type::kLoop;
    v.loop = l;
    return v;
  }

  bool is(Type t) const { return type == t; }
  bool is_number() const { return type == Type::kBool || type == Type::kInt || type == Type::kFloat; }
  bool is_integral() const { return type == Type::kBool || type == Type::kInt; }
  Int as_int() const { return type == Type::kBool ? Int{boolean} : integer; }
  double as_float() const { return type == Type::kFloat ? real : static_cast<double>(as_int()); }
};

struct List {
  ListKind kind = ListKind::kList;
  std::vector<Value> items;
};

class Runtime;

// Insertion order, as in Python.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string_view, size_t> by_text;  // of string keys

  const Value* find(Runtime& runtime, const Value& key) const;
  void set(Runtime& runtime, const Value& key, const Value& value);
};

struct Namespace {
  std::unordered_map<std::string_view, Value> attributes;
};

struct Loop {
  std::vector<Value> items;
  size_t index = 0;
};

struct Scope;
struct Stmt;

// A function of the language, a method bound to its object, or a macro.
struct Callable {
  enum class Kind : uint8_t { kGlobal, kMethod, kMacro };
  Kind kind = Kind::kGlobal;
  std::string_view name;
  Value self{};                 // of a method
  const Stmt* macro = nullptr;  // its definition
  Scope* scope = nullptr;       // where it was defined
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

// Variables of one region. Scopes nest as the template's text does.
struct Scope {
  std::vector<std::pair<std::string_view, Value>> variables;
  Scope* parent = nullptr;
  bool captured = false;  // a macro was defined in it: it must not be used again for another round of a loop

  const Value* find_here(std::string_view name) const;
  void set(std::string_view name, const Value& value);
};

// Owner of all that one rendering makes, and keeper of its bounds.
class Runtime {
 public:
  static constexpr uint64_t kMaxWork = 10'000'000;     // evaluated nodes, visited elements, kBytesPerWork bytes
  static constexpr uint64_t kMaxBytes = 256ull << 20;  // of all strings made
  static constexpr uint64_t kBytesPerWork = 32;
  static constexpr int kMaxDepth = 1000;  // of nested evaluations, and of nested data

  // Fault beyond kMaxWork.
  void work(uint64_t units);
  void scan(size_t bytes) { work(bytes / kBytesPerWork + 1); }

  // Before making a string: Fault beyond kMaxBytes.
  void reserve_bytes(uint64_t bytes);

  Value string(std::string text);
  Value list(std::vector<Value> items, ListKind kind = ListKind::kList);
  Dict* dict();
  Namespace* name_space() { return &spaces_.emplace_back(); }
  Loop* loop() { return &loops_.emplace_back(); }
  Scope* scope(Scope* parent);
  const Callable* callable(Callable callable);

  // Guard of a recursion, for the length of a C++ scope.
  class Deeper {
   public:
    explicit Deeper(Runtime& runtime);
    ~Deeper() { --runtime_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  uint64_t work_ = 0;
  uint64_t bytes_ = 0;
  int depth_ = 0;
  std::deque<std::string> strings_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> spaces_;
  std::deque<Loop> loops_;
  std::deque<Scope> scopes_;
  std::deque<Callable> callables_;
};

[[noreturn]] void fail(std::string message);

// "str", "dict": for messages.
std::string_view type_name(const Value& value);

bool truth(const Value& value);
bool equal(Runtime& runtime, const Value& a, const Value& b);
// Negative, zero or positive; Fault for values without an order.
int compare(Runtime& runtime, const Value& a, const Value& b);

// Python's str() and repr().
std::string_view to_text(Runtime& runtime, const Value& value);
std::string repr(Runtime& runtime, const Value& value);
std::string float_repr(double value);

// The elements a for loop walks over; empties a generator.
std::vector<Value> iterate(Runtime& runtime, const Value& value);
Int length(Runtime& runtime, const Value& value);
bool contains(Runtime& runtime, const Value& container, const Value& element);

// json points to memory that outlives the runtime.
Value from_json(Runtime& runtime, const nlohmann::ordered_json& json);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  int indent = -1;  // negative: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// Python's json.dumps. Fault for what JSON does not have (undefined values among it).
std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace assay::text::jinja
