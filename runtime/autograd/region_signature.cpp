// SPDX-License-Identifier: Apache-2.0
// Reading a signature dict, and checking it against itself.
#include "python/csrc/region_signature.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "python/csrc/status_to_python.h"
#include "runtime/base/format.h"

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

// By user output: the input that `key` names for it, or -1.
std::vector<int32_t> inputsByOutput(const py::dict& dict, const char* key, size_t numOutputs) {
  std::vector<int32_t> inputs(numOutputs, -1);
  for (const auto& [output, input] : optional<std::map<size_t, int32_t>>(dict, key, {})) {
    if (output >= numOutputs) {
      raise(invalidArgument("\"{}\" names output {} of {}", key, output, numOutputs));
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
  signature.mutatedByCode = optional<std::vector<int32_t>>(dict, "mutated_by_code", {});
  signature.outputsAsInputs = inputsByOutput(dict, "outputs_as_inputs", signature.numOutputs);
  signature.outputViews = inputsByOutput(dict, "output_views", signature.numOutputs);
  signature.tangents = optional<std::vector<int32_t>>(dict, "tangents", {});
  signature.tangentLayouts = optional<std::vector<std::vector<int64_t>>>(dict, "tangent_layouts", {});
  signature.gradientSources = optional<std::vector<std::vector<int32_t>>>(dict, "gradient_sources", {});
  signature.numSavedTensors = optional<size_t>(dict, "num_saved_tensors", 0);
  signature.numSavedSymints = optional<size_t>(dict, "num_saved_symints", 0);
  signature.overwrittenSaved = optional<std::vector<int32_t>>(dict, "overwritten_saved", {});
  signature.drawsRandomNumbers = optional<bool>(dict, "draws_random_numbers", false);
  signature.fallback = callable(dict, "fallback");
  signature.replay = callable(dict, "replay");
  return signature;
}

namespace {

bool inRange(int32_t index, size_t count) { return index >= 0 && static_cast<size_t>(index) < count; }

bool contains(const std::vector<int32_t>& indices, int32_t index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

// Every number lies below `count`; -1 means none where `optional`.
Status checkRange(const char* key, const std::vector<int32_t>& indices, size_t count, bool optional) {
  for (int32_t index : indices) {
    if ((optional && index == -1) || inRange(index, count)) continue;
    return invalidArgument("{} names number {} of {}", key, index, count);
  }
  return {};
}

// Each layout names each dimension once.
Status checkLayouts(const RegionSignature& signature) {
  const auto& layouts = signature.tangentLayouts;
  if (!layouts.empty() && layouts.size() != signature.tangents.size()) {
    return invalidArgument("tangent_layouts has {} items for {} tangents", layouts.size(), signature.tangents.size());
  }
  for (std::vector<int64_t> dims : layouts) {
    std::sort(dims.begin(), dims.end());
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] != static_cast<int64_t>(i)) return invalidArgument("a layout must name each dimension once");
    }
  }
  return {};
}

Status checkSources(const RegionSignature& signature) {
  const auto& sources = signature.gradientSources;
  if (!sources.empty() && sources.size() != signature.requiresGrad.size()) {
    return invalidArgument("gradient_sources has {} items for {} inputs", sources.size(),
                           signature.requiresGrad.size());
  }
  for (const std::vector<int32_t>& tangents : sources) {
    AG_RETURN_IF_ERROR(checkRange("gradient_sources", tangents, signature.tangents.size(), false));
  }
  return {};
}

}  // namespace

Status checkSignature(const RegionSignature& signature) {
  const size_t numInputs = signature.requiresGrad.size();
  AG_RETURN_IF_ERROR(checkRange("tangents", signature.tangents, signature.numOutputs, false));
  AG_RETURN_IF_ERROR(checkRange("mutated_inputs", signature.mutatedInputs, numInputs, false));
  AG_RETURN_IF_ERROR(checkRange("mutated_by_code", signature.mutatedByCode, numInputs, false));
  AG_RETURN_IF_ERROR(checkRange("outputs_as_inputs", signature.outputsAsInputs, numInputs, true));
  AG_RETURN_IF_ERROR(checkRange("output_views", signature.outputViews, numInputs, true));
  AG_RETURN_IF_ERROR(checkRange("overwritten_saved", signature.overwrittenSaved, signature.numSavedTensors, false));
  AG_RETURN_IF_ERROR(checkLayouts(signature));
  AG_RETURN_IF_ERROR(checkSources(signature));
  for (int32_t tangent : signature.tangents) {
    if (!signature.isMadeFromInput(tangent)) continue;
    return invalidArgument("output {} has a tangent but comes from an input", tangent);
  }
  for (int32_t input : signature.mutatedInputs) {
    const std::string which = formatText("input {} is mutated and ", input);
    if (signature.requiresGrad[input]) return unsupported(which + "requires grad");
    if (contains(signature.outputViews, input)) return unsupported(which + "an output is a view of it");
  }
  return {};
}

}  // namespace agspeed::python
