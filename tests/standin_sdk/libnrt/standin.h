// Stand-in for libnrt.so.1: the public functions with their documented semantics, on host memory; NEFFs are executed by XLA on the CPU.
//
// It accepts only NEFFs of the stand-in neuronx-cc beside it. What it models: status codes, ownership of cores, HBM limits, names and sizes
// of model tensors, one execution at a time per core, both forms of the asynchronous functions (built as two libraries), and faults on
// demand (faults.h). What it does not: timing, DMA, collectives between processes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/runtime/trainium/nrt.h"

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace standin {

using namespace neuron::trainium;

/// Memory of one allocation: a file that the executor process of the core maps too.
struct Storage {
  int core = 0;
  size_t bytes = 0;
  int fd = -1;
  char* data = nullptr;
  ~Storage();
};

struct Core {
  int vnc = 0;
  size_t used = 0, limit = 0;
  std::mutex running;  // one NEFF at a time
  std::unique_ptr<class Executor> executor;
  int lock_fd = -1;  // ownership between processes
};

struct Runtime {
  enum class State { fresh, ready, closed } state = State::fresh;
  std::mutex mutex;
  std::vector<std::unique_ptr<Core>> cores;
};
Runtime& runtime();

/// NRT_SUCCESS when initialised, else what a call gives before nrt_init and after nrt_close.
NRT_STATUS ready();
/// Prints one line in the runtime's log format to stderr.
void log_error(const char* function, const std::string& text);
int64_t number_from_environment(const char* name, int64_t otherwise);

}  // namespace standin

// The opaque types.
struct neuron::trainium::nrt_tensor_t {
  std::shared_ptr<standin::Storage> storage;
  size_t offset = 0, bytes = 0;
  std::string name;
};

namespace standin {

struct TensorSet {
  std::map<std::string, nrt_tensor_t*> tensors;
};

/// One input or output of a NEFF.
struct Variable {
  std::string name;
  nrt_dtype_t dtype = NRT_DTYPE_UNKNOWN;
  size_t bytes = 0;
  std::vector<uint32_t> shape;
};

/// What runs NEFFs for a core: a process with XLA, spoken to in lines of text over a socket. Calls throw std::string on failure.
class Executor {
 public:
  explicit Executor(int core);
  ~Executor();

  /// Compiles the NEFF in `fd`; gives its variables.
  void load(int id, int fd, size_t bytes, std::vector<Variable>* inputs, std::vector<Variable>* outputs);
  void unload(int id);
  /// Runs it. Places are "fd:offset:bytes" of this process. True when an output holds NaN.
  bool execute(int id, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs, bool look_for_nan);
  /// Storage `fd` is about to be closed.
  void forget(int fd);

 private:
  std::string ask(const std::string& line);

  std::mutex mutex_;
  int socket_ = -1, child_ = -1;
  std::string buffer_;
};

}  // namespace standin

struct neuron::trainium::nrt_model_t {
  int id = 0, core = 0;
  std::vector<standin::Variable> inputs, outputs;
};

namespace standin {
/// nrt_execute without the fault check of its name.
NRT_STATUS execute_model(nrt_model_t* model, const TensorSet* in, TensorSet* out);
}  // namespace standin
