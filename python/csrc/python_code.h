// SPDX-License-Identifier: Apache-2.0
// PythonCode: two Python callables as RegionCode. They take one list of tensors and integers, which they may empty to
// free its items early, and return a sequence of tensors, integers and None, as the signature says.
//
// Views that the callables make of their inputs with ATen share version counters already. What a callable raises is
// thrown as python_error. Threading: takes the GIL for the call and the conversions; released objects need it too.
#pragma once

#include <memory>

#include "python/csrc/region_code.h"

namespace agspeed::python {

class PythonCode final : public RegionCode {
 public:
  /// Takes new references to `forward` and `backward`; None for no backward. GIL required. Errors: kInvalidArgument
  /// when one is not callable.
  static StatusOr<std::unique_ptr<const RegionCode>> create(PyObject* forward, PyObject* backward);
  ~PythonCode() override;

  Status check(const RegionSignature& signature) const override;
  c10::DispatchKeySet acceptedKeys() const override;
  std::vector<SavedView> savedViews(const RegionSignature&) const override { return {}; }
  StatusOr<std::vector<Argument>> forward(const std::vector<Argument>& inputs) const override;
  StatusOr<std::vector<Argument>> backward(std::vector<Argument> inputs, size_t firstTangent) const override;
  int traverse(visitproc visit, void* arg) const override;

 private:
  PythonCode(PyObject* forward, PyObject* backward);

  PyObject* const forward_;
  PyObject* const backward_;  ///< may be None
};

}  // namespace agspeed::python
