#include <ATen/core/CachingHostAllocator.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "csrc/aten/allocator.h"
#include "csrc/aten/guard.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/emulated/workspace.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"

namespace torch {
// As in torch/csrc/profiler/python/combined_traceback.h, which cannot be included: it needs a header that PyTorch's wheel does not bring.
TORCH_API std::vector<py::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
}  // namespace torch

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;
using neuron::DeviceCache;
using neuron::NeuronAllocator;

DeviceCache& cache_of(int device) {
  neuron::check_device(device);
  return NeuronAllocator::get().cache(device);
}

// ---- Statistics, in the shape of torch.cuda.memory_stats_as_nested_dict() -----------------------------------------------

py::dict to_dict(const Stat& stat) {
  py::dict out;
  out["current"] = stat.current;
  out["peak"] = stat.peak;
  out["allocated"] = stat.allocated;
  out["freed"] = stat.freed;
  return out;
}

py::dict to_dict(const StatArray& stats) {
  py::dict out;
  out["all"] = to_dict(stats[0]);
  out["small_pool"] = to_dict(stats[1]);
  out["large_pool"] = to_dict(stats[2]);
  return out;
}

py::dict memory_stats(int device) {
  const auto stats = cache_of(device).stats();
  py::dict out;
  out["allocation"] = to_dict(stats.allocation);
  out["segment"] = to_dict(stats.segment);
  out["active"] = to_dict(stats.active);
  out["inactive_split"] = to_dict(stats.inactive_split);
  out["allocated_bytes"] = to_dict(stats.allocated_bytes);
  out["reserved_bytes"] = to_dict(stats.reserved_bytes);
  out["active_bytes"] = to_dict(stats.active_bytes);
  out["inactive_split_bytes"] = to_dict(stats.inactive_split_bytes);
  out["requested_bytes"] = to_dict(stats.requested_bytes);
  out["oversize_allocations"] = to_dict(stats.oversize_allocations);
  out["oversize_segments"] = to_dict(stats.oversize_segments);
  out["num_alloc_retries"] = stats.num_alloc_retries;
  out["num_ooms"] = stats.num_ooms;
  out["num_sync_all_streams"] = stats.num_sync_all_streams;
  out["num_device_alloc"] = stats.num_device_alloc;
  out["num_device_free"] = stats.num_device_free;
  out["num_tensor_frees"] = stats.allocation[0].freed;  // AWS's name
  out["max_split_size"] = stats.max_split_size;
  const neuron::Workspace& workspace = neuron::workspace(device);
  py::dict temporaries;
  temporaries["current"] = workspace.bytes_reserved();
  temporaries["peak"] = workspace.peak_bytes_reserved();
  out["workspace_bytes"] = temporaries;
  return out;
}

py::dict to_dict(const c10::CachingAllocator::DurationStat& stat) {
  py::dict out;
  out["total"] = stat.total;
  out["max"] = stat.max;
  out["min"] = stat.min;
  out["count"] = stat.count;
  out["avg"] = stat.count ? stat.total / stat.count : 0;
  return out;
}

at::HostAllocator& host_allocator() { return *at::getHostAllocator(at::kPrivateUse1); }

py::dict host_memory_stats() {
  const auto stats = host_allocator().get_stats();
  py::dict out;
  out["active_requests"] = to_dict(stats.active_requests);
  out["active_bytes"] = to_dict(stats.active_bytes);
  out["allocations"] = to_dict(stats.allocations);
  out["allocated_bytes"] = to_dict(stats.allocated_bytes);
  out["host_alloc_time"] = to_dict(stats.host_alloc_time);
  out["host_free_time"] = to_dict(stats.host_free_time);
  out["num_host_alloc"] = stats.num_host_alloc;
  out["num_host_free"] = stats.num_host_free;
  return out;
}

// ---- Snapshot, in the shape of torch.cuda.memory._snapshot() ------------------------------------------------------------

/// Stack traces that wait to become lists of frames: all at once, as each lookup of C++ symbols is slow.
class Frames {
 public:
  void add(py::dict owner, const std::shared_ptr<c10::GatheredContext>& context) {
    owner["frames"] = py::list();
    auto* trace = dynamic_cast<torch::CapturedTraceback*>(context.get());
    if (!trace) return;
    owners_.push_back(std::move(owner));
    traces_.push_back(trace);
  }
  void resolve() {
    const auto frames = torch::py_symbolize(traces_);
    for (size_t i = 0; i < owners_.size(); ++i) owners_[i]["frames"] = frames[i];
  }

 private:
  std::vector<py::dict> owners_;
  std::vector<torch::CapturedTraceback*> traces_;
};

int64_t stream_id(void* stream) { return stream ? static_cast<neuron::Stream*>(stream)->id : 0; }

py::list blocks_of(const SegmentInfo& segment, Frames& frames) {
  py::list blocks;
  size_t address = segment.address;
  for (const auto& info : segment.blocks) {
    py::dict block;
    block["address"] = address;
    block["size"] = info.size;
    block["requested_size"] = info.requested_size;
    block["state"] = info.allocated ? "active_allocated" : info.active ? "active_awaiting_free" : "inactive";
    frames.add(block, info.context_when_allocated);
    blocks.append(block);
    address += info.size;
  }
  return blocks;
}

py::dict to_dict(const SegmentInfo& info, Frames& frames) {
  py::dict segment;
  segment["device"] = info.device;
  segment["address"] = info.address;
  segment["total_size"] = info.total_size;
  segment["allocated_size"] = info.allocated_size;
  segment["active_size"] = info.active_size;
  segment["requested_size"] = info.requested_size;
  segment["stream"] = stream_id(info.stream);
  segment["segment_type"] = info.is_large ? "large" : "small";
  segment["segment_pool_id"] = py::make_tuple(0, 0);
  segment["is_expandable"] = false;
  segment["blocks"] = blocks_of(info, frames);
  frames.add(segment, info.context_when_allocated);
  return segment;
}

