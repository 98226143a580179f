// A test harness of one page, so that the C++ tests build where only a compiler is.
//
//   TEST(memory_round_trip) {
//     CHECK(segment != nullptr);
//     CHECK_EQ(free_before, free_after);
//     CHECK_THROWS(OutOfMemory, memory.allocate(huge));
//   }
//
// A check that fails ends its test by an exception; checks may therefore be used on the test's own thread only. Other threads count
// their failures and let the test's thread check the number.
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

/// All tests of the executable; main.cpp runs them.
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <class A, class B>
void equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " != " << b;
  fail(file, line, out.str());
}

}  // namespace check

#define TEST(name)                                     \
  static void test_##name();                           \
  static check::Register name##_(#name, &test_##name); \
  static void test_##name()

#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, #condition)

#define CHECK_EQ(a, b) check::equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

#define CHECK_THROWS(type, expression)                                     \
  [&] {                                                                    \
    try {                                                                  \
      (void)(expression);                                                  \
    } catch (const type&) {                                                \
      return;                                                              \
    }                                                                      \
    check::fail(__FILE__, __LINE__, #expression " does not throw " #type); \
  }()
