// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/python_code.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "python/csrc/python_arguments.h"

namespace agspeed::python {
namespace {

namespace py = pybind11;
using runtime::aten::Argument;
using runtime::autograd::RegionCode;
using runtime::autograd::RegionSignature;

py::object toList(std::vector<Argument> inputs) {
  py::object list = checked(PyList_New(static_cast<Py_ssize_t>(inputs.size())));
  for (size_t i = 0; i < inputs.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), wrapArgument(std::move(inputs[i])).release().ptr());
  }
  return list;
}

std::vector<Argument> fromSequence(const py::object& sequence) {
  const py::object items = checked(PySequence_Fast(sequence.ptr(), "a direction returned no list"));
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  std::vector<Argument> results(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    if (THPVariable_Check(item)) {
      results[i] = THPVariable_Unpack(item);
    } else if (PyLong_CheckExact(item)) {
      results[i] = static_cast<int64_t>(PyLong_AsLongLong(item));
    } else if (item != Py_None) {
      TORCH_CHECK_TYPE(false, "compiled code returned a ", Py_TYPE(item)->tp_name, " as result ", i,
                       " where a tensor, an integer or None was expected");
    }
  }
  if (PyErr_Occurred() != nullptr) throwPythonError();
  return results;
}

std::vector<Argument> run(PyObject* code, std::vector<Argument> inputs) {
  const c10::impl::ExcludeDispatchKeyGuard noAutocast(c10::autocast_dispatch_keyset);
  const at::AutoGradMode noHistory(false);
  const py::gil_scoped_acquire gil;
  py::object list = toList(std::move(inputs));
  return fromSequence(checked(PyObject_CallOneArg(code, list.ptr())));
}

}  // namespace

StatusOr<std::unique_ptr<const RegionCode>> PythonCode::create(PyObject* forward, PyObject* backward) {
  if (PyCallable_Check(forward) == 0 || (backward != Py_None && PyCallable_Check(backward) == 0)) {
    return invalidArgument("the code of a Region is an Executable or a pair (forward, backward) of callables");
  }
  return std::unique_ptr<const RegionCode>(new PythonCode(forward, backward));
}

Status PythonCode::check(const RegionSignature& signature) const {
  if (backward_.get() != Py_None || signature.tangents.empty()) return {};
  return invalidArgument("the signature has tangents but there is no backward callable");
}

// Whatever a traced graph of ATen operators may be given; Dynamo guards on the keys of each input.
c10::DispatchKeySet PythonCode::acceptedKeys() const {
  return c10::DispatchKeySet(c10::DispatchKeySet::FULL) - c10::python_ks - c10::functorch_transforms_ks;
}

StatusOr<std::vector<Argument>> PythonCode::forward(const std::vector<Argument>& inputs) const {
  return run(forward_.get(), inputs);
}

StatusOr<std::vector<Argument>> PythonCode::backward(std::vector<Argument> inputs, size_t) const {
  return run(backward_.get(), std::move(inputs));
}

int PythonCode::traverse(visitproc visit, void* arg) const {
  Py_VISIT(forward_.get());
  Py_VISIT(backward_.get());
  return 0;
}

}  // namespace agspeed::python
