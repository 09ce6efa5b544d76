// SPDX-License-Identifier: Apache-2.0
// PythonReplay: the callables "replay" and "on_failure" of a Region's signature as EagerFunction.
//
// Threading: takes the GIL for the call and the conversions. An exception of a callable is thrown as python_error.
#pragma once

#include "python/csrc/python_reference.h"
#include "runtime/autograd/eager_function.h"

namespace agspeed::python {

class PythonReplay final : public runtime::autograd::EagerFunction {
 public:
  /// Takes new references; `onFailure` may be None. GIL required.
  PythonReplay(PyObject* replay, PyObject* onFailure) : replay_(replay), onFailure_(onFailure) {}

  std::vector<at::Tensor> replay(const std::vector<runtime::aten::Argument>& inputs) const override;
  /// Accepts exceptions of Python code, which reports its failures itself (agspeed/backends/region.py), except Ctrl-C
  /// and exits.
  bool mayReplace(const std::exception& error) const override;
  void codeFailed(const std::string& reason) const override;
  /// Reports the held objects to the garbage collector.
  int traverse(visitproc visit, void* arg) const;

 private:
  const PythonReference replay_;
  const PythonReference onFailure_;
};

}  // namespace agspeed::python
