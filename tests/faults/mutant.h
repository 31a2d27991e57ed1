// Mutants of a row, all in one program: tools/mutate_rows.py rewrites `a + b` to `mutant::add<17>(a, b)`, which is a +
// b unless the chosen mutant is one of its alternatives, 17, 18, ... A function here and its list of alternatives in
// tools/mutant_sites.py belong together. An alternative that the types at hand do not have ends the program with kNone.
//
// Operands are evaluated once, whatever is chosen. Where the compiler asks for a constant, nothing changes.
#pragma once

#include <unistd.h>

#include <type_traits>

namespace mutant {

extern int chosen;     // -1: none, the row is as it was
extern bool* reached;  // set where the chosen mutant was asked for
inline constexpr int kNone = 77;

[[gnu::always_inline]] constexpr bool on(int id) {
  if (std::is_constant_evaluated()) return false;
  if (chosen != id) [[likely]]
    return false;
  *reached = true;
  return true;
}

// Two ways to compute a Result; the second may not exist.
#define MUTANT_ALTERNATIVE(id, Result, expression)                 \
  if (on(id)) {                                                    \
    if constexpr (requires { static_cast<Result>(expression); }) { \
      return static_cast<Result>(expression);                      \
    } else {                                                       \
      _exit(kNone);                                                \
    }                                                              \
  }

#define MUTANT_BINARY(name, op, first, second)           \
  template <int id, class A, class B>                    \
  [[gnu::always_inline]] constexpr auto name(A a, B b) { \
    using Result = decltype(a op b);                     \
    MUTANT_ALTERNATIVE(id, Result, first)                \
    MUTANT_ALTERNATIVE(id + 1, Result, second)           \
    return a op b;                                       \
  }
MUTANT_BINARY(add, +, a - b, a)
MUTANT_BINARY(subtract, -, a + b, a)
MUTANT_BINARY(multiply, *, a, a + b)
MUTANT_BINARY(divide, /, a* b, a)
MUTANT_BINARY(remainder, %, a, a % (b + 1))
MUTANT_BINARY(shift_left, <<, a >> b, a << (b - 1))
MUTANT_BINARY(shift_right, >>, a << b, a >> (b - 1))
MUTANT_BINARY(bit_and, &, a | b, a)
MUTANT_BINARY(bit_or, |, a& b, a)
MUTANT_BINARY(bit_xor, ^, a, b)
MUTANT_BINARY(less, <, a <= b, a + 1 < b)
MUTANT_BINARY(less_equal, <=, a < b, a <= b + 1)
MUTANT_BINARY(greater, >, a >= b, a > b + 1)
MUTANT_BINARY(greater_equal, >=, a > b, a + 1 >= b)
MUTANT_BINARY(equal, ==, a != b, false)
MUTANT_BINARY(unequal, !=, a == b, true)

#define MUTANT_INSTEAD(id, statement)        \
  if (on(id)) {                              \
    if constexpr (requires { statement; }) { \
      statement;                             \
      return a;                              \
    } else {                                 \
      _exit(kNone);                          \
    }                                        \
  }
#define MUTANT_ASSIGN(name, op, first)                         \
  template <int id, class A, class B>                          \
  [[gnu::always_inline]] constexpr A& name(A& a, const B& b) { \
    MUTANT_INSTEAD(id, first)                                  \
    MUTANT_INSTEAD(id + 1, a = b)                              \
    a op b;                                                    \
    return a;                                                  \
  }
MUTANT_ASSIGN(assign_add, +=, a -= b)
MUTANT_ASSIGN(assign_subtract, -=, a += b)
MUTANT_ASSIGN(assign_multiply, *=, a += b)
MUTANT_ASSIGN(assign_divide, /=, a *= b)
MUTANT_ASSIGN(assign_or, |=, a &= b)
MUTANT_ASSIGN(assign_and, &=, a |= b)

template <int id, class A>
[[gnu::always_inline]] constexpr A& increment(A& a) {
  if (on(id)) ++a;
  return ++a;
}
template <int id, class A>
[[gnu::always_inline]] constexpr A& decrement(A& a) {
  if (on(id)) --a;
  return --a;
}
template <int id, class A>
[[gnu::always_inline]] constexpr auto negate(A a) {
  using Result = decltype(-a);
  MUTANT_ALTERNATIVE(id, Result, a)
  return -a;
}

// `if` and `?:`: always, never.
template <int id, class A>
[[gnu::always_inline]] constexpr auto condition(const A& a) {
  if constexpr (requires { static_cast<bool>(a); }) {
    return on(id) || (!on(id + 1) && static_cast<bool>(a));
  } else {  // one for each lane
    if (on(id) || on(id + 1)) _exit(kNone);
    return a;
  }
}
template <int id>
[[gnu::always_inline]] constexpr bool invert(bool a) {
  return on(id) ? a : !a;
}

// Of a subscript: one further, one nearer.
template <int id, class A>
[[gnu::always_inline]] constexpr A index(A a) {
  MUTANT_ALTERNATIVE(id, A, a + 1)
  MUTANT_ALTERNATIVE(id + 1, A, a - 1)
  return a;
}
template <int id, class A>
[[gnu::always_inline]] constexpr A integer(A a) {
  MUTANT_ALTERNATIVE(id, A, a + 1)
  MUTANT_ALTERNATIVE(id + 1, A, a - 1)
  return a;
}
template <int id, class A>
[[gnu::always_inline]] constexpr A real(A a) {
  if (on(id)) return a == 0 ? A(1) : 2 * a;
  if (on(id + 1)) return a == 0 ? A(0.01) : a * A(1.01);
  return a;
}
template <int id>
[[gnu::always_inline]] constexpr bool boolean(bool a) {
  return on(id) != a;
}

// The other of two arguments of one type.
template <int id, class A>
[[gnu::always_inline]] constexpr const A& either(const A& a, const A& other) {
  return on(id) ? other : a;
}

}  // namespace mutant
