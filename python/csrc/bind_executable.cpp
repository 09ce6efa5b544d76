// SPDX-License-Identifier: Apache-2.0
// compile() and Executable: run an entry on a list of tensors and integers; stats for reports.
#include "python/csrc/bind_executable.h"

#include "compiler/driver/compile.h"
#include "python/csrc/bindings.h"
#include "python/csrc/python_arguments.h"
#include "python/csrc/status_to_python.h"

namespace agspeed::python {
namespace {

namespace py = pybind11;
using runtime::aten::Argument;
using runtime::aten::AtenEntry;
using runtime::aten::AtenExecutable;

/// The Python object. pybind11 holders cannot be pointers to const.
struct ExecutableObject {
  std::shared_ptr<const AtenExecutable> executable;
};

Argument toArgument(const py::handle& value) {
  if (value.is_none()) return {};
  if (PyLong_CheckExact(value.ptr())) return value.cast<int64_t>();
  return value.cast<at::Tensor>();
}

const AtenEntry& entryOf(const ExecutableObject& self, const std::string& name) {
  const AtenEntry* entry = self.executable->entry(name);
  if (entry == nullptr) raise(invalidArgument("this Executable has no entry \"{}\"", name));
  return *entry;
}

py::list run(const ExecutableObject& self, const std::string& name, const py::list& values) {
  const AtenEntry& entry = entryOf(self, name);
  std::vector<Argument> inputs;
  for (const py::handle& value : values) inputs.push_back(toArgument(value));
  StatusOr<std::vector<Argument>> outputs = [&] {
    py::gil_scoped_release noGil;
    return AtenExecutable::run(entry, inputs);
  }();
  py::list result;
  for (const Argument& output : unwrap(std::move(outputs))) result.append(wrapArgument(output));
  return result;
}

// By output of an entry: the stage that hands it over.
std::vector<int32_t> stagesOf(const ExecutableObject& self, const std::string& name) {
  const AtenEntry& entry = entryOf(self, name);
  return entry.stages;
}

// "f32[8,s0]".
std::string textOf(const runtime::TensorType& type) {
  std::string text = std::string(toString(type.dtype)) + "[";
  for (size_t i = 0; i < type.sizes.size(); ++i) text += (i > 0 ? "," : "") + type.sizes[i].toString();
  return text + "]";
}

std::string resultsOf(const runtime::ExternalCall& call, const runtime::Program& program) {
  std::string text;
  for (runtime::ValueId result : call.results) {
    text += (text.empty() ? "" : ", ");
    text += result == runtime::kNoValue ? "none" : textOf(program.values[result].type);
  }
  return text;
}

py::dict instruction(const char* kind, const std::string& name, const std::string& origin) {
  py::dict result;
  result["kind"] = kind;
  result["name"] = name;
  result["origin"] = origin;
  result["results"] = "";
  result["reason"] = "";
  return result;
}

py::list instructions(const ExecutableObject& self, const std::string& name) {
  const AtenEntry& entry = entryOf(self, name);
  py::list found;
  for (const runtime::Instruction& each : entry.program().instructions) {
    if (const auto* kernel = std::get_if<runtime::KernelCall>(&each.op)) {
      found.append(instruction("kernel", kernel->name, each.origin));
    } else if (const auto* call = std::get_if<runtime::ExternalCall>(&each.op)) {
      py::dict made = instruction("call", call->op, each.origin);
      made["results"] = resultsOf(*call, entry.program());
      made["reason"] = call->reason;
      found.append(made);
    } else if (std::holds_alternative<runtime::GradientsReady>(each.op)) {
      found.append(instruction("ready", "", each.origin));
    }
  }
  return found;
}

py::list kernels(const ExecutableObject& self) {
  const runtime::Executable& executable = self.executable->executable();
  py::list found;
  for (size_t i = 0; i < executable.kernelTexts.size(); ++i) {
    py::dict kernel;
    kernel["name"] = executable.kernelTexts[i].name;
    kernel["text"] = executable.kernelTexts[i].text;
    kernel["address"] = reinterpret_cast<uintptr_t>(executable.kernels->kernel(i));
    kernel["bytes"] = executable.kernels->codeBytes(i);
    found.append(kernel);
  }
  return found;
}

py::dict stats(const ExecutableObject& self) {
  const runtime::CompileStats& stats = self.executable->stats();
  const int32_t operators = stats.numCompiledOperators + stats.numExternalOperators;
  py::dict result;
  result["kernels"] = stats.numKernels;
  result["cache_hits"] = stats.numKernelCacheHits;
  result["compiled_operators"] = stats.numCompiledOperators;
  result["external_operators"] = stats.numExternalOperators;
  result["native_share"] = operators == 0 ? 0.0 : static_cast<double>(stats.numCompiledOperators) / operators;
  result["compile_seconds"] = stats.compileSeconds;
  return result;
}

template <typename T>
T option(const py::dict& options, const char* key, T value) {
  return options.contains(key) ? options[key].cast<T>() : std::move(value);
}

compiler::CompileOptions parseOptions(const py::dict& dict) {
  // Leaked on purpose: its destructor would run after the interpreter has ended.
  static const auto* const known =
      new py::set(py::make_tuple("target", "device", "cache_dir", "dump_dir", "disabled_passes", "verify_each_pass",
                                 "stage_bytes", "inputs_in_memory_of"));
  for (const auto& item : dict) {
    if (!known->contains(item.first)) {
      raise(invalidArgument("compile() has no option {}", py::repr(item.first).cast<std::string>()));
    }
  }
  compiler::CompileOptions options;
  options.target = option(dict, "target", options.target);
  options.device = unwrap(deviceFromString(option(dict, "device", std::string("cpu"))));
  options.cacheDir = option(dict, "cache_dir", options.cacheDir);
  options.dumpDir = option(dict, "dump_dir", options.dumpDir);
  options.disabledPasses = option(dict, "disabled_passes", options.disabledPasses);
  options.verifyEachPass = option(dict, "verify_each_pass", options.verifyEachPass);
  compiler::GradientStageOptions& stages = options.gradientStages;
  stages.bytes = option(dict, "stage_bytes", stages.bytes);
  stages.inputsInMemoryOf = option(dict, "inputs_in_memory_of", stages.inputsInMemoryOf);
  return options;
}

std::vector<std::byte> bytesOf(const at::Tensor& constant) {
  if (!constant.is_contiguous()) raise(unsupported("a constant inside the graph that is not contiguous"));
  const at::Tensor tensor = constant.cpu();
  const auto* first = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {first, first + tensor.nbytes()};
}

ExecutableObject compileEntries(const std::map<std::string, std::string>& entries, const py::dict& optionDict,
                                const std::map<std::string, std::vector<at::Tensor>>& tensors) {
  const compiler::CompileOptions options = parseOptions(optionDict);
  compiler::Constants constants;
  for (const auto& [entry, values] : tensors) {
    for (const at::Tensor& tensor : values) constants[entry].push_back(bytesOf(tensor));
  }
  auto loaded = [&]() -> StatusOr<std::shared_ptr<const AtenExecutable>> {
    py::gil_scoped_release noGil;
    AG_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Executable> executable,
                        compiler::compile(entries, options, std::move(constants)));
    return AtenExecutable::load(std::move(executable));
  }();
  return {unwrap(std::move(loaded))};
}

}  // namespace

std::shared_ptr<const AtenExecutable> atenExecutableOf(PyObject* object) {
  return py::handle(object).cast<const ExecutableObject&>().executable;
}

void bindExecutable(py::module_& module) {
  py::class_<ExecutableObject>(module, "Executable")
      .def("run", &run, py::arg("entry"), py::arg("args"))
      .def("stages", &stagesOf, py::arg("entry"))
      .def("instructions", &instructions, py::arg("entry"))
      .def("kernels", &kernels)
      .def("stats", &stats);
  module.def("compile", &compileEntries, py::arg("entries"), py::arg("options") = py::dict(),
             py::arg("constants") = py::dict());
}

}  // namespace agspeed::python
