#include "csrc/aten/call_reader.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "csrc/aten/guard.h"

namespace neuron {
namespace {

// First word of each value in a key: its tag in the low byte, facts above it.
enum Tag : uint64_t {
  kNone = 1,
  kTensor,
  kUndefined,
  kAlias,
  kOffset,
  kHostScalar,
  kNumber,
  kInt,
  kDouble,
  kBool,
  kComplex,
  kString,
  kList,
  kDevice
};

constexpr uint64_t kContiguous = 1ULL << 40;
constexpr int kLinearSearch = 16;

uint64_t bits(double value) {
  uint64_t word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

/// Of a contiguous tensor. A dimension of size one may have any stride, and an empty tensor any: results repeat them.
bool has_usual_strides(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != expected) return false;
    expected *= std::max<int64_t>(sizes[d], 1);
  }
  return true;
}

}  // namespace

/// Matmul precision is none of them: kernels read it when they run, and asking for it costs several hash look-ups.
uint64_t global_flags() {
  const auto& context = at::globalContext();
  uint64_t flags = static_cast<uint64_t>(c10::typeMetaToScalarType(c10::get_default_dtype()));
  flags |= uint64_t{context.deterministicAlgorithms()} << 8;
  flags |= uint64_t{context.deterministicFillUninitializedMemory()} << 9;
  flags |= uint64_t{context.userEnabledMkldnn()} << 10;
  return flags;
}

CallReader::CallReader(const c10::OperatorHandle& op, const OpSpec& spec, c10::ArrayRef<c10::IValue> arguments)
    : op_(op), spec_(spec), arguments_(arguments) {}

bool CallReader::read() {
  key_.push_back(0);  // the device, known at the end
  key_.push_back(global_flags());
  for (size_t i = 0; i < arguments_.size(); ++i) {
    marks_.push_back(static_cast<uint32_t>(key_.size()));
    read_value(arguments_[i], spec_.arguments[i], {static_cast<int>(i), -1});
    if (cpu_argument_ >= 0) {
      settle_device();
      return false;
    }
  }
  settle_device();
  key_[0] = static_cast<uint64_t>(device_);
  return true;
}

