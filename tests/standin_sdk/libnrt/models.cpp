// NEFFs: loading, tables of variables, execution.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/standin_sdk/libnrt/faults.h"

namespace standin {
namespace {

constexpr size_t kHeaderBytes = 1024;
constexpr char kMagic[] = "torchneuron-standin-cc";  // neff_build_version (offset 40) begins with it

std::string place_of(const nrt_tensor_t* tensor) {
  return std::to_string(tensor->storage->fd) + ":" + std::to_string(tensor->offset) + ":" + std::to_string(tensor->bytes);
}

/// The places of a model's variables in a set; empty when one is missing or has another size.
bool places_of(const std::vector<Variable>& variables, const TensorSet* set, std::vector<std::string>* places) {
  for (const auto& variable : variables) {
    auto found = set->tensors.find(variable.name);
    if (found == set->tensors.end()) {
      log_error("nrt_execute", "no tensor named " + variable.name + " in the tensor set");
      return false;
    }
    if (found->second->bytes != variable.bytes) {
      log_error("nrt_execute", "tensor " + variable.name + " has " + std::to_string(found->second->bytes) + " bytes, the model wants " +
                                   std::to_string(variable.bytes));
      return false;
    }
    places->push_back(place_of(found->second));
  }
  return true;
}

bool fails_on_nan() {
  const char* verbosity = getenv("NEURON_RT_NUMERICAL_ERRORS_VERBOSITY");
  return number_from_environment("NEURON_FAIL_ON_NAN", 0) == 1 || (verbosity && strcmp(verbosity, "critical") == 0);
}

Executor& executor_of(Core& core) {
  if (!core.executor) core.executor = std::make_unique<Executor>(core.vnc);
  return *core.executor;
}

std::atomic<int> next_id{1001};

}  // namespace

NRT_STATUS execute_model(nrt_model_t* model, const TensorSet* in, TensorSet* out) {
  if (!model) return NRT_INVALID_HANDLE;
  auto& core = *runtime().cores[static_cast<size_t>(model->core)];
  std::vector<std::string> inputs, outputs;
  if (!places_of(model->inputs, in, &inputs) || !places_of(model->outputs, out, &outputs)) return NRT_EXEC_BAD_INPUT;
  std::lock_guard one_at_a_time(core.running);
  try {
    const bool nan = executor_of(core).execute(model->id, inputs, outputs, fails_on_nan());
    return nan ? NRT_EXEC_COMPLETED_WITH_NUM_ERR : NRT_SUCCESS;
  } catch (const std::string& error) {
    log_error("nrt_execute", error);
    return NRT_EXEC_COMPLETED_WITH_ERR;
  }
}

}  // namespace standin

using namespace standin;

STANDIN_EXPORT NRT_STATUS nrt_load(const void* neff, size_t size, int32_t vnc, int32_t, nrt_model_t** out) {
  STANDIN_ENTER("nrt_load");
  auto& r = runtime();
  if (vnc < 0) vnc = 0;
  if (vnc >= static_cast<int32_t>(r.cores.size())) return NRT_LOAD_NOT_ENOUGH_NC;
  const char* bytes = static_cast<const char*>(neff);
  if (size < kHeaderBytes || strncmp(bytes + 40, kMagic, sizeof kMagic - 1) != 0) {
    log_error("nrt_load", "not a NEFF of the stand-in compiler: real NEFFs need a NeuronCore");
    return NRT_INVALID;
  }
  uint64_t major;
  memcpy(&major, bytes + 24, sizeof major);
  if (major > 2) {
    log_error("nrt_load", "NEFF version mismatch supported: 2.0 received: " + std::to_string(major) + ".0");
    return NRT_UNSUPPORTED_NEFF_VERSION;
  }
  uint32_t lnc;
  memcpy(&lnc, bytes + 552, sizeof lnc);
  if (lnc != static_cast<uint32_t>(number_from_environment("NEURON_LOGICAL_NC_CONFIG", 2))) {
    log_error("nrt_load",
              "the NEFF was compiled with --lnc " + std::to_string(lnc) + ", which is not the runtime's NEURON_LOGICAL_NC_CONFIG");
    return NRT_FAILURE;
  }
  const int fd = memfd_create("standin-neff", MFD_CLOEXEC);
  if (fd < 0 || write(fd, bytes, size) != static_cast<ssize_t>(size)) {
    if (fd >= 0) close(fd);
    return NRT_FAIL_HOST_MEM_ALLOC;
  }
  auto model = std::make_unique<nrt_model_t>();
  model->id = next_id++;
  model->core = vnc;
  auto& core = *r.cores[static_cast<size_t>(vnc)];
  NRT_STATUS status = NRT_SUCCESS;
  try {
    std::lock_guard one_at_a_time(core.running);
    executor_of(core).load(model->id, fd, size, &model->inputs, &model->outputs);
  } catch (const std::string& error) {
    log_error("kmgr_load_nn_post_metrics", "Failed to load NN: " + error);
    status = NRT_INVALID;
  }
  close(fd);
  if (status == NRT_SUCCESS) *out = model.release();
  return status;
}

STANDIN_EXPORT NRT_STATUS nrt_unload(nrt_model_t* model) {
  STANDIN_ENTER("nrt_unload");
  if (!model) return NRT_INVALID_HANDLE;
  auto& core = *runtime().cores[static_cast<size_t>(model->core)];
  if (core.executor) {
    try {
      core.executor->unload(model->id);
    } catch (const std::string& error) {
      log_error("nrt_unload", error);
    }
  }
  delete model;
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* model, nrt_tensor_info_array_t** out) {
  STANDIN_ENTER("nrt_get_model_tensor_info");
  if (!model) return NRT_INVALID_HANDLE;
  const size_t count = model->inputs.size() + model->outputs.size();
  auto* array = static_cast<nrt_tensor_info_array_t*>(calloc(1, 8 + count * sizeof(nrt_tensor_info_t)));
  array->tensor_count = count;
  for (size_t i = 0; i < count; ++i) {
    const bool input = i < model->inputs.size();
    const auto& variable = input ? model->inputs[i] : model->outputs[i - model->inputs.size()];
    auto& info = array->tensor_array[i];
    strncpy(info.name, variable.name.c_str(), sizeof info.name - 1);
    info.usage = input ? NRT_TENSOR_USAGE_INPUT : NRT_TENSOR_USAGE_OUTPUT;
    info.size = variable.bytes;
    info.dtype = variable.dtype;
    info.ndim = static_cast<uint32_t>(variable.shape.size());
    info.shape = static_cast<uint32_t*>(malloc(std::max<size_t>(1, variable.shape.size()) * sizeof(uint32_t)));
    std::copy(variable.shape.begin(), variable.shape.end(), info.shape);
  }
  *out = array;
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* array) {
  if (!array) return NRT_INVALID;
  for (uint64_t i = 0; i < array->tensor_count; ++i) free(array->tensor_array[i].shape);
  free(array);
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* in, nrt_tensor_set_t* out) {
  STANDIN_ENTER("nrt_execute");
  return execute_model(model, static_cast<const TensorSet*>(in), static_cast<TensorSet*>(out));
}
