// SPDX-License-Identifier: Apache-2.0
// Region: a compiled forward/backward pair as one differentiable function of torch tensors, without Python inside.
//
//   outputs = region(*inputs)       forward entry, then one autograd node (region_node.h) over everything it saved
//   loss.backward()                 the node runs the backward entry
//
// What a Region replaces of AOTAutograd's run-time wrappers: applying mutations, returning inputs that are outputs,
// saved tensors (with version checks and saved-tensor hooks), tangent layouts and undefined tangents. Everything it
// cannot do itself goes to `fallback`, which computes the same function eagerly: see Region::refusal().
//
// --- Signature, a Python dict
// ----------------------------------------------------------------------------------------- The Executable's entries
// are what AOTAutograd's partitioner returned; inputs are the flat primals:
//   "forward":  inputs  -> mutated inputs, user outputs, saved tensors, saved symints
//   "backward": saved symints, saved tensors, tangents -> one gradient (or None) per forward input
// Keys (all required unless a default is given):
//   name               str         names the region in messages
//   requires_grad      list[bool]  one per forward input, as traced
//   num_outputs        int         user outputs
//   mutated_inputs     list[int]   forward output k holds the new value of this input; [] by default
//   outputs_as_inputs  dict[int, int]  user output -> the input it is; the caller gets that very tensor; {} by default
//   tangents           list[int]   the user output of each tangent, in the backward entry's order; [] without backward
//   num_saved_tensors  int         0 by default
//   num_saved_symints  int         0 by default
//   fallback           callable    (*inputs) -> sequence of user outputs, computed eagerly, mutations included; or None
//   replay             callable    (*inputs) -> sequence of user outputs, differentiable, WITHOUT mutations; or None.
//                                  Used for create_graph=True and for batched or subclass tangents.
// User outputs that are not in `tangents` do not require grad. Sizes, strides and dtypes are guarded by the forward
// entry's own input declarations. The backward entry is absent when tangents is empty.
//
// Refused with UnsupportedError when the Region is made: a mutated input that requires grad, or that is saved or
// returned too; an output that is a view of an input, or shares memory with another output, and is not in
// outputs_as_inputs.
// ---------------------------------------------------------------------------------------------------------------------
//
// Threading: immutable after construction except for its counters; any thread may call it. Nodes share ownership, so a
// graph outlives the Python object. The callables are released under the GIL.
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/aten/aten_executable.h"

namespace agspeed::python {

struct RegionSignature {
  std::string name;
  std::vector<bool> requiresGrad;
  std::vector<int32_t> mutatedInputs;
  size_t numOutputs = 0;
  std::vector<int32_t> outputsAsInputs;  ///< by user output; -1: not an input
  std::vector<int32_t> tangents;
  size_t numSavedTensors = 0;
  size_t numSavedSymints = 0;
  PyObject* fallback = nullptr;  ///< owned by the Region; nullptr: none
  PyObject* replay = nullptr;

  // Where the parts of the forward entry's outputs begin.
  size_t firstOutput() const { return mutatedInputs.size(); }
  size_t firstSavedTensor() const { return firstOutput() + numOutputs; }
  size_t firstSavedSymint() const { return firstSavedTensor() + numSavedTensors; }
  size_t numForwardOutputs() const { return firstSavedSymint() + numSavedSymints; }
};

/// Reads the dict described above. GIL required. Throws UserError for a missing key or a value of the wrong type.
RegionSignature parseSignature(const pybind11::dict& dict);

class Region : public std::enable_shared_from_this<Region> {
 public:
  using Argument = runtime::aten::Argument;

  /// Takes the signature's references to the callables, also when it fails. GIL required.
  /// Errors: kInvalidArgument when the signature contradicts the entries; kUnsupported as listed above.
  static StatusOr<std::shared_ptr<Region>> create(std::shared_ptr<const runtime::aten::AtenExecutable> executable,
                                                  RegionSignature signature);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  /// Why these inputs must take the fallback, or nullptr: tensor subclasses, batched or fake tensors, active dispatch
  /// modes, forward-mode AD, gradients required where none were traced.
  const char* refusal(const std::vector<Argument>& inputs) const;
  /// Runs the forward entry, applies mutations and records the node. Returns the user outputs. No GIL needed.
  /// Errors: what AtenExecutable::run reports; nothing was mutated then.
  StatusOr<std::vector<Argument>> forward(std::vector<Argument> inputs) const;

  const RegionSignature& signature() const { return signature_; }
  const runtime::aten::AtenEntry& forwardEntry() const { return *forward_; }
  /// Requires: the signature has tangents.
  const runtime::aten::AtenEntry& backwardEntry() const { return *backward_; }

 private:
  Region(std::shared_ptr<const runtime::aten::AtenExecutable> executable, RegionSignature signature);
  Status checkCounts() const;
  Status checkMutations() const;
  Status checkAliases() const;
  bool needsNode(const std::vector<Argument>& inputs) const;
  void protectInputs(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  void findVersionSources();
  void shareVersions(const std::vector<Argument>& inputs, const std::vector<Argument>& results) const;

  const std::shared_ptr<const runtime::aten::AtenExecutable> executable_;
  const RegionSignature signature_;
  const runtime::aten::AtenEntry* forward_ = nullptr;
  const runtime::aten::AtenEntry* backward_ = nullptr;

  /// A saved tensor that is a view of an input or of a user output.
  struct VersionSource {
    size_t saved = 0;    ///< forward output
    int32_t input = -1;  ///< the input it views, or -1:
    size_t output = 0;   ///< the forward output it views
  };
  std::vector<VersionSource> versionSources_;
};

}  // namespace agspeed::python
