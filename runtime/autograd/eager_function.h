// SPDX-License-Identifier: Apache-2.0
// EagerFunction: what a Region replaces, as torch computes it operator by operator.
//
// A Region needs it where its compiled backward would be wrong or cannot be differentiated: replay.h. It is not what a
// refused call falls back to: that takes the arguments as its caller gave them, which only the caller still has (a
// tensor subclass, a number that no Argument holds).
//
// Implementations: PythonReplay in python/csrc; plain functions in tests. Ownership: a Region's, on whichever thread
// drops the last reference to that. Thread-safety: any thread may call it, several at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <vector>

#include "runtime/aten/aten_executable.h"

namespace agspeed::runtime::autograd {

class EagerFunction {
 public:
  virtual ~EagerFunction() = default;

  /// Computes the user outputs again from a call's inputs, by differentiable operators and without mutating any input.
  /// An output that is no tensor comes as an undefined one. Throws what the function throws: called by torch's engine,
  /// which carries exceptions to whoever asked for gradients.
  virtual std::vector<at::Tensor> replay(const std::vector<aten::Argument>& inputs) const = 0;
  /// Whether it may stand in for a compiled backward direction that threw `error`: somebody was told of the failure and
  /// nobody waits for the exception itself, as for Ctrl-C.
  virtual bool mayReplace(const std::exception& error) const = 0;
  /// Told that a direction reported an error: of a forward after its caller computed the outputs instead, of a backward
  /// before its exception passes. Code that throws tells by itself. May throw what the caller shall see instead.
  virtual void codeFailed(const std::string& reason) const = 0;
};

}  // namespace agspeed::runtime::autograd
