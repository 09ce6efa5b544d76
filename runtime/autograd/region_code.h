// SPDX-License-Identifier: Apache-2.0
// RegionCode: what computes the two directions of a Region. Pure functions of tensors: the Region around it applies
// mutations, makes history and knows about autograd.
//
// Implementations: ProgramCode (entries of our Executable) and python/csrc's PythonCode (two callables that AOTAutograd
// or Inductor made). Threading: immutable; any thread may run either direction. GradMode is off and autocast excluded
// while a direction runs.
//
// The backward direction is a BackwardRun, resumed once for each stage of the signature: gradients leave between them.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/aten/aten_executable.h"
#include "runtime/autograd/region_signature.h"

namespace agspeed::runtime::autograd {

/// A saved tensor that is a view of an input or of a user output.
struct SavedView {
  size_t saved = 0;    ///< forward output
  int32_t input = -1;  ///< the input it views, or -1:
  size_t output = 0;   ///< the forward output it views
};

/// One run of the backward direction. It may be destroyed before its last stage, and outlives neither the RegionCode
/// nor what that holds. Threading: any thread, one at a time.
class BackwardRun {
 public:
  virtual ~BackwardRun() = default;
  /// Computes the next stage from what it takes (see RegionSignature): its gradients, or None, by forward input.
  /// Errors: as RegionCode::forward. The run cannot be resumed after one.
  virtual StatusOr<std::vector<aten::Argument>> resume(std::vector<aten::Argument> inputs) = 0;
};

class RegionCode {
 public:
  using Argument = aten::Argument;
  virtual ~RegionCode() = default;

  /// Errors: kInvalidArgument when the signature contradicts the code; kUnsupported for aliases that it does not name.
  virtual Status check(const RegionSignature& signature) const = 0;
  /// Tensors with other dispatch keys than these take the fallback.
  virtual c10::DispatchKeySet acceptedKeys() const = 0;
  /// Saved views that do not share the version counter of what they view. nullopt: the code does not know them, and the
  /// Region compares memory at each call. Requires: check passed.
  virtual std::optional<std::vector<SavedView>> savedViews(const RegionSignature& signature) const = 0;
  /// Errors: inputs that do not fit, a failing operator; nothing was mutated then. Code of another language may throw
  /// that language's own error instead.
  virtual StatusOr<std::vector<Argument>> forward(const std::vector<Argument>& inputs) const = 0;
  /// The tangents may have any strides. Requires: check passed.
  virtual std::unique_ptr<BackwardRun> beginBackward(const RegionSignature& signature) const = 0;
  /// Whether a backward run may throw what an EagerFunction may replace: its tangents are then kept until it ended.
  virtual bool isReplaceable() const = 0;
};

}  // namespace agspeed::runtime::autograd
