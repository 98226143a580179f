// Device memory and tensor sets.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/standin_sdk/libnrt/faults.h"

namespace standin {
namespace {

bool inside(const nrt_tensor_t* tensor, size_t offset, size_t size) {
  return tensor && offset <= tensor->bytes && size <= tensor->bytes - offset;
}

char* bytes_of(const nrt_tensor_t* tensor) { return tensor->storage->data + tensor->offset; }

}  // namespace

Storage::~Storage() {
  auto& r = runtime();
  {
    std::lock_guard lock(r.mutex);
    if (core < static_cast<int>(r.cores.size())) {
      r.cores[core]->used -= bytes;
      if (r.cores[core]->executor) r.cores[core]->executor->forget(fd);
    }
  }
  if (data) munmap(data, bytes);
  if (fd >= 0) close(fd);
}

}  // namespace standin

using namespace standin;

STANDIN_EXPORT NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int vnc, size_t size, const char* name,
                                              nrt_tensor_t** out) {
  STANDIN_ENTER("nrt_tensor_allocate");
  auto& r = runtime();
  if (placement == NRT_TENSOR_PLACEMENT_VIRTUAL) return NRT_INVALID;  // gone since 2.32
  const int core = placement == NRT_TENSOR_PLACEMENT_HOST ? 0 : vnc;
  auto storage = std::make_shared<Storage>();
  {
    std::lock_guard lock(r.mutex);
    if (core < 0 || core >= static_cast<int>(r.cores.size()) || size == 0) return NRT_INVALID;
    if (r.cores[core]->limit - r.cores[core]->used < size) {
      log_error("log_dev_mem",
                "Failed to allocate " + std::to_string(size) + "B (alignment: none, usage: tensors) on ND 0:NC " + std::to_string(core));
      storage->core = 1 << 20;  // counts nowhere
      return NRT_RESOURCE;
    }
    r.cores[core]->used += size;
  }
  storage->core = core;
  storage->bytes = size;
  storage->fd = memfd_create("standin-hbm", MFD_CLOEXEC);
  if (storage->fd < 0 || ftruncate(storage->fd, static_cast<off_t>(size)) != 0) return NRT_FAIL_HOST_MEM_ALLOC;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, storage->fd, 0);
  if (data == MAP_FAILED) return NRT_FAIL_HOST_MEM_ALLOC;
  storage->data = static_cast<char*>(data);
  *out = new nrt_tensor_t{std::move(storage), 0, size, name ? name : ""};
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* source, size_t offset, size_t size, const char* name,
                                                    nrt_tensor_t** slice) {
  STANDIN_ENTER("nrt_tensor_allocate_slice");
  if (!inside(source, offset, size)) return NRT_INVALID;
  *slice = new nrt_tensor_t{source->storage, source->offset + offset, size, name ? name : ""};
  return NRT_SUCCESS;
}

STANDIN_EXPORT void nrt_tensor_free(nrt_tensor_t** tensor) {
  if (!tensor || !*tensor) return;
  delete *tensor;
  *tensor = nullptr;
}

STANDIN_EXPORT NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* to, size_t offset, size_t size) {
  STANDIN_ENTER("nrt_tensor_read");
  if (!inside(tensor, offset, size)) return NRT_INVALID;
  memcpy(to, bytes_of(tensor) + offset, size);
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* from, size_t offset, size_t size) {
  STANDIN_ENTER("nrt_tensor_write");
  if (!inside(tensor, offset, size)) return NRT_INVALID;
  memcpy(bytes_of(tensor) + offset, from, size);
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* from, size_t from_offset, nrt_tensor_t* to, size_t to_offset, size_t size) {
  STANDIN_ENTER("nrt_tensor_copy");
  if (!inside(from, from_offset, size) || !inside(to, to_offset, size) || from->storage->core != to->storage->core) return NRT_INVALID;
  memmove(bytes_of(to) + to_offset, bytes_of(from) + from_offset, size);
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value, size_t size) {
  STANDIN_ENTER("nrt_tensor_memset");
  if (!inside(tensor, offset, size)) return NRT_INVALID;
  memset(bytes_of(tensor) + offset, value, size);
  return NRT_SUCCESS;
}

STANDIN_EXPORT size_t nrt_tensor_get_size(const nrt_tensor_t* tensor) { return tensor ? tensor->bytes : 0; }
/// A device mapping on a chip; host code may not read through it, so none is given here.
STANDIN_EXPORT void* nrt_tensor_get_va(const nrt_tensor_t*) { return nullptr; }

STANDIN_EXPORT NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** set) {
  STANDIN_ENTER("nrt_allocate_tensor_set");
  *set = new TensorSet;
  return NRT_SUCCESS;
}

STANDIN_EXPORT void nrt_destroy_tensor_set(nrt_tensor_set_t** set) {
  if (!set) return;
  delete static_cast<TensorSet*>(*set);
  *set = nullptr;
}

STANDIN_EXPORT NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* set, const char* name, nrt_tensor_t* tensor) {
  STANDIN_ENTER("nrt_add_tensor_to_tensor_set");
  if (!set || !name || !tensor) return NRT_INVALID;
  static_cast<TensorSet*>(set)->tensors[name] = tensor;
  return NRT_SUCCESS;
}

STANDIN_EXPORT NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* set, const char* name, nrt_tensor_t** tensor) {
  STANDIN_ENTER("nrt_get_tensor_from_tensor_set");
  auto& tensors = static_cast<TensorSet*>(set)->tensors;
  auto found = tensors.find(name);
  if (found == tensors.end()) return NRT_FAILURE;
  *tensor = found->second;
  return NRT_SUCCESS;
}
