// SPDX-License-Identifier: Apache-2.0
// Conversions between Arguments and Python objects, for calls that avoid pybind11's own. GIL required throughout.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "runtime/aten/aten_executable.h"

namespace agspeed::python {

/// Throws the pending Python error in a form that may cross threads and calls without the GIL.
[[noreturn]] inline void throwPythonError() {
  python_error error;
  error.persist();
  throw python_error(std::move(error));
}

/// A new reference, or nullptr with an error set.
inline PyObject* wrapArgument(runtime::aten::Argument argument) {
  if (auto* tensor = std::get_if<at::Tensor>(&argument)) return THPVariable_Wrap(std::move(*tensor));
  if (const auto* integer = std::get_if<int64_t>(&argument)) return PyLong_FromLongLong(*integer);
  return Py_NewRef(Py_None);
}

}  // namespace agspeed::python
