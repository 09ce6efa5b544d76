// SPDX-License-Identifier: Apache-2.0
// StepRecord: the layouts of an optimizer's parameters and gradients, and the options of its groups, as they were at
// one step. It answers at later steps whether anything has changed. Each step asks, so no Python code runs.
//
// It keeps no parameter alive. Options are compared by identity, so it records only options that cannot change in
// place. GIL required.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <string_view>
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
  static constexpr std::array<std::string_view, 4> kOthers = {"params", "param_names", "lr", "initial_lr"};
  Py_ssize_t size = 0;
  const char* text = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, &size) : nullptr;
  return text == nullptr || std::ranges::find(kOthers, std::string_view(text, size)) == kOthers.end();
}

bool isConstant(PyObject* value) {
  if (PyTuple_CheckExact(value)) {
    return std::all_of(&PyTuple_GET_ITEM(value, 0), &PyTuple_GET_ITEM(value, 0) + PyTuple_GET_SIZE(value), isConstant);
  }
  return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyUnicode_CheckExact(value);
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

  bool set(const py::list& groups) {
    forget();
    for (py::handle group : groups) {
      PyObject* list = parametersOf(group.ptr());
      if (list == nullptr || !setGroup(group.ptr(), list)) return false;
    }
    isSet_ = true;
    return true;
  }

  bool fits(const py::list& groups) const {
    if (!isSet_ || groups.size() != groups_.size()) return false;
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
      recorded.options.emplace_back(py::reinterpret_borrow<py::object>(key), py::reinterpret_borrow<py::object>(value));
      return isConstant(value);
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
      return ownKey.ptr() == key && ownValue.ptr() == value;
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
