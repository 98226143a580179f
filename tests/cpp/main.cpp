// Runs the tests whose names contain the first argument (all without one). The last line counts them.
#include <chrono>
#include <cstdio>
#include <cstring>

#include "tests/cpp/check.h"

/// True when the test passed.
static bool run(const check::Test& test) {
  const auto start = std::chrono::steady_clock::now();
  std::string problem;
  try {
    test.body();
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = "an exception that is no std::exception";
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%-4s %-50s %6.2f s\n", problem.empty() ? "ok" : "FAIL", test.name, took.count());
  if (!problem.empty()) std::printf("     %s\n", problem.c_str());
  std::fflush(stdout);
  return problem.empty();
}

int main(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const check::Test& test : check::tests()) {
    if (argc > 1 && !std::strstr(test.name, argv[1])) continue;
    ++(run(test) ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed || !passed;
}