void CallReader::read_value(const c10::IValue& value, const ArgSpec& spec, Place place) {
  if (value.isTensor()) {
    read_tensor(value.toTensor(), spec, place);
  } else if (value.isNone()) {
    key_.push_back(kNone);
  } else if (spec.number && value.isScalar()) {
    read_scalar(value, place);
  } else if (value.isInt()) {
    key_.push_back(kInt);
    key_.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    key_.push_back(kDouble);
    key_.push_back(bits(value.toDouble()));
  } else if (value.isBool()) {
    key_.push_back(kBool | uint64_t{value.toBool()} << 8);
  } else if (value.isList()) {
    read_list(value, spec, place.arg);
  } else if (value.isDevice()) {
    auto device = value.toDevice();
    key_.push_back(kDevice);
    if (device.is_privateuseone()) asked_device_ = device.has_index() ? device.index() : current_device();
  } else if (value.isComplexDouble()) {
    key_.push_back(kComplex);
    key_.push_back(bits(value.toComplexDouble().real()));
    key_.push_back(bits(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    const auto& text = value.toStringRef();
    key_.push_back(kString | uint64_t{text.size()} << 8);
    for (size_t at = 0; at < text.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
      key_.push_back(word);
    }
  } else {
    cacheable_ = false;  // generators, streams, symbolic values...: run inline
    key_.push_back(kNone);
  }
}

void CallReader::read_list(const c10::IValue& value, const ArgSpec& spec, int arg) {
  auto elements = value.toListRef();
  key_.push_back(kList | uint64_t{elements.size()} << 8);
  for (size_t i = 0; i < elements.size(); ++i) {
    // Sizes and the like: the tag is not needed, the schema fixes the element type.
    if (!spec.number && elements[i].isInt())
      key_.push_back(static_cast<uint64_t>(elements[i].toInt()));
    else
      read_value(elements[i], spec, {arg, static_cast<int>(i)});
  }
}

void CallReader::read_scalar(const c10::IValue& value, Place place) {
  Payload payload;
  payload.place = place;
  payload.word = static_cast<int>(words_.size());
  uint64_t first = 0, second = 0;
  if (value.isInt()) {
    first = static_cast<uint64_t>(value.toInt());
  } else if (value.isBool()) {
    payload.type = Payload::Type::boolean;
    first = value.toBool();
  } else if (value.isDouble()) {
    payload.type = Payload::Type::real;
    first = bits(value.toDouble());
  } else {
    payload.type = Payload::Type::complex;
    first = bits(value.toComplexDouble().real());
    second = bits(value.toComplexDouble().imag());
  }
  key_.push_back(kNumber | static_cast<uint64_t>(payload.type) << 8);
  if (spec_.scalars_in_key) {
    key_.push_back(first);
    key_.push_back(second);
    return;
  }
  words_.push_back(first);
  words_.push_back(second);
  payloads_.push_back(payload);
}

void CallReader::read_tensor(const at::Tensor& tensor, const ArgSpec& spec, Place place) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined()) {
    key_.push_back(kUndefined);
    return;
  }
  if (C10_UNLIKELY(!impl->device().is_privateuseone())) return read_host_tensor(tensor, spec, place);
  TORCH_CHECK_NOT_IMPLEMENTED(impl->layout() == at::kStrided, op_.operator_name(), " got a tensor of layout ", impl->layout(),
                              ", which device neuron does not hold yet");
  const int device = impl->device().index();
  if (device_ < 0)
    device_ = device;
  else if (device_ != device)
    fail_mixed(tensor);

  const auto sizes = impl->sizes();
  const bool contiguous = impl->is_contiguous() && has_usual_strides(sizes, impl->strides());
  const auto dtype = c10::typeMetaToScalarType(impl->dtype());
  key_.push_back(kTensor | static_cast<uint64_t>(dtype) << 8 | uint64_t{sizes.size()} << 16 | uint64_t{tensor.is_conj()} << 32 |
                 uint64_t{tensor.is_neg()} << 33 | uint64_t{impl->is_wrapped_number()} << 34 | uint64_t{tensor._is_zerotensor()} << 35 |
                 uint64_t{impl->requires_grad() && at::GradMode::is_enabled()} << 36 | (contiguous ? kContiguous : 0));
  for (int64_t size : sizes) key_.push_back(static_cast<uint64_t>(size));
  if (!contiguous) {
    for (int64_t stride : impl->strides()) key_.push_back(static_cast<uint64_t>(stride));
  }
  if (spec_.shaped_by_masks && place.element >= 0 && (dtype == at::kBool || dtype == at::kByte)) cacheable_ = false;

  Ref ref{&tensor, place, -1, static_cast<int>(tensors_.size()), -1, false, false};
  join_group(ref);
  if (ref.leader == static_cast<int>(tensors_.size())) {
    ref.word = static_cast<int>(words_.size());
    auto* start = static_cast<char*>(const_cast<void*>(impl->unsafe_storage().unsafeGetStorageImpl()->data()));
    words_.push_back(reinterpret_cast<uint64_t>(start ? start + impl->storage_offset() * impl->itemsize() : nullptr));
    if (spec_.offsets_in_key) {
      ref.grouped = true;
      key_.push_back(kOffset);
      key_.push_back(static_cast<uint64_t>(impl->storage_offset()));
    }
  }
  tensors_.push_back(ref);
}

