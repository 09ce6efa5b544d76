// SPDX-License-Identifier: Apache-2.0
// Conversions between Arguments and Python objects, for calls that bypass pybind11's own. GIL required throughout.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

#include "runtime/aten/aten_executable.h"

namespace agspeed::python {

/// Throws the pending Python error in a form that may cross threads and calls without the GIL.
[[noreturn]] inline void throwPythonError() {
  python_error error;
  error.persist();
  throw python_error(std::move(error));
}

/// Owns a new reference that the C API returned; throws the pending Python error for nullptr.
inline pybind11::object checked(PyObject* reference) {
  if (reference == nullptr) throwPythonError();
  return pybind11::reinterpret_steal<pybind11::object>(reference);
}

/// Throws python_error.
inline pybind11::object wrapArgument(runtime::aten::Argument argument) {
  if (auto* tensor = std::get_if<at::Tensor>(&argument)) return checked(THPVariable_Wrap(std::move(*tensor)));
  if (const auto* integer = std::get_if<int64_t>(&argument)) return checked(PyLong_FromLongLong(*integer));
  return pybind11::none();
}

/// Throws python_error.
inline pybind11::object toTuple(std::vector<runtime::aten::Argument> arguments) {
  pybind11::object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(arguments.size())));
  for (size_t i = 0; i < arguments.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), wrapArgument(std::move(arguments[i])).release().ptr());
  }
  return tuple;
}

}  // namespace agspeed::python
