// The public C interface of the Neuron runtime (libnrt.so.1), in declarations of our own, and the table of its functions that are used
// here.
//
// Note [Facts and sources]
// Names, values and layouts are those of the public headers of runtime 2.30 and of the public documentation of SDK 2.32; no header of the
// vendor is copied. The library is opened with dlopen, so nothing here is linked. The asynchronous functions (nrta_*) have kept their names
// but not their arguments: nrt_async.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace neuron::trainium {

// ---- types of the C interface -------------------------------------------------------------------------------------------

extern "C" {

enum NRT_STATUS : int {
  NRT_SUCCESS = 0,
  NRT_FAILURE = 1,
  NRT_INVALID = 2,
  NRT_INVALID_HANDLE = 3,
  NRT_RESOURCE = 4,
  NRT_TIMEOUT = 5,
  NRT_HW_ERROR = 6,
  NRT_QUEUE_FULL = 7,
  NRT_LOAD_NOT_ENOUGH_NC = 9,
  NRT_UNSUPPORTED_NEFF_VERSION = 10,
  NRT_FAIL_HOST_MEM_ALLOC = 11,
  NRT_UNINITIALIZED = 13,
  NRT_CLOSED = 14,
  NRT_QUEUE_EMPTY = 15,
  NRT_EXEC_UNIT_UNRECOVERABLE = 101,
  NRT_EXEC_BAD_INPUT = 1002,
  NRT_EXEC_COMPLETED_WITH_NUM_ERR = 1003,
  NRT_EXEC_COMPLETED_WITH_ERR = 1004,
  NRT_EXEC_NC_BUSY = 1005,
  NRT_EXEC_OOB = 1006,
  NRT_COLL_PENDING = 1100,
  NRT_EXEC_HW_ERR_COLLECTIVES = 1200,
  NRT_EXEC_HW_ERR_HBM_UE = 1201,
  NRT_EXEC_HW_ERR_NC_UE = 1202,
  NRT_EXEC_HW_ERR_DMA_ABORT = 1203,
  NRT_EXEC_SW_NQ_OVERFLOW = 1204,
  NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205,
  NRT_NETWORK_PROXY_FAILURE = 1206,
};

enum nrt_tensor_placement_t : int { NRT_TENSOR_PLACEMENT_DEVICE = 0, NRT_TENSOR_PLACEMENT_HOST = 1, NRT_TENSOR_PLACEMENT_VIRTUAL = 2 };
enum nrt_framework_type_t : int { NRT_FRAMEWORK_TYPE_NO_FW = 1, NRT_FRAMEWORK_TYPE_PYTORCH = 3 };
enum nrt_tensor_usage_t : int { NRT_TENSOR_USAGE_INPUT = 0, NRT_TENSOR_USAGE_OUTPUT = 1 };
enum nrt_dtype_t : int {
  NRT_DTYPE_UNKNOWN = 0x0,
  NRT_DTYPE_UINT64 = 0x1,
  NRT_DTYPE_INT8 = 0x2,
  NRT_DTYPE_UINT8 = 0x3,
  NRT_DTYPE_INT16 = 0x4,
  NRT_DTYPE_UINT16 = 0x5,
  NRT_DTYPE_BFLOAT16 = 0x6,
  NRT_DTYPE_FLOAT16 = 0x7,
  NRT_DTYPE_INT32 = 0x8,
  NRT_DTYPE_UINT32 = 0x9,
  NRT_DTYPE_FLOAT32 = 0xA,
  NRT_DTYPE_FP32R = 0xB,
  NRT_DTYPE_INT64 = 0xC,
  NRT_DTYPE_FP8_E3 = 0xD,
  NRT_DTYPE_FP8_E4 = 0xE,
  NRT_DTYPE_FP8_E5 = 0xF,
};
/// Execution unit of a logical core.
enum nrta_xu_t : int {
  NRTA_XU_TENSOR_READ = 0,
  NRTA_XU_TENSOR_WRITE = 1,
  NRTA_XU_TENSOR_OP = 2,
  NRTA_XU_COMPUTE = 3,
  NRTA_XU_COLLECTIVES = 4,
};

struct nrt_version_t {
  uint64_t rt_major, rt_minor, rt_patch, rt_maintenance;
  char rt_detail[128];
  char git_hash[64];
};
struct nrt_instance_info_t {
  uint32_t family;  ///< 5 to 13: kinds of trn2; 14, 15: trn3
  uint32_t size;
  char arch_name[16];
  char device_revision[8];
};
struct nrt_tensor_info_t {
  char name[256];
  nrt_tensor_usage_t usage;
  size_t size;
  nrt_dtype_t dtype;
  uint32_t* shape;
  uint32_t ndim;
};
struct nrt_tensor_info_array_t {
  uint64_t tensor_count;
  nrt_tensor_info_t tensor_array[1];  ///< tensor_count of them
};
struct nrt_vnc_memory_stats_t {
  size_t bytes_used, bytes_limit;
};

struct nrt_model_t;
struct nrt_tensor_t;
using nrt_tensor_set_t = void;
/// Upper 16 bits: execution unit; lower 48: number of the request in it.
using nrta_seq_t = uint64_t;

}  // extern "C"

