// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/python_replay.h"

#include "python/csrc/python_arguments.h"

namespace agspeed::python {

namespace py = pybind11;

std::vector<at::Tensor> PythonReplay::replay(const std::vector<runtime::aten::Argument>& inputs) const {
  const py::gil_scoped_acquire gil;
  const py::object result = checked(PyObject_CallObject(replay_.get(), toTuple(inputs).ptr()));
  const py::object items = checked(PySequence_Fast(result.ptr(), "replay must return a sequence"));
  std::vector<at::Tensor> outputs(static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr())));
  for (size_t i = 0; i < outputs.size(); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    if (THPVariable_Check(item)) outputs[i] = THPVariable_Unpack(item);
  }
  return outputs;
}

bool PythonReplay::mayReplace(const std::exception& error) const {
  const auto* fromPython = dynamic_cast<const python_error*>(&error);
  if (fromPython == nullptr) return false;
  const py::gil_scoped_acquire gil;
  return PyErr_GivenExceptionMatches(fromPython->type, PyExc_Exception) != 0;
}

void PythonReplay::codeFailed(const std::string& reason) const {
  const py::gil_scoped_acquire gil;
  if (onFailure_.get() == Py_None) return;
  checked(PyObject_CallOneArg(onFailure_.get(), py::str(reason).ptr()));
}

int PythonReplay::traverse(visitproc visit, void* arg) const {
  Py_VISIT(replay_.get());
  Py_VISIT(onFailure_.get());
  return 0;
}

}  // namespace agspeed::python
