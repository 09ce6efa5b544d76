// SPDX-License-Identifier: Apache-2.0
// PythonCode: Python callables as RegionCode, one for the forward direction and one for each stage of the backward.
// They take one list of tensors and integers, which they may empty to free its items early, and return a sequence of
// tensors, integers and None, as the signature says.
//
// What a stage returns behind its gradients is for the next one alone: its list begins with it.
//
// A callable may return views of its inputs that do not share their version counters, as Inductor's code does. What a
// callable raises is thrown as python_error. Threading: takes the GIL for the call and the conversions.
#pragma once

#include <memory>
#include <optional>

#include "python/csrc/python_reference.h"
#include "runtime/autograd/region_code.h"

namespace agspeed::python {

class PythonCode final : public runtime::autograd::RegionCode {
 public:
  /// Takes new references. `backward` is a tuple of callables, by stage; empty for no backward. GIL required.
  /// Errors: kInvalidArgument when one is not callable.
  static StatusOr<std::unique_ptr<const RegionCode>> create(PyObject* forward, PyObject* backward);

  Status check(const runtime::autograd::RegionSignature& signature) const override;
  c10::DispatchKeySet acceptedKeys() const override;
  std::optional<std::vector<runtime::autograd::SavedView>> savedViews(
      const runtime::autograd::RegionSignature&) const override {
    return std::nullopt;
  }
  StatusOr<std::vector<Argument>> forward(const std::vector<Argument>& inputs) const override;
  bool isReplaceable() const override { return true; }
  std::unique_ptr<runtime::autograd::BackwardRun> beginBackward(
      const runtime::autograd::RegionSignature& signature) const override;
  /// Shows the garbage collector what this holds.
  int traverse(visitproc visit, void* arg) const;

 private:
  PythonCode(PyObject* forward, PyObject* backward) : forward_(forward), backward_(backward) {}

  const PythonReference forward_;
  const PythonReference backward_;  ///< a tuple
};

}  // namespace agspeed::python
