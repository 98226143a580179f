#include "csrc/runtime/settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>

#include "csrc/runtime/emulated/instance.h"

namespace neuron {
namespace {

/// Reads variables one by one and keeps the first refusal.
class Reader {
 public:
  explicit Reader(std::string* problem) : problem_(problem) {}

  bool read(const char* name) {
    const char* text = std::getenv(name);
    if (!text || !*text) return false;  // set but empty means unset, as shells make it hard to tell apart
    name_ = name;
    value_ = text;
    return true;
  }
  const std::string& value() const { return value_; }

  void refuse(const std::string& accepted) {
    if (problem_->empty()) *problem_ = name_ + "=\"" + value_ + "\" is not understood: accepted values are " + accepted + ".";
  }

  void word(const char* name, std::string* out, const std::vector<std::string>& accepted) {
    if (!read(name)) return;
    if (std::find(accepted.begin(), accepted.end(), value_) != accepted.end()) {
      *out = value_;
      return;
    }
    std::string list;
    for (const auto& item : accepted) list += (list.empty() ? "" : ", ") + item;
    refuse(list);
  }

  void flag(const char* name, bool* out) {
    if (!read(name)) return;
    std::string lower = value_;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    for (const char* yes : {"1", "true", "yes", "on"})
      if (lower == yes) return void(*out = true);
    for (const char* no : {"0", "false", "no", "off"})
      if (lower == no) return void(*out = false);
    refuse("0, 1, false, true, no, yes, off, on");
  }

  void integer(const char* name, int64_t* out, int64_t low, int64_t high) {
    if (!read(name)) return;
    int64_t number = 0;
    size_t used = 0;
    if (!digits(value_, &used, &number) || used != value_.size() || number < low || number > high)
      return refuse("whole numbers from " + std::to_string(low) + " to " + std::to_string(high));
    *out = number;
  }

  void bytes(const char* name, int64_t* out) {
    if (!read(name)) return;
    int64_t number = 0;
    size_t used = 0;
    int shift = 0;
    if (!digits(value_, &used, &number) || !unit(value_.substr(used), &shift) || number > (std::numeric_limits<int64_t>::max() >> shift))
      return refuse("a number of bytes, alone or with K, M, G or T (powers of 1024), as in 512M or 2G");
    *out = number << shift;
  }

  void cores(const char* name, std::vector<int>* out) {
    if (!read(name)) return;
    std::vector<int> list;
    size_t at = 0;
    while (at < value_.size()) {
      const size_t comma = std::min(value_.find(',', at), value_.size());
      if (!range(value_.substr(at, comma - at), &list))
        return refuse("core numbers, ranges, or lists of them without repetition, as in 0, 0-3 or 0,2");
      at = comma + 1;
      if (at == value_.size()) return refuse("core numbers, ranges, or lists of them without repetition, as in 0, 0-3 or 0,2");
    }
    *out = list;
  }

  /// "kMaxSplitSizeBytes=1,kMaxNonSplitRoundingBytes=2"
  void allocator_config(const char* name, int64_t* max_split, int64_t* rounding) {
    if (!read(name)) return;
    const std::string accepted =
        "a comma-separated list of kMaxSplitSizeBytes=<bytes, from 1048576> and kMaxNonSplitRoundingBytes=<bytes>, as in "
        "kMaxSplitSizeBytes=268435456,kMaxNonSplitRoundingBytes=67108864";
    for (size_t at = 0; at <= value_.size();) {
      const size_t comma = std::min(value_.find(',', at), value_.size());
      const std::string item = value_.substr(at, comma - at);
      const size_t equals = std::min(item.find('='), item.size());
      const std::string key = item.substr(0, equals);
      const std::string text = item.substr(std::min(equals + 1, item.size()));
      int64_t number = 0;
      size_t used = 0;
      if (!digits(text, &used, &number) || used != text.size()) return refuse(accepted);
      if (key == "kMaxSplitSizeBytes" && number >= (1 << 20)) {
        *max_split = number;
      } else if (key == "kMaxNonSplitRoundingBytes") {
        *rounding = number;
      } else {
        return refuse(accepted);
      }
      at = comma + 1;
    }
  }

 private:
  static bool digits(const std::string& text, size_t* used, int64_t* number) {
    size_t at = 0;
    int64_t result = 0;
    for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at) {
      if (result > (std::numeric_limits<int64_t>::max() - 9) / 10) return false;
      result = result * 10 + (text[at] - '0');
    }
    *used = at;
    *number = result;
    return at > 0;
  }