static_assert(sizeof(nrt_version_t) == 224 && offsetof(nrt_version_t, git_hash) == 160);
static_assert(sizeof(nrt_instance_info_t) == 32 && sizeof(nrt_tensor_info_t) == 296 && offsetof(nrt_tensor_info_t, dtype) == 272);
static_assert(offsetof(nrt_tensor_info_array_t, tensor_array) == 8 && sizeof(nrt_vnc_memory_stats_t) == 16);

// ---- the table ----------------------------------------------------------------------------------------------------------

/// How the asynchronous functions are to be called, see nrt_async.h.
enum class AsyncForm {
  none,     ///< runtimes before 2.30, and whenever version and symbols disagree
  tracker,  ///< 2.30: errors are collected by a tracker
  status    ///< 2.31 and later: a status word per request
};

// One line per function that must be there: result, name, parameters.
#define NEURON_NRT_FUNCTIONS(F)                                                                                \
  F(NRT_STATUS, nrt_get_version, (nrt_version_t*, size_t))                                                     \
  F(NRT_STATUS, nrt_init, (nrt_framework_type_t, const char*, const char*))                                    \
  F(void, nrt_close, ())                                                                                       \
  F(NRT_STATUS, nrt_get_instance_info, (nrt_instance_info_t*, size_t))                                         \
  F(NRT_STATUS, nrt_get_visible_vnc_count, (uint32_t*))                                                        \
  F(NRT_STATUS, nrt_load, (const void*, size_t, int32_t, int32_t, nrt_model_t**))                              \
  F(NRT_STATUS, nrt_unload, (nrt_model_t*))                                                                    \
  F(NRT_STATUS, nrt_tensor_allocate, (nrt_tensor_placement_t, int, size_t, const char*, nrt_tensor_t**))       \
  F(NRT_STATUS, nrt_tensor_allocate_slice, (const nrt_tensor_t*, size_t, size_t, const char*, nrt_tensor_t**)) \
  F(void, nrt_tensor_free, (nrt_tensor_t**))                                                                   \
  F(NRT_STATUS, nrt_tensor_read, (const nrt_tensor_t*, void*, size_t, size_t))                                 \
  F(NRT_STATUS, nrt_tensor_write, (nrt_tensor_t*, const void*, size_t, size_t))                                \
  F(NRT_STATUS, nrt_tensor_copy, (const nrt_tensor_t*, size_t, nrt_tensor_t*, size_t, size_t))                 \
  F(NRT_STATUS, nrt_tensor_memset, (nrt_tensor_t*, uint64_t, int, size_t))                                     \
  F(NRT_STATUS, nrt_allocate_tensor_set, (nrt_tensor_set_t**))                                                 \
  F(void, nrt_destroy_tensor_set, (nrt_tensor_set_t**))                                                        \
  F(NRT_STATUS, nrt_add_tensor_to_tensor_set, (nrt_tensor_set_t*, const char*, nrt_tensor_t*))                 \
  F(NRT_STATUS, nrt_execute, (nrt_model_t*, const nrt_tensor_set_t*, nrt_tensor_set_t*))
// And those that older or newer runtimes may lack; null then.
#define NEURON_NRT_OPTIONAL_FUNCTIONS(F) F(NRT_STATUS, nrt_get_vnc_memory_stats, (uint32_t, nrt_vnc_memory_stats_t*, size_t, size_t*))

/// The functions of an opened libnrt.
struct Nrt {
#define NEURON_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  NEURON_NRT_FUNCTIONS(NEURON_DECLARE)
  NEURON_NRT_OPTIONAL_FUNCTIONS(NEURON_DECLARE)
#undef NEURON_DECLARE

  void* handle = nullptr;  ///< of dlopen
  std::string path;        ///< that was given to dlopen
  uint64_t minor = 0;      ///< of the runtime's version 2.minor; 30 to 34 are known
  AsyncForm async = AsyncForm::none;

  void* symbol(const char* name) const;  ///< null when there is none
  template <class Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }
};

/// Opens the library: /opt/aws/neuron/lib/libnrt.so.1, then the loader's path. Null when there is none; `why` then says what was tried.
/// Throws c10::Error when one was found that lacks a function, naming both.
const Nrt* open_nrt(std::string* why);
/// The opened library. Only after open_nrt() gave one.
const Nrt& nrt();

/// HBM of core `vnc` as the runtime counts it; nothing where it does not tell.
std::optional<nrt_vnc_memory_stats_t> memory_stats(int vnc);

// ---- status -> error ----------------------------------------------------------------------------------------------------

/// "NRT_RESOURCE" for 4; "NRT status 77" for a value that is not known.
std::string status_name(NRT_STATUS status);

/// Nothing more can run in this process after it.
bool is_terminal(NRT_STATUS status);

/// Throws what `status` stands for, with what was attempted, the status' name and number, and what to do: c10::OutOfMemoryError for
/// NRT_RESOURCE, c10::AcceleratorError for a core that is lost, c10::IndexError for out-of-bounds accesses, else c10::Error.
[[noreturn]] void raise_status(NRT_STATUS status, const std::string& attempted);

inline void check(NRT_STATUS status, const char* attempted) {
  if (status != NRT_SUCCESS) [[unlikely]]
    raise_status(status, attempted);
}

}  // namespace neuron::trainium
