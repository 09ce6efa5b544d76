// SPDX-License-Identifier: Apache-2.0
// StepRecord: the layouts of an optimizer's parameters and gradients, and the options of its groups, as they were at
// one step. It answers at later steps whether anything has changed. Each step asks, so no Python code runs.
//
// It keeps no parameter alive. Numbers among the options fit if they have the same type and both or neither are zero: a
// schedule that changes them chooses no other code. GIL required.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "python/csrc/bindings.h"

namespace agspeed::python {
namespace {

namespace py = pybind11;

struct Layout {
  c10::DispatchKeySet keys;
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  explicit Layout(const at::Tensor& tensor)
      : keys(tensor.key_set()),
        dtype(tensor.scalar_type()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()) {}

  bool fits(const at::Tensor& tensor) const {
    return tensor.key_set() == keys && tensor.scalar_type() == dtype && tensor.sizes() == sizes &&
           tensor.strides() == strides;
  }
};

struct RecordedParameter {
  c10::weak_intrusive_ptr<at::TensorImpl> identity;
  Layout layout;
  std::optional<Layout> gradient;

  explicit RecordedParameter(const at::Tensor& parameter) : identity(parameter.getIntrusivePtr()), layout(parameter) {
    if (parameter.grad().defined()) gradient.emplace(parameter.grad());
  }

  bool fits(const at::Tensor& parameter) const {
    if (identity.expired() || identity._unsafe_get_target() != parameter.unsafeGetTensorImpl()) return false;
    const at::Tensor& grad = parameter.grad();
    return layout.fits(parameter) && grad.defined() == gradient.has_value() && (!gradient || gradient->fits(grad));
  }
};

struct RecordedGroup {
  std::vector<RecordedParameter> parameters;
  std::vector<std::pair<py::object, py::object>> options;
};

/// Whether the options of a group contain the key. The learning rate chooses no code of a step.
bool isOption(PyObject* key) {
  static constexpr std::array kOthers = {"params", "param_names", "lr", "initial_lr"};
  return !PyUnicode_Check(key) || std::ranges::none_of(kOthers, [&](const char* other) {
    return PyUnicode_CompareWithASCIIString(key, other) == 0;
  });
}

bool isNumber(PyObject* value) { return PyLong_CheckExact(value) || PyFloat_CheckExact(value); }

/// A copy of an option that cannot change in place, with lists as tuples; an empty object if there is none.
py::object constantOf(PyObject* value) {
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    py::tuple copy = py::reinterpret_steal<py::tuple>(PySequence_Tuple(value));
    py::tuple constants(copy.size());
    for (size_t i = 0; i < copy.size(); ++i) {
      py::object constant = constantOf(copy[i].ptr());
      if (!constant) return {};
      constants[i] = constant;
    }
    return constants;
  }
  const bool isConstant = value == Py_None || PyBool_Check(value) || isNumber(value) || PyUnicode_CheckExact(value);
  return isConstant ? py::reinterpret_borrow<py::object>(value) : py::object();
}

/// Whether an option chooses the same code as the recorded one.
bool fitsOption(PyObject* recorded, PyObject* value) {
  if (recorded == value) return true;
  if (isNumber(recorded))
    return Py_TYPE(recorded) == Py_TYPE(value) && PyObject_IsTrue(recorded) == PyObject_IsTrue(value);
  if (!PyTuple_CheckExact(recorded) || !(PyTuple_CheckExact(value) || PyList_CheckExact(value))) return false;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
  if (PyTuple_GET_SIZE(recorded) != size) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!fitsOption(PyTuple_GET_ITEM(recorded, i), PySequence_Fast_GET_ITEM(value, i))) return false;
  }
  return true;
}

/// Calls `visit(key, value)` for each option of a group until it returns false. Returns false then.
template <typename Visit>
bool visitOptions(PyObject* group, Visit visit) {
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t place = 0; PyDict_Next(group, &place, &key, &value) != 0;) {
    if (isOption(key) && !visit(key, value)) return false;
  }
  return true;
}

/// The list of a group's parameters, or nullptr if it holds anything but tensors.
PyObject* parametersOf(PyObject* group) {
  PyObject* list = PyDict_Check(group) ? PyDict_GetItemString(group, "params") : nullptr;
  if (list == nullptr || !PyList_CheckExact(list)) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    if (!THPVariable_Check(PyList_GET_ITEM(list, i))) return nullptr;
  }
  return list;
}

class StepRecord {
 public:
  void forget() {
    groups_.clear();
    isSet_ = false;
  }

  bool set(const py::object& groups) {
    forget();
    if (!PyList_Check(groups.ptr())) return false;
    for (py::handle group : groups) {
      PyObject* list = parametersOf(group.ptr());
      if (list == nullptr || !setGroup(group.ptr(), list)) return false;
    }
    isSet_ = true;
    return true;
  }

  bool fits(const py::object& groups) const {
    if (!isSet_ || !PyList_Check(groups.ptr())) return false;
    if (static_cast<size_t>(PyList_GET_SIZE(groups.ptr())) != groups_.size()) return false;
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (!fitsGroup(groups_[i], PyList_GET_ITEM(groups.ptr(), static_cast<Py_ssize_t>(i)))) return false;
    }
    return true;
  }

 private:
  bool setGroup(PyObject* group, PyObject* list) {
    RecordedGroup& recorded = groups_.emplace_back();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      const at::Tensor& parameter = THPVariable_Unpack(PyList_GET_ITEM(list, i));
      if (parameter.layout() != at::kStrided) return false;
      if (parameter.grad().defined() && parameter.grad().layout() != at::kStrided) return false;
      recorded.parameters.emplace_back(parameter);
    }
    return visitOptions(group, [&](PyObject* key, PyObject* value) {
      py::object constant = constantOf(value);
      if (!constant) return false;
      recorded.options.emplace_back(py::reinterpret_borrow<py::object>(key), std::move(constant));
      return true;
    });
  }

  static bool fitsGroup(const RecordedGroup& recorded, PyObject* group) {
    PyObject* list = parametersOf(group);
    if (list == nullptr || static_cast<size_t>(PyList_GET_SIZE(list)) != recorded.parameters.size()) return false;
    for (size_t i = 0; i < recorded.parameters.size(); ++i) {
      const at::Tensor& parameter = THPVariable_Unpack(PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i)));
      if (!recorded.parameters[i].fits(parameter)) return false;
    }
    size_t numOptions = 0;
    const bool areSame = visitOptions(group, [&](PyObject* key, PyObject* value) {
      if (numOptions == recorded.options.size()) return false;
      const auto& [ownKey, ownValue] = recorded.options[numOptions++];
      return ownKey.ptr() == key && fitsOption(ownValue.ptr(), value);
    });
    return areSame && numOptions == recorded.options.size();
  }

  std::vector<RecordedGroup> groups_;
  bool isSet_ = false;
};

}  // namespace

void bindOptimizer(py::module_& module) {
  py::class_<StepRecord>(module, "StepRecord")
      .def(py::init<>())
      .def("set", &StepRecord::set, py::arg("groups"))
      .def("fits", &StepRecord::fits, py::arg("groups"))
      .def("forget", &StepRecord::forget);
}

}  // namespace agspeed::python
