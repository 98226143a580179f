#include "csrc/aten/recorder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "csrc/aten/interrupt.h"

namespace neuron {
namespace {

int64_t byte_offset(const at::TensorBase& tensor) { return tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()); }

const void* data_of(const at::TensorBase& tensor) { return tensor.storage().unsafeGetStorageImpl()->data(); }

double as_double(const at::Tensor& scalar) {
  if (c10::isComplexType(scalar.scalar_type())) return std::numeric_limits<double>::quiet_NaN();
  return scalar.item().toDouble();
}

double as_double(Payload::Type type, uint64_t word) {
  double real = 0;
  std::memcpy(&real, &word, sizeof real);
  return type == Payload::Type::real || type == Payload::Type::complex ? real : static_cast<double>(static_cast<int64_t>(word));
}

}  // namespace

void interrupt(const char* why) {
  if (Recorder* recorder = Recorder::current()) recorder->stop(why);
}

Recorder::Recorder(std::string name, c10::ArrayRef<c10::IValue> inputs, Stream& stream)
    : inputs_(inputs), stream_(stream), sequence_(std::make_shared<Sequence>()) {
  TORCH_INTERNAL_ASSERT(current_ == nullptr);
  sequence_->name = std::move(name);
  for (size_t i = 0; i < inputs.size(); ++i) {
    metas_.emplace_back();
    data_.push_back(nullptr);
    versions_.push_back(0);
    if (inputs[i].isTensor() && inputs[i].toTensor().defined()) add_input(inputs[i].toTensor(), static_cast<int>(i));
  }
  sequence_->input_storages = static_cast<int>(sequence_->storages.size());
  sequence_->scalars = static_cast<int>(scalar_values_.size());
  keyed_scalars_.assign(scalar_values_.size(), false);
  met_scalars_.assign(scalar_values_.size(), false);
  current_ = this;
}

Recorder::~Recorder() {
  if (current_ == this) current_ = nullptr;
}

void Recorder::add_input(const at::Tensor& tensor, int input) {
  by_tensor_.emplace(tensor.unsafeGetTensorImpl(), input);
  if (tensor.is_cpu()) {
    scalars_.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(scalar_values_.size()));
    scalar_values_.push_back(as_double(tensor));
    return;
  }
  metas_[input] = TensorMeta::of(tensor, tensor.storage_offset());
  data_[input] = data_of(tensor);
  if (!tensor.is_inference()) versions_[input] = tensor.unsafeGetTensorImpl()->version_counter().current_version();
  if (find_storage(tensor.storage()) >= 0) return;
  SequenceStorage storage;
  storage.kind = SequenceStorage::Kind::input;
  storage.input = input;
  bases_[add_storage(tensor.storage(), storage)] = byte_offset(tensor);
}

void Recorder::stop(std::string why) {
  if (reason_.empty()) reason_ = std::move(why);
}

int Recorder::add_storage(const c10::Storage& storage, SequenceStorage meta) {
  const int index = static_cast<int>(sequence_->storages.size());
  by_storage_[storage.unsafeGetStorageImpl()] = index;
  pins_.push_back(storage.getWeakStorageImpl());
  bases_.push_back(0);
  sequence_->storages.push_back(meta);
  return index;
}

int Recorder::find_storage(const c10::Storage& storage) const {
  auto found = by_storage_.find(storage.unsafeGetStorageImpl());
  return found == by_storage_.end() ? -1 : found->second;
}

bool Recorder::locate(const at::Tensor& tensor, Operand* operand) {
  if (tensor.storage().nbytes() == 0 || data_of(tensor) == nullptr) return true;
  const int index = find_storage(tensor.storage());
  if (index < 0) {
    stop("a tensor that is neither an input nor made by a recorded call");
    return false;
  }
  auto& storage = sequence_->storages[index];
  if (storage.kind == SequenceStorage::Kind::fresh) storage.bytes = std::max(storage.bytes, tensor.storage().nbytes());
  *operand = {index, byte_offset(tensor) - bases_[index]};
  storage.begin = std::min(storage.begin, operand->byte_offset);
  storage.end = std::max(storage.end, operand->byte_offset + static_cast<int64_t>(TensorMeta::of(tensor, 0).span_bytes()));
  return true;
}

void Recorder::made(const c10::Storage& storage) {
  if (stopped()) return;
  SequenceStorage meta;
  meta.bytes = storage.nbytes();
  add_storage(storage, meta);
}

void Recorder::drew(uint64_t seed, uint64_t offset, uint64_t words) {
  draws_.push_back({seed, offset, sequence_->draws});
  sequence_->draws += words;
}

std::optional<std::pair<uint64_t, uint64_t>> Recorder::drawn_from() const {
  if (draws_.empty()) return std::nullopt;
  const auto [seed, first] = std::pair(draws_[0].seed, draws_[0].offset);
  for (const auto& draw : draws_) {
    if (draw.seed != seed || draw.offset - first != draw.relative) return std::nullopt;
  }
  return std::pair(seed, first);
}

/// A number that a launch was given and that no input is known to have given: if a scalar input has the same value, it may have.
void Recorder::note_constant(double value) {
  for (size_t s = 0; s < scalar_values_.size(); ++s) {
    if (scalar_values_[s] == value || std::isnan(scalar_values_[s])) keyed_scalars_[s] = true;
  }
}