  static bool unit(const std::string& text, int* shift) {
    if (text.empty() || text == "B") return true;
    const char* letters = "KMGT";
    const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    for (int i = 0; i < 4; ++i) {
      if (letters[i] != letter) continue;
      *shift = 10 * (i + 1);
      const std::string rest = text.substr(1);
      return rest.empty() || rest == "B" || rest == "iB";
    }
    return false;
  }

  static bool range(const std::string& text, std::vector<int>* list) {
    constexpr int64_t most = 1 << 16;
    size_t used = 0;
    int64_t first = 0, last = 0;
    if (!digits(text, &used, &first) || first >= most) return false;
    last = first;
    if (used < text.size()) {
      if (text[used] != '-') return false;
      const std::string rest = text.substr(used + 1);
      size_t rest_used = 0;
      if (!digits(rest, &rest_used, &last) || rest_used != rest.size() || last < first || last >= most) return false;
    }
    for (int64_t core = first; core <= last; ++core) {
      if (std::find(list->begin(), list->end(), core) != list->end()) return false;
      list->push_back(static_cast<int>(core));
    }
    return true;
  }

  std::string* problem_;
  std::string name_, value_;
};

}  // namespace

Settings parse_settings() {
  Settings result;
  Reader reader(&result.problem);
  int64_t number = 0;

  reader.word("TORCH_NEURONX_TARGET", &result.target, {"auto", "emulated", "trainium"});
  reader.word("TORCH_NEURONX_EMULATED_INSTANCE", &result.instance, emulated::instance_names());
  reader.cores("NEURON_RT_VISIBLE_CORES", &result.visible_cores);
  reader.integer("NEURON_RT_NUM_CORES", &number, 0, 1 << 16);
  result.num_cores = static_cast<int>(number);
  number = result.lnc;
  reader.integer("NEURON_LOGICAL_NC_CONFIG", &number, 1, 2);
  result.lnc = static_cast<int>(number);

  std::string fallback = "warn";
  reader.word("TORCH_NEURONX_FALLBACK", &fallback, {"error", "warn", "allow"});
  result.fallback = fallback == "error" ? Fallback::error : fallback == "allow" ? Fallback::allow : Fallback::warn;
  std::string compile = "block";
  reader.word("TORCH_NEURONX_COMPILE", &compile, {"block", "background"});
  result.compile = compile == "background" ? Compile::background : Compile::block;
  reader.word("TORCH_NEURONX_VECTORS", &result.vectors, {"auto", "portable", "avx2", "avx512"});
  reader.flag("TORCH_NEURONX_GUARD", &result.guard);
  reader.flag("NEURON_LAUNCH_BLOCKING", &result.launch_blocking);
  reader.flag("TORCH_NEURONX_CHECK_META", &result.check_meta);
  reader.flag("TORCH_NEURONX_ENABLE_CONCATENATION", &result.adaptive_eager);
  reader.flag("TORCH_NEURONX_ADAPTIVE_EAGER", &result.adaptive_eager);
  reader.flag("TORCH_NEURONX_ENABLE_STACK_TRACE", &result.stack_trace);

  reader.bytes("TORCH_NEURONX_HOST_MEMORY_LIMIT", &result.host_memory_limit);
  reader.bytes("TORCH_NEURONX_HOST_MEMORY_RESERVE", &result.host_memory_reserve);
  reader.allocator_config("TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG", &result.max_split_bytes, &result.max_non_split_rounding_bytes);
  reader.integer("NEURON_EAGER_MODEL_CACHE_SIZE", &result.cache_entries, 1, int64_t{1} << 30);
  reader.integer("TORCH_NEURONX_EAGER_CACHE_SIZE", &result.cache_entries, 1, int64_t{1} << 30);
  reader.integer("TORCH_NEURONX_QUEUE_SIZE", &result.queue_words, 1 << 10, int64_t{1} << 30);

  // Whether the cores exist depends on the instance, so it is checked last; on a chip the driver knows.
  if (result.problem.empty() && result.target != "trainium") emulated::devices_of(result, &result.problem);
  return result;
}

const Settings& settings() noexcept {
  static const Settings* const instance = new Settings(parse_settings());  // outlives background threads
  return *instance;
}

}  // namespace neuron