/// See Note [Storage groups]. The offsets of leader and member enter the key when a group gets its second member.
void CallReader::join_group(Ref& ref) {
  const auto* impl = ref.tensor->unsafeGetTensorImpl();
  int leader = find_storage(impl->unsafe_storage().unsafeGetStorageImpl());
  if (leader < 0) return;
  ref.leader = leader;
  ref.grouped = true;
  tensors_[leader].grouped = true;
  for (size_t i = leader; i < tensors_.size() && ref.same_as < 0; ++i) {
    if (tensors_[i].leader == leader && tensors_[i].tensor->unsafeGetTensorImpl() == impl) ref.same_as = static_cast<int>(i);
  }
  key_.push_back(kAlias | static_cast<uint64_t>(leader) << 8 | static_cast<uint64_t>(ref.same_as + 1) << 32);
  key_.push_back(static_cast<uint64_t>(tensors_[leader].tensor->storage_offset()));
  key_.push_back(static_cast<uint64_t>(impl->storage_offset()));
}

int CallReader::find_storage(const c10::StorageImpl* storage) {
  if (tensors_.size() < kLinearSearch) {
    for (const auto& ref : tensors_) {
      if (!ref.host_scalar && ref.tensor->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage) return ref.leader;
    }
    return -1;
  }
  if (!storages_) {
    storages_ = std::make_unique<std::unordered_map<const c10::StorageImpl*, int>>();
    for (const auto& ref : tensors_) {
      if (!ref.host_scalar) storages_->emplace(ref.tensor->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), ref.leader);
    }
  }
  auto [found, added] = storages_->emplace(storage, static_cast<int>(tensors_.size()));
  return added ? -1 : found->second;
}

void CallReader::read_host_tensor(const at::Tensor& tensor, const ArgSpec& spec, Place place) {
  if (spec.accepts_cpu && !spec.written && tensor.is_cpu()) {
    cpu_argument_ = place.arg;
    return;
  }
  if (!tensor.is_cpu() || tensor.dim() != 0 || spec.written || tensor.layout() != at::kStrided) fail_mixed(tensor);
  const auto* impl = tensor.unsafeGetTensorImpl();
  key_.push_back(kHostScalar | static_cast<uint64_t>(tensor.scalar_type()) << 8 | uint64_t{impl->is_wrapped_number()} << 34 |
                 uint64_t{tensor.is_conj()} << 32 | uint64_t{tensor.is_neg()} << 33);
  uint64_t value[2] = {0, 0};
  std::memcpy(value, tensor.const_data_ptr(), tensor.element_size());
  tensors_.push_back({&tensor, place, static_cast<int>(words_.size()), static_cast<int>(tensors_.size()), -1, true, false});
  words_.append(value, value + 2);
}

void CallReader::settle_device() {
  if (device_ < 0) device_ = asked_device_ >= 0 ? asked_device_ : current_device();
  bool only_host_tensors = !tensors_.empty();
  for (const auto& ref : tensors_) only_host_tensors &= ref.host_scalar;
  if (only_host_tensors && asked_device_ < 0) fail_mixed(*tensors_[0].tensor);
}

void CallReader::fail_mixed(const at::Tensor& other) const {
  std::string device = device_ >= 0 ? c10::str("neuron:", device_) : std::string("neuron");
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ", other.device(),
              "! (when calling ", op_.operator_name(), "). Move them together with .to(\"", device, "\").");
}

Program CallReader::program() const {
  Program program;
  OpCall call{op_, {}, {}, {payloads_.begin(), payloads_.end()}};
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const auto& value = arguments_[i];
    if (value.isTensor()) {
      call.arguments.emplace_back(at::Tensor());
    } else if (value.isDevice()) {
      call.arguments.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else if (value.isList()) {
      // A list of its own; tensors leave it, so that a kept Program holds no memory.
      auto list = value.toList().copy();
      for (size_t e = 0; e < list.size(); ++e) {
        if (list.get(e).isTensor()) list.set(e, at::Tensor());
      }
      call.arguments.emplace_back(list);
    } else {
      call.arguments.push_back(value);
    }
  }
  for (const auto& ref : tensors_) {
    TensorSlot slot;
    slot.place = ref.place;
    slot.meta = TensorMeta::of(*ref.tensor, ref.grouped ? ref.tensor->storage_offset() : 0);
    slot.word = ref.word;
    slot.leader = ref.leader;
    slot.same_as = ref.same_as;
    slot.host_scalar = ref.host_scalar;
    slot.written = spec_.arguments[ref.place.arg].written;
    slot.read = !spec_.arguments[ref.place.arg].out;
    call.tensors.push_back(std::move(slot));
  }
  program.input_words = static_cast<int>(words_.size());
  program.calls.push_back(std::move(call));
  return program;
}

