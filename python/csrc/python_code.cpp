// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/python_code.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
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

Argument toArgument(PyObject* item, size_t index) {
  if (THPVariable_Check(item)) return THPVariable_Unpack(item);
  if (PyLong_CheckExact(item)) return static_cast<int64_t>(PyLong_AsLongLong(item));
  TORCH_CHECK_TYPE(item == Py_None, "compiled code returned a ", Py_TYPE(item)->tp_name, " as result ", index,
                   " where a tensor, an integer or None was expected");
  return {};
}

// The thread state under which a direction runs.
class Surroundings {
  const c10::impl::ExcludeDispatchKeyGuard noAutocast_{c10::autocast_dispatch_keyset};
  const at::AutoGradMode noHistory_{false};
  const py::gil_scoped_acquire gil_;
};

// Returns a tuple or list; throws a Python error for any other result.
py::object call(PyObject* code, const py::object& inputs) {
  const py::object results = checked(PyObject_CallOneArg(code, inputs.ptr()));
  return checked(PySequence_Fast(results.ptr(), "a direction returned no list"));
}

// The first `count` items.
std::vector<Argument> firstOf(const py::object& items, size_t count) {
  std::vector<Argument> results(count);
  for (size_t i = 0; i < count; ++i) {
    results[i] = toArgument(PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)), i);
  }
  if (PyErr_Occurred() != nullptr) throwPythonError();
  return results;
}

// A new list of the items from index `first` on.
py::object listFrom(const py::object& items, size_t first) {
  const auto begin = static_cast<Py_ssize_t>(first);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr()) - begin;
  py::object list = checked(PyList_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyList_SET_ITEM(list.ptr(), i, Py_NewRef(PySequence_Fast_GET_ITEM(items.ptr(), begin + i)));
  }
  return list;
}

size_t sizeOf(const py::object& items) { return static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr())); }

class PythonRun final : public runtime::autograd::BackwardRun {
 public:
  PythonRun(PyObject* stages, const RegionSignature& signature) : stages_(stages), signature_(signature) {}
  ~PythonRun() override {
    if (carried_ == nullptr) return;
    const py::gil_scoped_acquire gil;
    Py_DECREF(carried_);
  }
  PythonRun(const PythonRun&) = delete;
  PythonRun& operator=(const PythonRun&) = delete;

  StatusOr<std::vector<Argument>> resume(std::vector<Argument> inputs) override {
    const Surroundings surroundings;
    const py::object list = carried_ == nullptr ? toList(std::move(inputs)) : withCarried(std::move(inputs));
    const auto stage = static_cast<size_t>(stage_++);
    const py::object results = call(PyTuple_GET_ITEM(stages_, stage_ - 1), list);
    const bool isLast = stage_ == PyTuple_GET_SIZE(stages_);
    const size_t numGradients = isLast ? sizeOf(results) : numGradientsOf(stage);
    TORCH_CHECK(sizeOf(results) >= numGradients, "stage ", stage, " of the backward of region ", signature_.name,
                " returned ", sizeOf(results), " results instead of ", numGradients, " gradients at least");
    if (!isLast) carried_ = listFrom(results, numGradients).release().ptr();
    return firstOf(results, numGradients);
  }

 private:
  py::object withCarried(std::vector<Argument> inputs) {
    py::object list = py::reinterpret_steal<py::object>(std::exchange(carried_, nullptr));
    for (Argument& input : inputs) {
      if (PyList_Append(list.ptr(), wrapArgument(std::move(input)).ptr()) != 0) throwPythonError();
    }
    return list;
  }
  size_t numGradientsOf(size_t stage) const {
    const std::vector<int32_t>& stages = signature_.gradientStages;
    return static_cast<size_t>(std::count(stages.begin(), stages.end(), static_cast<int32_t>(stage)));
  }

  PyObject* const stages_;  ///< borrowed from the code, which outlives the run
  const RegionSignature& signature_;
  Py_ssize_t stage_ = 0;
  PyObject* carried_ = nullptr;  ///< a list for the next stage
};

std::vector<Argument> run(PyObject* code, std::vector<Argument> inputs) {
  const Surroundings surroundings;
  const py::object results = call(code, toList(std::move(inputs)));
  return firstOf(results, sizeOf(results));
}

}  // namespace

StatusOr<std::unique_ptr<const RegionCode>> PythonCode::create(PyObject* forward, PyObject* backward) {
  bool isCode = PyCallable_Check(forward) != 0 && PyTuple_CheckExact(backward) != 0;
  for (Py_ssize_t i = 0; isCode && i < PyTuple_GET_SIZE(backward); ++i) {
    isCode = PyCallable_Check(PyTuple_GET_ITEM(backward, i)) != 0;
  }
  if (!isCode) {
    return invalidArgument("the code of a Region is an Executable, or a callable with a tuple of callables");
  }
  return std::unique_ptr<const RegionCode>(new PythonCode(forward, backward));
}

Status PythonCode::check(const RegionSignature& signature) const {
  const auto numStages = static_cast<size_t>(PyTuple_GET_SIZE(backward_.get()));
  if (signature.tangents.empty() || numStages == signature.numStages()) return {};
  return invalidArgument("the signature has {} stages but there are {} backward callables", signature.numStages(),
                         numStages);
}

// Accepts all tensors that a traced graph of ATen operators may get; Dynamo guards on the keys of each input.
c10::DispatchKeySet PythonCode::acceptedKeys() const {
  return c10::DispatchKeySet(c10::DispatchKeySet::FULL) - c10::python_ks - c10::functorch_transforms_ks;
}

StatusOr<std::vector<Argument>> PythonCode::forward(const std::vector<Argument>& inputs) const {
  return run(forward_.get(), inputs);
}

std::unique_ptr<runtime::autograd::BackwardRun> PythonCode::beginBackward(const RegionSignature& signature) const {
  return std::make_unique<PythonRun>(backward_.get(), signature);
}

int PythonCode::traverse(visitproc visit, void* arg) const {
  Py_VISIT(forward_.get());
  Py_VISIT(backward_.get());
  return 0;
}

}  // namespace agspeed::python
