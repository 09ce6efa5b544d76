// SPDX-License-Identifier: Apache-2.0
#include "runtime/autograd/region_signature.h"

#include <algorithm>

#include "runtime/base/format.h"

namespace agspeed::runtime::autograd {
namespace {

bool inRange(int32_t index, size_t count) { return index >= 0 && static_cast<size_t>(index) < count; }

bool contains(const std::vector<int32_t>& indices, int32_t index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

// Checks that every number is below `count`; -1 means none and is allowed if `optional`.
Status checkRange(const char* key, const std::vector<int32_t>& indices, size_t count, bool optional) {
  for (int32_t index : indices) {
    if ((optional && index == -1) || inRange(index, count)) continue;
    return invalidArgument("{} names number {} of {}", key, index, count);
  }
  return {};
}

// Checks that there is one item per user output.
Status checkOutputs(const char* key, const std::vector<int32_t>& inputs, const RegionSignature& signature) {
  if (inputs.size() != signature.numOutputs) {
    return invalidArgument("{} has {} items for {} outputs", key, inputs.size(), signature.numOutputs);
  }
  return checkRange(key, inputs, signature.requiresGrad.size(), true);
}

// Checks that each layout names each dimension once.
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

// Checks that stage numbers start at 0 and have no gap, so that each stage hands over something.
Status checkStages(const RegionSignature& signature) {
  const auto& gradients = signature.gradientStages;
  if (!gradients.empty() && gradients.size() != signature.requiresGrad.size()) {
    return invalidArgument("gradient_stages has {} items for {} inputs", gradients.size(),
                           signature.requiresGrad.size());
  }
  if (!signature.savedStages.empty() && signature.savedStages.size() != signature.numSavedTensors) {
    return invalidArgument("saved_stages has {} items for {} saved tensors", signature.savedStages.size(),
                           signature.numSavedTensors);
  }
  const size_t numStages = signature.numStages();
  for (size_t stage = 0; stage < numStages; ++stage) {
    if (numStages == 1 || contains(gradients, static_cast<int32_t>(stage))) continue;
    return invalidArgument("no gradient leaves after stage {} of {}", stage, numStages);
  }
  AG_RETURN_IF_ERROR(checkRange("gradient_stages", gradients, numStages, false));
  return checkRange("saved_stages", signature.savedStages, numStages, false);
}

}  // namespace

size_t RegionSignature::numStages() const {
  const auto last = std::max_element(gradientStages.begin(), gradientStages.end());
  return last == gradientStages.end() || *last < 0 ? 1 : static_cast<size_t>(*last) + 1;
}

Status verify(const RegionSignature& signature) {
  const size_t numInputs = signature.requiresGrad.size();
  AG_RETURN_IF_ERROR(checkRange("tangents", signature.tangents, signature.numOutputs, false));
  AG_RETURN_IF_ERROR(checkRange("mutated_inputs", signature.mutatedInputs, numInputs, false));
  AG_RETURN_IF_ERROR(checkRange("mutated_by_code", signature.mutatedByCode, numInputs, false));
  AG_RETURN_IF_ERROR(checkOutputs("outputs_as_inputs", signature.outputsAsInputs, signature));
  AG_RETURN_IF_ERROR(checkOutputs("output_views", signature.outputViews, signature));
  AG_RETURN_IF_ERROR(checkRange("overwritten_saved", signature.overwrittenSaved, signature.numSavedTensors, false));
  AG_RETURN_IF_ERROR(checkLayouts(signature));
  AG_RETURN_IF_ERROR(checkSources(signature));
  AG_RETURN_IF_ERROR(checkStages(signature));
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

}  // namespace agspeed::runtime::autograd
