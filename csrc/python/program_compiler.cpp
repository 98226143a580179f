// torch_neuronx/compiler/program.py: from a Program of one call to a NEFF.
#include "csrc/program/program_compiler.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/python/bindings.h"

namespace {

using neuron::CompiledProgram;
using neuron::ResultMeta;

py::dict describe(const neuron::TensorMeta& meta) {
  py::dict d;
  d["dtype"] = py::cast(meta.dtype);
  d["sizes"] = std::vector<int64_t>(meta.sizes.begin(), meta.sizes.end());
  d["strides"] = std::vector<int64_t>(meta.strides.begin(), meta.strides.end());
  d["offset"] = meta.offset;
  d["conj"] = meta.conj;
  d["neg"] = meta.neg;
  d["zero"] = meta.zero;
  d["wrapped_number"] = meta.wrapped_number;
  d["requires_grad"] = meta.needs_grad;
  return d;
}

py::dict describe(const neuron::TensorSlot& slot) {
  py::dict d = describe(slot.meta);
  d["place"] = py::make_tuple(slot.place.arg, slot.place.element);
  d["word"] = slot.word;
  d["leader"] = slot.leader;
  d["same_as"] = slot.same_as;
  d["host_scalar"] = slot.host_scalar;
  return d;
}

py::dict describe(const ResultMeta& result) {
  static const char* const kinds[] = {"argument", "view", "fresh", "undefined", "constant"};
  py::dict d;
  if (result.kind == ResultMeta::Kind::view || result.kind == ResultMeta::Kind::fresh) d = describe(result.meta);
  d["kind"] = kinds[static_cast<int>(result.kind)];
  d["source"] = result.source;
  return d;
}

/// See torch_neuronx/compiler/program.py for the fields.
py::dict describe(const neuron::Program& program) {
  const auto& call = program.calls.at(0);
  static const char* const types[] = {"int", "bool", "float", "complex"};
  py::dict d;
  d["name"] = call.op.operator_name().name;
  d["overload"] = call.op.operator_name().overload_name;
  py::list arguments;
  for (const auto& value : call.arguments) arguments.append(torch::jit::toPyObject(value));
  d["arguments"] = arguments;
  py::list slots, payloads, fresh, returns;
  for (const auto& slot : call.tensors) slots.append(describe(slot));
  for (const auto& payload : call.payloads) {
    payloads.append(
        py::make_tuple(py::make_tuple(payload.place.arg, payload.place.element), payload.word, types[static_cast<int>(payload.type)]));
  }
  for (const auto& storage : program.fresh) fresh.append(storage.bytes);
  for (const auto& returned : program.returns) {
    py::list results;
    for (const auto& result : returned.results) results.append(describe(result));
    returns.append(results);
  }
  d["slots"] = slots;
  d["payloads"] = payloads;
  d["fresh"] = fresh;
  d["returns"] = returns;
  d["input_words"] = program.input_words;
  return d;
}

/// (name, kind, word, offset, bytes): kind is "storage", or how a payload is passed.
CompiledProgram::Operand operand_of(const py::handle& entry) {
  const auto [name, kind, word, offset, bytes] = entry.cast<std::tuple<std::string, std::string, int, int64_t, size_t>>();
  CompiledProgram::Operand operand;
  operand.name = name;
  operand.word = word;
  operand.offset = offset;
  operand.bytes = bytes;
  using As = CompiledProgram::Operand::As;
  if (kind != "storage") {
    operand.kind = CompiledProgram::Operand::Kind::payload;
    operand.as = kind == "float32" ? As::float32 : kind == "int32" ? As::int32 : kind == "bool" ? As::boolean : As::raw;
  }
  return operand;
}

std::shared_ptr<const CompiledProgram> compile(const neuron::Program& program, const neuron::DeviceInfo& device) {
  py::gil_scoped_acquire gil;
  try {
    auto module = py::module_::import("torch_neuronx.compiler.program");
    py::tuple answer = module.attr("compile_program")(describe(program), device.generation, device.physical_cores);
    auto compiled = std::make_shared<CompiledProgram>();
    compiled->neff = answer[0].cast<std::string>();
    for (const auto& entry : answer[1]) compiled->inputs.push_back(operand_of(entry));
    for (const auto& entry : answer[2]) compiled->outputs.push_back(operand_of(entry));
    return compiled;
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_NotImplementedError)) {
      const auto message = py::str(error.value()).cast<std::string>();
      TORCH_CHECK_NOT_IMPLEMENTED(false, message);
    }
    throw;
  }
}

}  // namespace

void bind_program_compiler(py::module_&) { neuron::program_compiler = compile; }
