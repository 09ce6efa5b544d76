// SPDX-License-Identifier: Apache-2.0
// EagerFunction: the function that a Region replaces, as torch computes it operator by operator.
//
// A Region uses it if its compiled backward would be wrong or cannot be differentiated: see replay.h. It is not the
// fallback of a refused call. The fallback takes the caller's original arguments (a tensor subclass, a number that no
// Argument holds), which only the caller has.
//
// Implementations: PythonReplay in python/csrc; plain functions in tests. Ownership: by its Region; it is destroyed on
// the thread that drops the Region's last reference. Thread-safety: any thread may call it, several at once.
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

  /// Computes the user outputs again from a call's inputs, with differentiable operators and without mutating any
  /// input. An output that is not a tensor is returned as an undefined one. Throws what the function throws; torch's
  /// engine calls it and passes exceptions to the caller of backward.
  virtual std::vector<at::Tensor> replay(const std::vector<aten::Argument>& inputs) const = 0;
  /// Whether it may replace a compiled backward direction that threw `error`. It may if the failure has been reported
  /// and no caller waits for the exception itself, as for Ctrl-C.
  virtual bool mayReplace(const std::exception& error) const = 0;
  /// Called when a direction returned an error: for a forward after its caller has computed the outputs eagerly, for a
  /// backward before its exception passes. Code that throws reports by itself. May throw another exception for the
  /// caller.
  virtual void codeFailed(const std::string& reason) const = 0;
};

}  // namespace agspeed::runtime::autograd
