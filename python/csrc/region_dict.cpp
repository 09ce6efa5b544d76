// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/region_dict.h"

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "python/csrc/status_to_python.h"

namespace agspeed::python {
namespace {

namespace py = pybind11;
using runtime::autograd::RegionSignature;

template <typename T>
T required(const py::dict& dict, const char* key) {
  if (!dict.contains(key)) raise(invalidArgument("a Region signature needs \"{}\"", key));
  try {
    return dict[key].cast<T>();
  } catch (const py::cast_error&) {
    raise(invalidArgument("\"{}\" of a Region signature has the wrong type: {}", key,
                          py::repr(dict[key]).cast<std::string>()));
  }
}

// Does not change `value` if the key is missing.
template <typename T>
void optional(const py::dict& dict, const char* key, T& value) {
  if (dict.contains(key)) value = required<T>(dict, key);
}

// By user output: the input that `key` names for it, or -1.
std::vector<int32_t> inputsByOutput(const py::dict& dict, const char* key, size_t numOutputs) {
  std::vector<int32_t> inputs(numOutputs, -1);
  std::map<size_t, int32_t> named;
  optional(dict, key, named);
  for (const auto& [output, input] : named) {
    if (output >= numOutputs) raise(invalidArgument("\"{}\" names output {} of {}", key, output, numOutputs));
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
  optional(dict, "mutated_inputs", signature.mutatedInputs);
  optional(dict, "mutated_by_code", signature.mutatedByCode);
  signature.outputsAsInputs = inputsByOutput(dict, "outputs_as_inputs", signature.numOutputs);
  signature.outputViews = inputsByOutput(dict, "output_views", signature.numOutputs);
  optional(dict, "tangents", signature.tangents);
  optional(dict, "tangent_layouts", signature.tangentLayouts);
  optional(dict, "gradient_sources", signature.gradientSources);
  optional(dict, "num_saved_tensors", signature.numSavedTensors);
  optional(dict, "num_saved_symints", signature.numSavedSymints);
  optional(dict, "overwritten_saved", signature.overwrittenSaved);
  optional(dict, "gradient_stages", signature.gradientStages);
  optional(dict, "saved_stages", signature.savedStages);
  optional(dict, "draws_random_numbers", signature.drawsRandomNumbers);
  return signature;
}

py::object parseCallable(const py::dict& dict, const char* key) {
  auto object = required<py::object>(dict, key);
  if (object.is_none()) return {};
  if (PyCallable_Check(object.ptr()) == 0) {
    raise(invalidArgument("\"{}\" of a Region signature must be callable or None", key));
  }
  return object;
}

}  // namespace agspeed::python
