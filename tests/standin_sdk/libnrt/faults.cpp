#include "tests/standin_sdk/libnrt/faults.h"

#include <unistd.h>

#include <cstdlib>

namespace standin {
namespace {

struct Rule {
  std::string function;
  long first = 1, last = 0;  // last 0: every call from first on
  NRT_STATUS status = NRT_SUCCESS;
  long sleep_ms = 0;
  bool stuck = false;
};

std::vector<Rule> parse(const char* variable) {
  std::vector<Rule> rules;
  const char* text = getenv(variable);
  std::string rest = text ? text : "";
  while (!rest.empty()) {
    const auto end = rest.find(';');
    std::string one = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    const auto colon = one.find(':'), equals = one.find('=');
    if (colon == std::string::npos || equals == std::string::npos) {
      log_error("standin_faults", std::string("cannot read the rule '") + one + "' of " + variable);
      abort();
    }
    Rule rule;
    rule.function = one.substr(0, colon);
    const std::string which = one.substr(colon + 1, equals - colon - 1), what = one.substr(equals + 1);
    if (which != "*") {
      rule.first = strtol(which.c_str(), nullptr, 10);
      const auto dash = which.find('-');
      rule.last = dash == std::string::npos ? rule.first : strtol(which.c_str() + dash + 1, nullptr, 10);
    }
    if (what.compare(0, 4, "slow") == 0)
      rule.sleep_ms = strtol(what.c_str() + 4, nullptr, 10);
    else if (what == "stuck")
      rule.stuck = true;
    else
      rule.status = static_cast<NRT_STATUS>(strtol(what.c_str(), nullptr, 10));
    rules.push_back(rule);
  }
  return rules;
}

class Faults {
 public:
  explicit Faults(const char* variable) : rules_(parse(variable)) {}

  NRT_STATUS next(const char* function) {
    if (rules_.empty()) return NRT_SUCCESS;
    Rule hit;
    {
      std::lock_guard lock(mutex_);
      const long call = ++calls_[function];
      for (const auto& rule : rules_) {
        if (rule.function == function && call >= rule.first && (rule.last == 0 || call <= rule.last)) hit = rule;
      }
    }
    if (hit.sleep_ms) usleep(static_cast<useconds_t>(hit.sleep_ms * 1000));
    while (hit.stuck) pause();
    return hit.status;
  }

 private:
  const std::vector<Rule> rules_;
  std::mutex mutex_;
  std::map<std::string, long> calls_;
};

}  // namespace

NRT_STATUS fault(const char* function) {
  static auto* const faults = new Faults("STANDIN_NRT_FAULTS");
  return faults->next(function);
}

NRT_STATUS completion_fault(const char* function) {
  static auto* const faults = new Faults("STANDIN_NRT_COMPLETION_FAULTS");
  return faults->next(function);
}

}  // namespace standin