const char* action_name(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::ALLOC:
      return "alloc";
    case TraceEntry::FREE_REQUESTED:
      return "free_requested";
    case TraceEntry::FREE_COMPLETED:
      return "free_completed";
    case TraceEntry::SEGMENT_ALLOC:
      return "segment_alloc";
    case TraceEntry::SEGMENT_FREE:
      return "segment_free";
    case TraceEntry::OOM:
      return "oom";
    default:
      return "snapshot";
  }
}

py::dict to_dict(const TraceEntry& entry, const std::function<time_t(c10::approx_time_t)>& to_nanoseconds, Frames& frames) {
  py::dict out;
  out["action"] = action_name(entry.action_);
  out[entry.action_ == TraceEntry::OOM ? "device_free" : "addr"] = entry.addr_;
  out["size"] = entry.size_;
  out["stream"] = stream_id(entry.stream_);
  out["pool_id"] = py::make_tuple(0, 0);
  out["time_us"] = to_nanoseconds(entry.time_.approx_t_) / 1000;
  out["compile_context"] = entry.compile_context_;
  out["user_metadata"] = entry.user_metadata_;
  frames.add(out, entry.context_);
  return out;
}

py::dict snapshot() {
  // The contexts that `frames` points to live in these two until it is resolved.
  std::vector<std::vector<SegmentInfo>> segments;
  std::vector<std::vector<TraceEntry>> traces;
  for (int device = 0; device < neuron::visible_devices(); ++device) {
    DeviceCache* cache = NeuronAllocator::get().cache_if_open(device);
    segments.push_back(cache ? cache->snapshot() : std::vector<SegmentInfo>());
    traces.push_back(cache ? cache->recorded() : std::vector<TraceEntry>());
  }
  Frames frames;
  py::list segment_list, trace_list;
  for (const auto& of_device : segments)
    for (const auto& segment : of_device) segment_list.append(to_dict(segment, frames));
  c10::ApproximateClockToUnixTimeConverter clock;
  const std::function<time_t(c10::approx_time_t)> to_nanoseconds = clock.makeConverter();
  for (const auto& of_device : traces) {
    py::list entries;
    for (const auto& entry : of_device) entries.append(to_dict(entry, to_nanoseconds, frames));
    trace_list.append(entries);
  }
  frames.resolve();

  const auto& settings = neuron::settings();
  py::dict allocator_settings;
  allocator_settings["TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG"] =
      "kMaxSplitSizeBytes=" + std::to_string(settings.max_split_bytes) +
      ",kMaxNonSplitRoundingBytes=" + std::to_string(settings.max_non_split_rounding_bytes);
  py::dict out;
  out["segments"] = segment_list;
  out["device_traces"] = trace_list;
  out["allocator_settings"] = allocator_settings;
  out["external_annotations"] = py::list();
  return out;
}

std::shared_ptr<c10::GatheredContext> python_stack() { return torch::CapturedTraceback::gather(true, true, false); }
std::shared_ptr<c10::GatheredContext> full_stack() { return torch::CapturedTraceback::gather(true, true, true); }

/// `level` says what gets a stack trace, see c10's RecordContext; `keep_events` whether there is a history at all.
void record_history(bool enabled, int level, bool keep_events, bool cpp_stacks, size_t entries, bool clear) {
  for (int device = 0; device < neuron::visible_devices(); ++device) {
    cache_of(device).record(enabled, cpp_stacks ? full_stack : python_stack, keep_events ? entries : 0, static_cast<RecordContext>(level),
                            clear);
  }
}

}  // namespace

void bind_memory(py::module_& m) {
  using torch::wrap_pybind_function;
  m.def("_memory_stats", wrap_pybind_function(memory_stats), py::arg("device"));
  m.def("_memory_reset_peak", wrap_pybind_function([](int device) { cache_of(device).reset_peak(); }), py::arg("device"));
  m.def("_memory_reset_accumulated", wrap_pybind_function([](int device) { cache_of(device).reset_accumulated(); }), py::arg("device"));
  m.def("_memory_info", wrap_pybind_function([](int device) { return NeuronAllocator::get().getMemoryInfo(device); }), py::arg("device"));
  m.def("_memory_empty_cache", wrap_pybind_function([] { NeuronAllocator::get().emptyCache({0, 0}); }));
  m.def("_memory_fraction", wrap_pybind_function([](int device) { return cache_of(device).fraction(); }), py::arg("device"));
  m.def("_memory_set_fraction", wrap_pybind_function([](int device, double fraction) { cache_of(device).set_fraction(fraction); }),
        py::arg("device"), py::arg("fraction"));
  m.def("_memory_snapshot", wrap_pybind_function(snapshot));
  m.def("_memory_record_history", wrap_pybind_function(record_history), py::arg("enabled"), py::arg("level"), py::arg("keep_events"),
        py::arg("cpp_stacks"), py::arg("entries"), py::arg("clear"));
  m.def(
      "_device_of_address", [](size_t address) { return NeuronAllocator::device_of(reinterpret_cast<void*>(address)); }, py::arg("address"),
      "Index of the device whose memory holds the address, -1 when none does.");
  m.def("_host_memory_stats", wrap_pybind_function(host_memory_stats));
  m.def("_host_memory_reset_peak", wrap_pybind_function([] { host_allocator().reset_peak_stats(); }));
  m.def("_host_memory_reset_accumulated", wrap_pybind_function([] { host_allocator().reset_accumulated_stats(); }));
  m.def("_host_memory_empty_cache", wrap_pybind_function([] { host_allocator().empty_cache(); }));
}
