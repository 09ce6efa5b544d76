// SPDX-License-Identifier: Apache-2.0
// PythonCode: Python callables as RegionCode, one for the forward direction and one for each stage of the backward.
// They take one list of tensors and integers, which they may empty to free its items early. They return a sequence of
// tensors, integers and None, as the signature says.
//
// A stage may return more items after its gradients. They are only for the next stage, whose list begins with them.
//
// A callable may return views of its inputs that do not share their version counters, as Inductor's code does. An
// exception of a callable is thrown as python_error. Threading: takes the GIL for the call and the conversions.
#pragma once

#include <memory>
#include <optional>

#include "python/csrc/python_reference.h"
#include "runtime/autograd/region_code.h"

namespace agspeed::python {

class PythonCode final : public runtime::autograd::RegionCode {
 public:
  /// Takes new references. `backward` is a tuple of callables, by stage; empty for no backward. GIL required.
  /// Errors: kInvalidArgument if one of them is not callable.
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
  /// Reports the held objects to the garbage collector.
  int traverse(visitproc visit, void* arg) const;

 private:
  PythonCode(PyObject* forward, PyObject* backward) : forward_(forward), backward_(backward) {}

  const PythonReference forward_;
  const PythonReference backward_;  ///< a tuple
};

}  // namespace agspeed::python
