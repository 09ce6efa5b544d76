// SPDX-License-Identifier: Apache-2.0
// Region: a compiled forward/backward pair as one differentiable function of torch tensors.
//
//   outputs = region(*inputs)       forward direction, then one autograd node (region_node.h) over everything it saved
//   loss.backward()                 the node runs the backward direction
//
// A Region replaces these parts of AOTAutograd's run-time wrappers: applying mutations, returning inputs that are
// outputs, saved tensors (with version checks and saved-tensor hooks), tangent layouts and undefined tangents. It
// refuses a call that it cannot handle, with the reason; the caller then computes the same function eagerly.
//
// The two directions are RegionCode: an Executable's entries, or callables made by AOTAutograd or Inductor. A
// RegionSignature states how they fit together. An EagerFunction differentiates if they cannot.
//
// create() reports as unsupported: a mutated input that requires grad; a view of a mutated input that is an output.
// With an Executable it also refuses an output that is a view of an input, or shares memory with another output, if the
// signature does not say so.
//
// Random numbers come from torch's default generator, in the order of the code, which is eager's order. A Region that
// draws numbers remembers the generator's state at the start of a call. A forward that failed restores this state
// before its caller draws again. A replay draws the same numbers again and does not change the user's stream.
//
// Threading: immutable; any thread may call it. Nodes share ownership, so a graph may outlive the object that made the
// Region.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/aten/random_state.h"
#include "runtime/autograd/eager_function.h"
#include "runtime/autograd/region_code.h"
#include "runtime/autograd/region_signature.h"

namespace agspeed::runtime::autograd {

/// One stage of the backward direction, from the signature.
struct RegionStage {
  std::vector<size_t> gradients;       ///< forward inputs whose gradients (or None) the code returns, in order
  std::vector<size_t> differentiated;  ///< positions in `gradients` of gradients that are required
  std::vector<size_t> saved;           ///< saved tensors that the stage takes
  std::vector<size_t> overwritten;     ///< positions in `saved` of tensors that the stage may overwrite
};

class Region : public std::enable_shared_from_this<Region> {
 public:
  using Argument = aten::Argument;

  /// `eager` may be nullptr: a backward that needs it then throws.
  /// Errors: kInvalidArgument when the signature contradicts itself or the code; kUnsupported as listed above.
  static StatusOr<std::shared_ptr<const Region>> create(std::unique_ptr<const RegionCode> code,
                                                        RegionSignature signature,
                                                        std::unique_ptr<const EagerFunction> eager);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  /// Runs the forward direction, applies mutations and records the node. Returns the user outputs.
  /// Errors, after which nothing has been mutated and no random number drawn: kUnsupported for inputs that differ from
  /// the traced ones (tensor subclasses, batched or fake tensors, active dispatch modes, forward-mode AD, or gradients
  /// that were not required when traced); else the errors of RegionCode::forward.
  StatusOr<std::vector<Argument>> forward(const std::vector<Argument>& inputs) const;

  const RegionSignature& signature() const { return signature_; }
  const RegionCode& code() const { return *code_; }
  const EagerFunction* eager() const { return eager_.get(); }
  /// At least one.
  const std::vector<RegionStage>& stages() const { return stages_; }

 private:
  Region(std::unique_ptr<const RegionCode> code, RegionSignature signature, std::unique_ptr<const EagerFunction> eager);
  const char* refusal(const std::vector<Argument>& inputs) const;
  bool needsNode(const std::vector<Argument>& inputs) const;
  StatusOr<std::vector<Argument>> runForward(const std::vector<Argument>& inputs,
                                             const aten::RandomState& randomState) const;
  void separateResults(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  void snapshotMutated(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  void applyMutations(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  void returnInputs(const std::vector<Argument>& inputs, std::vector<Argument>& results) const;
  std::vector<SavedView> findSavedViews(const std::vector<Argument>& inputs,
                                        const std::vector<Argument>& results) const;
  void shareVersions(const std::vector<Argument>& inputs, const std::vector<Argument>& results) const;

  const std::unique_ptr<const RegionCode> code_;
  const RegionSignature signature_;
  const std::unique_ptr<const EagerFunction> eager_;
  const uint64_t refusedKeys_;  ///< bits of a DispatchKeySet
  const std::optional<std::vector<SavedView>> savedViews_;
  const std::vector<RegionStage> stages_;
};

}  // namespace agspeed::runtime::autograd
