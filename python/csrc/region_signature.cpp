// SPDX-License-Identifier: Apache-2.0
// Reading a signature dict, and checking it against the entries it describes.
#include "python/csrc/region.h"
#include "python/csrc/status_to_python.h"

namespace agspeed::python {
namespace {

namespace py = pybind11;

template <typename T>
T required(const py::dict& dict, const char* key) {
  if (!dict.contains(key)) raise(invalidArgument(std::string("a Region signature needs \"") + key + "\""));
  try {
    return dict[key].cast<T>();
  } catch (const py::cast_error&) {
    raise(invalidArgument(std::string("\"") + key +
                          "\" of a Region signature has the wrong type: " + py::repr(dict[key]).cast<std::string>()));
  }
}

template <typename T>
T optional(const py::dict& dict, const char* key, T fallback) {
  return dict.contains(key) ? required<T>(dict, key) : std::move(fallback);
}

// A new reference, or nullptr for None.
PyObject* callable(const py::dict& dict, const char* key) {
  const auto object = required<py::object>(dict, key);
  if (object.is_none()) return nullptr;
  if (!PyCallable_Check(object.ptr())) {
    raise(invalidArgument(std::string("\"") + key + "\" of a Region signature must be callable or None"));
  }
  return py::object(object).release().ptr();
}

std::vector<int32_t> readOutputsAsInputs(const py::dict& dict, size_t numOutputs) {
  std::vector<int32_t> inputs(numOutputs, -1);
  for (const auto& [output, input] : optional<std::map<size_t, int32_t>>(dict, "outputs_as_inputs", {})) {
    if (output >= numOutputs) {
      raise(invalidArgument("\"outputs_as_inputs\" names output " + std::to_string(output) + " of " +
                            std::to_string(numOutputs)));
    }
    inputs[output] = input;
  }
  return inputs;
}

}  // namespace

RegionSignature parseSignature(const py::dict& dict) {
  RegionSignature signature;
  signature.name = required<std::string>(dict, "name");
  signature.requiresGrad = required<std::vector<bool>>(dict, "requires_grad");
  signature.numOutputs = required<size_t>(dict, "num_outputs");
  signature.mutatedInputs = optional<std::vector<int32_t>>(dict, "mutated_inputs", {});
  signature.outputsAsInputs = readOutputsAsInputs(dict, signature.numOutputs);
  signature.tangents = optional<std::vector<int32_t>>(dict, "tangents", {});
  signature.numSavedTensors = optional<size_t>(dict, "num_saved_tensors", 0);
  signature.numSavedSymints = optional<size_t>(dict, "num_saved_symints", 0);
  signature.fallback = callable(dict, "fallback");
  signature.replay = callable(dict, "replay");
  return signature;
}

namespace {

Status contradiction(const std::string& what, size_t said, size_t found) {
  return invalidArgument("the signature says " + std::to_string(said) + " " + what + ", the entries have " +
                         std::to_string(found));
}

bool inRange(int32_t index, size_t count) { return index >= 0 && static_cast<size_t>(index) < count; }

}  // namespace

Status Region::checkCounts() const {
  const runtime::Program& forward = forward_->program();
  const size_t numInputs = forward.inputs.size();
  if (signature_.requiresGrad.size() != numInputs) {
    return contradiction("inputs", signature_.requiresGrad.size(), numInputs);
  }
  if (signature_.numForwardOutputs() != forward.outputs.size()) {
    return contradiction("forward outputs", signature_.numForwardOutputs(), forward.outputs.size());
  }
  for (int32_t tangent : signature_.tangents) {
    if (!inRange(tangent, signature_.numOutputs)) return invalidArgument("a tangent names no user output");
  }
  if (signature_.tangents.empty()) return {};
  if (backward_ == nullptr) return invalidArgument("the signature has tangents but there is no backward entry");
  const runtime::Program& backward = backward_->program();
  const size_t backwardInputs = signature_.numSavedSymints + signature_.numSavedTensors + signature_.tangents.size();
  if (backwardInputs != backward.inputs.size()) {
    return contradiction("backward inputs", backwardInputs, backward.inputs.size());
  }
  if (backward.outputs.size() != numInputs) return contradiction("gradients", numInputs, backward.outputs.size());
  return {};
}

Status Region::checkMutations() const {
  for (int32_t input : signature_.mutatedInputs) {
    if (!inRange(input, signature_.requiresGrad.size()) || forward_->isScalarInput(input)) {
      return invalidArgument("mutated_inputs names input " + std::to_string(input) + ", which is no tensor");
    }
    const std::string which = "input " + std::to_string(input) + " is mutated and ";
    if (signature_.requiresGrad[input]) return unsupported(which + "requires grad");
    for (size_t k = signature_.firstOutput(); k < signature_.numForwardOutputs(); ++k) {
      if (forward_->inputAliasedByOutput(k) == input) return unsupported(which + "returned or saved");
    }
  }
  return {};
}

Status Region::checkAliases() const {
  const size_t first = signature_.firstOutput();
  for (size_t i = 0; i < signature_.numOutputs; ++i) {
    const std::string which = "output " + std::to_string(i);
    const int32_t declared = signature_.outputsAsInputs[i];
    if (declared != -1) {
      if (declared != forward_->inputOfOutput(first + i))
        return invalidArgument(which + " is not the input it is said to be");
      continue;
    }
    if (forward_->inputAliasedByOutput(first + i) != -1) return unsupported(which + " is a view of an input");
    for (size_t k = 0; k < i; ++k) {
      if (forward_->shareMemory(first + i, first + k)) {
        return unsupported(which + " shares memory with output " + std::to_string(k));
      }
    }
  }
  return {};
}

}  // namespace agspeed::python
