// SPDX-License-Identifier: Apache-2.0
// PythonReference: an owned reference to a Python object that any thread may drop. Dropping takes the GIL; it does
// nothing after the interpreter has ended. Creating and using it requires the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace agspeed::python {

class PythonReference {
 public:
  explicit PythonReference(PyObject* object) : object_(Py_NewRef(object)) {}
  PythonReference(const PythonReference&) = delete;
  PythonReference& operator=(const PythonReference&) = delete;
  ~PythonReference() {
    if (Py_IsInitialized() == 0) return;
    const pybind11::gil_scoped_acquire gil;
    Py_DECREF(object_);
  }

  PyObject* get() const { return object_; }

 private:
  PyObject* const object_;
};

}  // namespace agspeed::python
