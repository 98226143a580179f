// The extension module torch_neuronx._C, and the two places where the library needs Python: the GIL, and lazy initialisation after a fork.
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <unistd.h>

#include "csrc/aten/autocast.h"
#include "csrc/aten/guard.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/stream.h"

namespace {

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

/// Releases the GIL, if this thread holds it and may take it again afterwards.
void* release_gil() {
  if (!Py_IsInitialized() || finalizing() || !PyGILState_Check()) return nullptr;
  return PyEval_SaveThread();
}

void take_gil(void* state) {
  if (!state) return;
  try {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state));
  } catch (...) {
    // While the interpreter ends, CPython before 3.14 makes daemon threads leave here through pthread_exit(). That unwinding would meet a
    // destructor and abort the process, so the thread stays until the process is gone, as it does from 3.14 on.
    for (;;) pause();
  }
}

/// Makes PyTorch ask torch.neuron._lazy_init() again, which refuses.
void ask_again_after_fork() {
  torch::utils::set_requires_device_init(at::kPrivateUse1, true);
  torch::utils::set_device_in_bad_fork(at::kPrivateUse1, true);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native half of torch_neuronx.";
  neuron::host_wait = {release_gil, take_gil};
  neuron::on_bad_fork = ask_again_after_fork;
  neuron::set_default_autocast_dtype();
  m.def("_use_default_autocast_dtype", &neuron::set_default_autocast_dtype,
        "Gives the calling thread the device's autocast dtype if it has none yet; whether it changed something.");
  bind_device(m);
  bind_stream(m);
  bind_random(m);
  bind_memory(m);
  bind_explain(m);
  bind_compiled_graph(m);
  bind_ipc(m);
  bind_nki(m);
  bind_kernel_search(m);
  bind_distributed(m);
  bind_program_compiler(m);
}
