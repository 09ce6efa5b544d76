// SPDX-License-Identifier: Apache-2.0
// RegionSignature: how the two directions of a Region fit together, read from a Python dict.
//
// The directions are what AOTAutograd's partitioner returned; inputs are the flat primals:
//   forward:  inputs  -> mutated inputs, user outputs, saved tensors, saved symints
//   backward: saved symints, saved tensors, tangents -> one gradient (or None) per forward input
//
// Keys (all required unless a default is given):
//   name                  str         names the region in messages
//   requires_grad         list[bool]  one per forward input, as traced
//   num_outputs           int         user outputs
//   mutated_inputs        list[int]   forward output k holds the new value of this input; [] by default
//   mutated_by_code       list[int]   inputs that the forward direction writes to itself; [] by default
//   outputs_as_inputs     dict[int, int]  user output -> the input it is; the caller gets that very tensor, after
//                                     mutations; {} by default
//   output_views          dict[int, int]  user output -> the input it is a view of; {} by default
//   tangents              list[int]   the user output of each tangent, in backward's order; [] without backward
//   tangent_layouts       list[list[int]]  by tangent: its dimensions from the outermost in memory to the innermost, as
//                                     traced. Read by PythonCode; [] by default: any layout will do
//   gradient_sources      list[list[int]]  by forward input: the tangents that its gradient is computed from; where all
//                                     of them are undefined, the gradient is, as in eager; [] by default: never
//   num_saved_tensors     int         0 by default
//   num_saved_symints     int         0 by default
//   overwritten_saved     list[int]   saved tensors in whose memory the backward direction may write; [] by default
//   draws_random_numbers  bool        the forward direction draws from torch's default generator; False by default
//   fallback              callable    (*inputs) -> sequence of user outputs, computed eagerly, mutations included; or
//                                     None
//   replay                callable    (*inputs) -> sequence of user outputs, differentiable, WITHOUT mutations; or
//                                     None. Used for create_graph=True and for batched or subclass tangents.
// User outputs that are not in `tangents` have no history from the Region.
//
// Threading: a plain value; the callables are references that the Region owns and releases under the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed::python {

struct RegionSignature {
  std::string name;
  std::vector<bool> requiresGrad;
  std::vector<int32_t> mutatedInputs;
  std::vector<int32_t> mutatedByCode;
  size_t numOutputs = 0;
  std::vector<int32_t> outputsAsInputs;  ///< by user output; -1: not an input
  std::vector<int32_t> outputViews;      ///< by user output; -1: no view of an input
  std::vector<int32_t> tangents;
  std::vector<std::vector<int64_t>> tangentLayouts;
  std::vector<std::vector<int32_t>> gradientSources;
  size_t numSavedTensors = 0;
  size_t numSavedSymints = 0;
  std::vector<int32_t> overwrittenSaved;
  bool drawsRandomNumbers = false;
  PyObject* fallback = nullptr;  ///< owned by the Region; nullptr: none
  PyObject* replay = nullptr;

  // Where the parts of the forward direction's outputs begin.
  size_t firstOutput() const { return mutatedInputs.size(); }
  size_t firstSavedTensor() const { return firstOutput() + numOutputs; }
  size_t firstSavedSymint() const { return firstSavedTensor() + numSavedTensors; }
  size_t numForwardOutputs() const { return firstSavedSymint() + numSavedSymints; }
  size_t numBackwardInputs() const { return numSavedSymints + numSavedTensors + tangents.size(); }
  /// The caller gets an input, or a view of one, for this user output; what the code returned is dropped.
  bool isMadeFromInput(size_t output) const { return outputsAsInputs[output] != -1 || outputViews[output] != -1; }
};

/// Reads the dict described above. GIL required. Throws UserError for a missing key or a value of the wrong type.
RegionSignature parseSignature(const pybind11::dict& dict);

/// Errors: kInvalidArgument when the signature contradicts itself; kUnsupported for a mutated input that requires grad
/// or that an output is a view of.
Status checkSignature(const RegionSignature& signature);

}  // namespace agspeed::python
