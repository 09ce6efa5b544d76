// SPDX-License-Identifier: Apache-2.0
// Region: a compiled forward/backward pair as one differentiable function of torch tensors.
//
//   outputs = region(*inputs)       forward direction, then one autograd node (region_node.h) over everything it saved
//   loss.backward()                 the node runs the backward direction
//
// What a Region replaces of AOTAutograd's run-time wrappers: applying mutations, returning inputs that are outputs,
// saved tensors (with version checks and saved-tensor hooks), tangent layouts and undefined tangents. Everything it
// cannot do itself goes to `fallback`, which computes the same function eagerly: see Region::refusal().
//
// The two directions are RegionCode: an Executable's entries, or callables made by AOTAutograd or Inductor. How they
// fit together is a RegionSignature.
//
// Refused with UnsupportedError when the Region is made: a mutated input that requires grad; a view of a mutated input
// that is an output; with an Executable also an output that is a view of an input, or shares memory with another
// output, where the signature does not say so.
//
// Random numbers come from torch's default generator, in the code's order, which is eager's. A Region that draws
// remembers the generator's state at its start: a forward that failed rewinds to it before the fallback draws, and a
// replay draws the same numbers again without touching the user's stream.
//
// Threading: immutable after construction except for its counters; any thread may call it. Nodes share ownership, so a
// graph outlives the Python object. The callables are released under the GIL.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "python/csrc/region_code.h"
#include "python/csrc/region_signature.h"

namespace agspeed::python {

class Region : public std::enable_shared_from_this<Region> {
 public:
  using Argument = runtime::aten::Argument;

  /// Takes the signature's references to the callables, also when it fails. GIL required.
  /// Errors: kInvalidArgument when the signature contradicts the code; kUnsupported as listed above.
  static StatusOr<std::shared_ptr<Region>> create(std::unique_ptr<const RegionCode> code, RegionSignature signature);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  /// Why these inputs must take the fallback, or nullptr: tensor subclasses, batched or fake tensors, active dispatch
  /// modes, forward-mode AD, gradients required where none were traced.
  const char* refusal(const std::vector<Argument>& inputs) const;
  /// Runs the forward direction, applies mutations and records the node. Returns the user outputs. No GIL needed.
  /// Errors: what RegionCode::forward reports; nothing was mutated and no random number drawn then.
  StatusOr<std::vector<Argument>> forward(std::vector<Argument> inputs) const;

  const RegionSignature& signature() const { return signature_; }
  const RegionCode& code() const { return *code_; }

 private:
  Region(std::unique_ptr<const RegionCode> code, RegionSignature signature);
  bool needsNode(const std::vector<Argument>& inputs) const;
  StatusOr<std::vector<Argument>> runForward(const std::vector<Argument>& inputs, const at::Tensor& randomState) const;
  void separateResults(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  void snapshotMutated(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  void applyMutations(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  void returnInputs(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  void shareVersions(const std::vector<Argument>& inputs, const std::vector<Argument>& results) const;

  const std::unique_ptr<const RegionCode> code_;
  const RegionSignature signature_;
  const uint64_t refusedKeys_;  ///< bits of a DispatchKeySet
  std::vector<SavedView> savedViews_;
};

}  // namespace agspeed::python
