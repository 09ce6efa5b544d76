// SPDX-License-Identifier: Apache-2.0
// RegionCode: computes the two directions of a Region. They are pure functions of tensors; the Region around them
// applies mutations, makes history and handles autograd.
//
// Implementations: ProgramCode (entries of our Executable) and python/csrc's PythonCode (two callables that AOTAutograd
// or Inductor made). Threading: immutable; any thread may run either direction. GradMode is off and autocast excluded
// while a direction runs.
//
// The backward direction is a BackwardRun, which is resumed once for each stage of the signature. Gradients are handed
// over between stages.
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
  size_t saved = 0;    ///< index of the forward output
  int32_t input = -1;  ///< the input it views, or -1
  size_t output = 0;   ///< the forward output it views, if `input` is -1
};

/// One run of the backward direction. It may be destroyed before its last stage. It does not outlive the RegionCode or
/// the objects that this holds. Threading: any thread, one at a time.
class BackwardRun {
 public:
  virtual ~BackwardRun() = default;
  /// Computes the next stage from its inputs (see RegionSignature). Returns its gradients, or None, by forward input.
  /// Errors: see RegionCode::forward; the run cannot be resumed after one.
  virtual StatusOr<std::vector<aten::Argument>> resume(std::vector<aten::Argument> inputs) = 0;
};

class RegionCode {
 public:
  using Argument = aten::Argument;
  virtual ~RegionCode() = default;

  /// Errors: kInvalidArgument if the signature contradicts the code; kUnsupported for aliases that the signature omits.
  virtual Status check(const RegionSignature& signature) const = 0;
  /// The caller runs eagerly if a tensor has a dispatch key outside this set.
  virtual c10::DispatchKeySet acceptedKeys() const = 0;
  /// Saved views that do not share the version counter of their source. nullopt if the code does not know them: the
  /// Region then compares memory at each call. Requires: check passed.
  virtual std::optional<std::vector<SavedView>> savedViews(const RegionSignature& signature) const = 0;
  /// Errors: inputs that do not fit, a failing operator; nothing has been mutated then. Code in another language may
  /// throw that language's error instead.
  virtual StatusOr<std::vector<Argument>> forward(const std::vector<Argument>& inputs) const = 0;
  /// The tangents may have any strides. Requires: check passed.
  virtual std::unique_ptr<BackwardRun> beginBackward(const RegionSignature& signature) const = 0;
  /// Whether a backward run may throw an error after which an EagerFunction may replace it. Its tangents are then kept
  /// until it has ended.
  virtual bool isReplaceable() const = 0;
};

}  // namespace agspeed::runtime::autograd