std::vector<at::Tensor> CallReader::tensors() const {
  std::vector<at::Tensor> all;
  for (const auto& ref : tensors_) all.push_back(*ref.tensor);
  return all;
}

// ---- explain ----

namespace {

std::string describe_words(c10::ArrayRef<uint64_t> words) {
  if (words.empty()) return "nothing";
  std::ostringstream out;
  uint64_t head = words[0];
  switch (head & 0xff) {
    case kNone:
      return "None";
    case kUndefined:
      return "an undefined tensor";
    case kTensor: {
      size_t dim = head >> 16 & 0xffff;
      out << c10::toString(static_cast<at::ScalarType>(head >> 8 & 0xff)) << " sizes [";
      for (size_t d = 0; d < dim; ++d) out << (d ? ", " : "") << static_cast<int64_t>(words[1 + d]);
      out << "]";
      size_t rest = 1 + dim;
      if (!(head & kContiguous)) {
        out << " strides [";
        for (size_t d = 0; d < dim; ++d) out << (d ? ", " : "") << static_cast<int64_t>(words[rest + d]);
        out << "]";
        rest += dim;
      }
      if (words.size() > rest) out << ((words[rest] & 0xff) == kAlias ? " sharing memory with another argument" : " at a storage offset");
      return out.str();
    }
    case kHostScalar:
      return std::string("a CPU scalar tensor of ") + c10::toString(static_cast<at::ScalarType>(head >> 8 & 0xff));
    case kNumber: {
      const char* names[] = {"int", "bool", "float", "complex"};
      return std::string("a number of type ") + names[head >> 8 & 3];
    }
    case kInt:
      out << static_cast<int64_t>(words[1]);
      return out.str();
    case kDouble: {
      double value;
      std::memcpy(&value, &words[1], sizeof value);
      out << value;
      return out.str();
    }
    case kBool:
      return head >> 8 ? "True" : "False";
    case kList:
      out << "a list of " << (head >> 8);
      if ((head >> 8) == words.size() - 1) {
        out << ": [";
        for (size_t i = 1; i < words.size(); ++i) out << (i > 1 ? ", " : "") << static_cast<int64_t>(words[i]);
        out << "]";
      }
      return out.str();
    default:
      return "another value";
  }
}

}  // namespace

std::string describe_difference(const c10::OperatorHandle& op, c10::ArrayRef<uint64_t> before, c10::ArrayRef<uint32_t> marks_before,
                                c10::ArrayRef<uint64_t> now, c10::ArrayRef<uint32_t> marks_now) {
  if (before[0] != now[0]) return c10::str("device: neuron:", before[0], " -> neuron:", now[0]);
  if (before[1] != now[1]) return "global flags: default dtype, deterministic mode or oneDNN switch changed";
  auto words_of = [](c10::ArrayRef<uint64_t> key, c10::ArrayRef<uint32_t> marks, size_t i) {
    size_t end = i + 1 < marks.size() ? marks[i + 1] : key.size();
    return key.slice(marks[i], end - marks[i]);
  };
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < marks_now.size() && i < marks_before.size(); ++i) {
    auto a = words_of(before, marks_before, i), b = words_of(now, marks_now, i);
    if (a == b) continue;
    return c10::str("arg ", i, " (", arguments[i].name(), "): ", describe_words(a), " -> ", describe_words(b));
  }
  return "the same arguments, evicted from the cache before";
}

}  // namespace neuron
