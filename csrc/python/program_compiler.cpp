// torch_neuronx/compiler/program.py: from a Program to HLO to a NEFF.
#include "csrc/program/program_compiler.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>

#include "csrc/python/bindings.h"
#include "csrc/python/described.h"

namespace {

using neuron::LoweredProgram;
using neuron::Operand;
using neuron::ResultMeta;
using neuron::SequenceCall;
using neuron::WordSource;

/// Where a number comes from: ("word", index, what to add) or ("constant", low word, high word).
using Source = std::function<py::tuple(const SequenceCall& call, int word)>;

py::dict describe(const neuron::TensorMeta& meta, const Operand& operand) {
  py::dict d;
  d["dtype"] = py::cast(meta.dtype);
  d["sizes"] = std::vector<int64_t>(meta.sizes.begin(), meta.sizes.end());
  d["strides"] = std::vector<int64_t>(meta.strides.begin(), meta.strides.end());
  d["conj"] = meta.conj;
  d["neg"] = meta.neg;
  d["wrapped_number"] = meta.wrapped_number;
  d["storage"] = operand.storage;
  d["byte_offset"] = operand.byte_offset;
  return d;
}

py::dict describe(const SequenceCall& sequence_call, const Source& source) {
  static const char* const types[] = {"int", "bool", "float", "complex"};
  const auto& program = *sequence_call.program;
  const auto& call = program.calls.at(0);
  py::dict d;
  d["name"] = call.op.operator_name().name;
  d["overload"] = call.op.operator_name().overload_name;
  py::list arguments, slots, payloads, returns;
  for (const auto& value : call.arguments) arguments.append(torch::jit::toPyObject(value));
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& slot = call.tensors[i];
    py::dict one = describe(slot.meta, sequence_call.tensors[i]);
    one["place"] = py::make_tuple(slot.place.arg, slot.place.element);
    one["source"] = slot.host_scalar ? py::object(source(sequence_call, slot.word)) : py::object(py::none());
    slots.append(one);
  }
  for (const auto& payload : call.payloads) {
    payloads.append(py::make_tuple(py::make_tuple(payload.place.arg, payload.place.element), types[static_cast<int>(payload.type)],
                                   source(sequence_call, payload.word)));
  }
  for (size_t r = 0; r < program.returns.size(); ++r) {
    const auto& results = program.returns[r].results;
    for (size_t e = 0; e < results.size(); ++e) {
      const bool fresh = results[e].kind == ResultMeta::Kind::fresh;
      returns.append(fresh ? py::object(describe(results[e].meta, sequence_call.results[r][e])) : py::object(py::none()));
    }
  }
  d["arguments"] = arguments;
  d["slots"] = slots;
  d["payloads"] = payloads;
  d["returns"] = returns;
  return d;
}

py::tuple from_word(int word, int64_t add = 0) { return py::make_tuple("word", word, add); }

/// A storage: the word with its address (-1: it lives and dies inside), and how many bytes a fresh one has (-1: it is an input).
py::tuple storage_of(int word, int64_t bytes) { return py::make_tuple(word, bytes); }

/// A Program of one call, with the words of op_call.h; `values`: of a launch, whose numbers become constants.
py::dict describe(const neuron::Program& program, const uint64_t* values) {
  const auto& call = program.calls.at(0);
  py::list storages;
  int count = 0;
  std::vector<Operand> tensors(call.tensors.size()), fresh;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const auto& slot = call.tensors[i];
    if (slot.host_scalar || slot.meta.zero) continue;
    if (slot.leader == static_cast<int>(i)) {
      tensors[i].storage = count++;
      storages.append(storage_of(slot.word, -1));
    } else {
      tensors[i] = tensors[slot.leader];
      const auto& leader = call.tensors[slot.leader].meta;
      tensors[i].byte_offset = slot.meta.offset * static_cast<int64_t>(c10::elementSize(slot.meta.dtype)) -
                               leader.offset * static_cast<int64_t>(c10::elementSize(leader.dtype));
    }
  }
  for (size_t f = 0; f < program.fresh.size(); ++f) {
    fresh.push_back({count++, 0});
    storages.append(storage_of(program.input_words + static_cast<int>(f), static_cast<int64_t>(program.fresh[f].bytes)));
  }
  const std::vector<uint64_t> words(static_cast<size_t>(program.input_words));
  const auto alone = std::shared_ptr<const neuron::Program>(std::shared_ptr<void>(), &program);
  const auto made = neuron::make_call(alone, std::move(tensors), fresh, words.data());
  py::dict d;
  py::list calls;
  calls.append(describe(made, [values](const SequenceCall&, int word) -> py::tuple {
    if (values == nullptr) return from_word(word);
    return py::make_tuple("constant", static_cast<int64_t>(values[word]), static_cast<int64_t>(values[word + 1]));
  }));
  d["name"] = toString(call.op.operator_name());
  d["storages"] = storages;
  d["calls"] = calls;
  return d;
}

