// The TORCH_NEURONX_* and NEURON_* variables that the C++ side reads: read once, checked once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace neuron {

enum class Fallback { error, warn, allow };
enum class Compile { block, background };

struct Settings {
  std::string target = "auto";            ///< TORCH_NEURONX_TARGET = auto | emulated | trainium
  std::string instance = "trn2.3xlarge";  ///< TORCH_NEURONX_EMULATED_INSTANCE
  std::vector<int> visible_cores;         ///< NEURON_RT_VISIBLE_CORES "0-3", "0,2"; empty: all
  int num_cores = 0;                      ///< NEURON_RT_NUM_CORES; 0: all
  int lnc = 2;                            ///< NEURON_LOGICAL_NC_CONFIG = 1 | 2
  Fallback fallback = Fallback::warn;     ///< TORCH_NEURONX_FALLBACK
  Compile compile = Compile::block;       ///< TORCH_NEURONX_COMPILE, docs/dev/trainium.md
  bool guard = false;                     ///< TORCH_NEURONX_GUARD
  bool launch_blocking = false;           ///< NEURON_LAUNCH_BLOCKING
  bool check_meta = false;                ///< TORCH_NEURONX_CHECK_META
  bool adaptive_eager = true;             ///< TORCH_NEURONX_ADAPTIVE_EAGER (also TORCH_NEURONX_ENABLE_CONCATENATION), docs/dev/program.md
  bool stack_trace = false;               ///< TORCH_NEURONX_ENABLE_STACK_TRACE: record the Python line of each launch
  std::string vectors = "auto";           ///< TORCH_NEURONX_VECTORS = auto | portable | avx2 | avx512: vectors of the tile functions
  int64_t host_memory_limit = 0;          ///< TORCH_NEURONX_HOST_MEMORY_LIMIT, bytes or "512M", "2G"; 0: what the machine has
  int64_t host_memory_reserve = 0;        ///< TORCH_NEURONX_HOST_MEMORY_RESERVE; 0: the default reserve
  int64_t max_split_bytes = INT64_MAX;    ///< TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG kMaxSplitSizeBytes: larger free blocks are not split
  int64_t max_non_split_rounding_bytes =
      20 << 20;                   ///< the same, kMaxNonSplitRoundingBytes: how much larger than asked an unsplit block may be
  int64_t cache_entries = 16384;  ///< TORCH_NEURONX_EAGER_CACHE_SIZE (also NEURON_EAGER_MODEL_CACHE_SIZE)
  int64_t queue_words = 1 << 17;  ///< TORCH_NEURONX_QUEUE_SIZE, 64-bit words per stream
  std::string problem;            ///< empty, or why a variable was refused: raised at first use
};

/// The process's settings. Never throws; look at `problem`.
const Settings& settings() noexcept;

/// Parses the environment anew (tests).
Settings parse_settings();

}  // namespace neuron