/// The seed and offset payloads of a random call: the last four words before the fresh storages.
bool Recorder::read_draw(const Program& program, c10::ArrayRef<uint64_t> words, SequenceCall& recorded) {
  const int offset_word = program.input_words - 2, seed_word = program.input_words - 4;
  auto draw = std::find_if(draws_.rbegin(), draws_.rend(),
                           [&](const Draw& d) { return d.offset == words[offset_word] && d.seed == words[seed_word]; });
  if (draw == draws_.rend()) {
    stop("random numbers from a generator of its own");
    return false;
  }
  recorded.words[seed_word].kind = WordSource::Kind::seed;
  recorded.words[offset_word] = {WordSource::Kind::draw, -1, static_cast<int64_t>(draw->relative)};
  return true;
}

void Recorder::launched(CacheEntry& entry, const CallReader& reader, c10::ArrayRef<uint64_t> words, c10::ArrayRef<c10::Storage> fresh,
                        const Stream& stream, bool draws) {
  if (stopped()) return;
  if (&stream != &stream_) return stop("work on another stream");
  const Program& program = *entry.program;
  const OpCall& call = program.calls[0];
  std::vector<Operand> tensors(call.tensors.size()), made;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (!call.tensors[i].host_scalar && !locate(reader.tensor(i), &tensors[i])) return;
  }
  for (const auto& storage : fresh) {
    SequenceStorage meta;
    meta.bytes = storage.nbytes();
    made.push_back({add_storage(storage, meta), 0});
  }
  SequenceCall recorded = make_call(entry.program, std::move(tensors), made, words.data());
  recorded.executable = entry.executable.get();
  recorded.owner = c10::intrusive_ptr<CacheEntry>::reclaim_copy(&entry);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (call.tensors[i].host_scalar) read_scalar(call.tensors[i], reader.tensor(i), recorded);
  }
  if (draws && !read_draw(program, words, recorded)) return;
  for (const auto& payload : call.payloads) {
    if (recorded.words[payload.word].kind == WordSource::Kind::constant) note_constant(as_double(payload.type, words[payload.word]));
  }
  sequence_->calls.push_back(std::move(recorded));
}

/// A number on the host: a scalar input, or a constant.
void Recorder::read_scalar(const TensorSlot& slot, const at::Tensor& tensor, SequenceCall& recorded) {
  if (auto found = scalars_.find(tensor.unsafeGetTensorImpl()); found != scalars_.end()) {
    met_scalars_[found->second] = true;
    for (int half = 0; half < 2; ++half) recorded.words[slot.word + half] = {WordSource::Kind::scalar, found->second, half};
  } else if (slot.meta.wrapped_number) {
    note_constant(as_double(tensor));
  } else {
    keyed_scalars_.assign(keyed_scalars_.size(), true);  // it may have been computed on the host from any of them
  }
}

SequenceResult Recorder::result_of(const c10::IValue& output, c10::ArrayRef<c10::IValue> earlier) {
  SequenceResult result;
  if (output.isNone()) return result;
  if (!output.isTensor()) {
    result.kind = SequenceResult::Kind::constant;
    result.value = output;
    if (!output.isInt() && !output.isBool()) stop("a result that is neither a tensor nor an integer");
    return result;
  }
  const auto& tensor = output.toTensor();
  if (!tensor.defined()) {
    stop("an undefined tensor as a result");
    return result;
  }
  if (auto found = by_tensor_.find(tensor.unsafeGetTensorImpl()); found != by_tensor_.end()) {
    result.kind = SequenceResult::Kind::input;
    result.index = found->second;
    return result;
  }
  for (size_t i = 0; i < earlier.size(); ++i) {
    if (!earlier[i].isTensor() || !earlier[i].toTensor().is_same(tensor)) continue;
    result.kind = SequenceResult::Kind::same;
    result.index = static_cast<int>(i);
    return result;
  }
  if (!tensor.is_privateuseone() || tensor.layout() != at::kStrided || tensor.unsafeGetTensorImpl()->is_python_dispatch()) {
    stop(c10::str("a result on ", tensor.device(), " of layout ", tensor.layout(), " that is no plain tensor of the device"));
    return result;
  }
  result.kind = SequenceResult::Kind::tensor;
  result.meta = TensorMeta::of(tensor, 0);
  locate(tensor, &result.operand);
  if (result.operand.storage < 0) result.operand.byte_offset = byte_offset(tensor);
  return result;
}

std::shared_ptr<Sequence> Recorder::finish(c10::ArrayRef<c10::IValue> outputs) {
  current_ = nullptr;
  for (size_t i = 0; i < inputs_.size() && !stopped(); ++i) {
    version_bumps_.push_back(0);
    if (!inputs_[i].isTensor() || !inputs_[i].toTensor().defined() || inputs_[i].toTensor().is_cpu()) continue;
    const auto& tensor = inputs_[i].toTensor();
    if (!metas_[i].matches(tensor) || tensor.storage_offset() != metas_[i].offset || data_of(tensor) != data_[i])
      stop("an input that changes its size, strides or storage");
    if (!tensor.is_inference()) version_bumps_.back() = tensor.unsafeGetTensorImpl()->version_counter().current_version() - versions_[i];
  }
  for (size_t i = 0; i < outputs.size() && !stopped(); ++i) sequence_->results.push_back(result_of(outputs[i], outputs.slice(0, i)));
  // A scalar that no launch was seen to take may have become anything.
  for (size_t s = 0; s < met_scalars_.size(); ++s) keyed_scalars_[s] = keyed_scalars_[s] || !met_scalars_[s];
  if (stopped()) return nullptr;
  for (const auto& result : sequence_->results) {
    if (result.kind != SequenceResult::Kind::tensor || result.operand.storage < 0) continue;
    auto& storage = sequence_->storages[result.operand.storage];
    storage.escapes = storage.kind == SequenceStorage::Kind::fresh;
  }
  drop_unneeded_calls(*sequence_);
  find_lifetimes(*sequence_);
  return sequence_;
}

}  // namespace neuron