/// (name, how it is passed, word, bytes before the word's place, number to add, bytes).
LoweredProgram::Operand operand_of(const py::handle& entry) {
  const auto [name, kind, word, offset, add, bytes] = entry.cast<std::tuple<std::string, std::string, int, int64_t, int64_t, size_t>>();
  LoweredProgram::Operand operand;
  operand.name = name;
  operand.word = word;
  operand.offset = offset;
  operand.add = add;
  operand.bytes = bytes;
  using As = LoweredProgram::Operand::As;
  if (kind != "storage") {
    operand.kind = LoweredProgram::Operand::Kind::payload;
    operand.as = kind == "float" ? As::float32 : kind == "int" ? As::integer : kind == "bool" ? As::boolean : As::raw;
  }
  return operand;
}

class PythonCompiler final : public neuron::ProgramCompiler {
 public:
  std::shared_ptr<const LoweredProgram> lower(const neuron::Program& program, const neuron::DeviceInfo& device,
                                              const uint64_t* words) override {
    py::gil_scoped_acquire gil;
    return lower_described(describe(program, words), device);
  }

  std::shared_ptr<const LoweredProgram> lower(const neuron::Sequence& sequence, const neuron::DeviceInfo& device) override {
    py::gil_scoped_acquire gil;
    return lower_described(neuron::describe(sequence), device);
  }

  std::string compile(const LoweredProgram& program) override {
    py::gil_scoped_acquire gil;
    auto module = py::module_::import("torch_neuronx.compiler.program");
    return module.attr("compile_lowered")(py::bytes(program.hlo), program.target, program.lnc, program.name).cast<std::string>();
  }

  std::shared_ptr<const neuron::PendingNeff> compile_in_background(const LoweredProgram& program) override {
    py::gil_scoped_acquire gil;
    auto pending = std::make_shared<neuron::PendingNeff>();
    auto done = py::cpp_function([pending](const py::object& outcome) {
      if (py::isinstance<py::bytes>(outcome)) return pending->deliver(outcome.cast<std::string>());
      // Never freed: the last owner may be a thread without Python, after its end.
      PyObject* error = outcome.inc_ref().ptr();
      pending->fail([error] {
        py::gil_scoped_acquire gil;
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
        throw py::error_already_set();
      });
    });
    auto module = py::module_::import("torch_neuronx.compiler.program");
    module.attr("compile_lowered_in_background")(py::bytes(program.hlo), program.target, program.lnc, program.name, done);
    return pending;
  }

 private:
  static std::shared_ptr<const LoweredProgram> lower_described(const py::dict& described, const neuron::DeviceInfo& device) {
    try {
      auto module = py::module_::import("torch_neuronx.compiler.program");
      py::tuple answer = module.attr("lower_described")(described, device.generation);
      auto lowered = std::make_shared<LoweredProgram>();
      lowered->name = described["name"].cast<std::string>();
      lowered->target = device.generation;
      lowered->lnc = device.physical_cores;
      lowered->hlo = answer[0].cast<std::string>();
      for (const auto& entry : answer[1]) lowered->inputs.push_back(operand_of(entry));
      for (const auto& entry : answer[2]) lowered->outputs.push_back(operand_of(entry));
      return lowered;
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_NotImplementedError)) throw;
      const auto message = py::str(error.value()).cast<std::string>();
      TORCH_CHECK_NOT_IMPLEMENTED(false, message);
    }
  }
};

}  // namespace

py::dict neuron::describe(const neuron::Sequence& sequence) {
  py::list storages, calls;
  int escaping = sequence.fresh_words();
  for (int s = 0; s < static_cast<int>(sequence.storages.size()); ++s) {
    const auto& storage = sequence.storages[static_cast<size_t>(s)];
    if (s < sequence.input_storages)
      storages.append(storage_of(s, -1));
    else
      storages.append(storage_of(storage.escapes ? escaping++ : -1, static_cast<int64_t>(storage.bytes)));
  }
  const Source source = [&](const SequenceCall& call, int word) -> py::tuple {
    const auto& first = call.words[static_cast<size_t>(word)];
    switch (first.kind) {
      case WordSource::Kind::scalar:
        return from_word(sequence.scalar_word(first.index));
      case WordSource::Kind::seed:
        return from_word(sequence.seed_word());
      case WordSource::Kind::draw:
        return from_word(sequence.seed_word() + 1, first.value);
      default:
        return py::make_tuple("constant", first.value, call.words[static_cast<size_t>(word) + 1].value);
    }
  };
  for (const auto& call : sequence.calls) calls.append(::describe(call, source));
  py::dict d;
  d["name"] = sequence.name;
  d["storages"] = storages;
  d["calls"] = calls;
  return d;
}

void bind_program_compiler(py::module_&) {
  static auto* const compiler = new PythonCompiler;
  neuron::program_compiler = compiler;
}
