// Result<T>: a value, or an Error that says what went wrong, where, what was found and what was wanted.
//
// The caller's and a file's faults travel as Result; our own bugs are CHECKs (check.h). Nothing here throws.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace assay {

enum class ErrorKind {
  kInvalidArgument,  // the caller asked for something impossible
  kCheckpoint,       // a file of the checkpoint is damaged or not of a known kind
  kUnsupported,      // valid, but no row can run it
  kIo,               // the operating system refused
  kResource,         // short of memory, pages, slots
  kNumerical,        // wrong numbers were seen
  kInternal,
};

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string what;    // one clause: what went wrong
  std::string where;   // file, tensor, field
  std::string got;     // what was found
  std::string wanted;  // what was expected
  std::string hint;    // what to do about it

  // "where: what: got G, wanted W (hint)", leaving out what is empty.
  std::string message() const;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CHECK(ok(), "{}", error_text());
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok(), "{}", error_text());
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(ok(), "{}", error_text());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    CHECK(!ok(), "Result holds a value");
    return std::get<1>(state_);
  }
  Error&& error() && {
    CHECK(!ok(), "Result holds a value");
    return std::get<1>(std::move(state_));
  }

 private:
  std::string error_text() const { return ok() ? "" : std::get<1>(state_).message(); }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    CHECK(!ok(), "Result holds no error");
    return *error_;
  }
  Error&& error() && {
    CHECK(!ok(), "Result holds no error");
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace assay

// ASSAY_TRY(expr): return the error of a Result<void> expression.
#define ASSAY_TRY(expr)                                                                   \
  do {                                                                                    \
    if (auto assay_try_ = (expr); !assay_try_.ok()) return std::move(assay_try_).error(); \
  } while (0)

// ASSAY_ASSIGN(auto x, expr): declare x as the value of a Result expression, or return its error.
#define ASSAY_CONCAT_INNER(a, b) a##b
#define ASSAY_CONCAT(a, b) ASSAY_CONCAT_INNER(a, b)
#define ASSAY_ASSIGN(declaration, expr) ASSAY_ASSIGN_IMPL(ASSAY_CONCAT(assay_result_, __LINE__), declaration, expr)
#define ASSAY_ASSIGN_IMPL(temporary, declaration, expr)     \
  auto temporary = (expr);                                  \
  if (!temporary.ok()) return std::move(temporary).error(); \
  declaration = std::move(temporary).value()
