// SPDX-License-Identifier: Apache-2.0
// Quick calls: fast versions of functions that training scripts call for every tensor. Their fast path runs no Python
// frame.
//
// A quick call wraps a Python function and calls it for every case outside the fast path: other arguments, a name that
// is in flight, a full cache of names, and failures. So only the Python function reports errors. The GIL is held, and
// released while the network is polled.
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "comm/horovod/handle_table.h"
#include "python/csrc/bindings.h"

namespace agspeed::python {
namespace {

using comm::horovod::HandleTable;

/// A Python object that is called like a function. There is one object per function. It owns its references until the
/// garbage collector clears it or it is destroyed.
struct QuickCall {
  PyObject_HEAD vectorcallfunc call;
  HandleTable* table;
  PyObject* owner;      ///< keeps `table` alive
  PyObject* function;   ///< the Python function that it wraps
  PyObject* globalSet;  ///< the process set of calls that pass none
  PyObject* attributes;
};

/// The arguments of allreduce_async_(), in their order.
enum Argument : size_t { kTensor, kAverage, kName, kOp, kPrescale, kPostscale, kProcessSet, kNumArguments };
using Arguments = std::array<PyObject*, kNumArguments>;

const Arguments& argumentNames() {
  static const Arguments kNames = {
      PyUnicode_InternFromString("tensor"),
      PyUnicode_InternFromString("average"),
      PyUnicode_InternFromString("name"),
      PyUnicode_InternFromString("op"),
      PyUnicode_InternFromString("prescale_factor"),
      PyUnicode_InternFromString("postscale_factor"),
      PyUnicode_InternFromString("process_set"),
  };
  return kNames;
}

/// Puts the arguments in their order; false if one is unknown or given twice.
bool arrange(PyObject* const* args, size_t count, PyObject* keywords, Arguments& arguments) {
  const size_t numKeywords = keywords == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(keywords));
  if (count > kNumArguments) return false;
  std::copy_n(args, count, arguments.begin());
  const Arguments& names = argumentNames();
  for (size_t i = 0; i < numKeywords; ++i) {
    // Keywords in the source code of a program are interned, and so are these names, so pointers can be compared.
    const auto at = std::find(names.begin(), names.end(), PyTuple_GET_ITEM(keywords, i));
    if (at == names.end() || arguments[static_cast<size_t>(at - names.begin())] != nullptr) return false;
    arguments[static_cast<size_t>(at - names.begin())] = args[count + i];
  }
  return true;
}

bool isGiven(PyObject* argument) { return argument != nullptr && argument != Py_None; }

/// Empty if it is not a string.
std::string_view textOf(PyObject* name) {
  if (name == nullptr || !PyUnicode_Check(name)) return {};
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name, &size);
  if (text != nullptr) return {text, static_cast<size_t>(size)};
  PyErr_Clear();
  return {};
}

/// The reduction of op, prescale_factor and postscale_factor, if they describe one.
std::optional<comm::horovod::PersistentReduction::Kind> kindOf(PyObject* op, PyObject* prescale, PyObject* postscale) {
  comm::horovod::PersistentReduction::Kind kind;
  if (isGiven(op)) {
    if (!PyLong_Check(op)) return std::nullopt;
    int hasOverflown = 0;
    const auto reduction = comm::horovod::reductionOf(PyLong_AsLongAndOverflow(op, &hasOverflown));
    if (!reduction.has_value() || hasOverflown != 0) return std::nullopt;
    kind.reduction = *reduction;
  }
  for (const auto& [factor, place] : {std::pair(prescale, &kind.prescale), std::pair(postscale, &kind.postscale)}) {
    if (factor == nullptr) continue;
    if (!PyFloat_Check(factor)) return std::nullopt;
    *place = PyFloat_AS_DOUBLE(factor);
  }
  return kind;
}

/// Releases the GIL, also to drop the group, because threads that end with it may wait for the GIL.
void kick(std::shared_ptr<comm::horovod::TensorGroup> group) {
  const pybind11::gil_scoped_release released;
  const std::shared_ptr<comm::horovod::TensorGroup> kicked = std::move(group);
  try {
    kicked->kick();
  } catch (const std::exception&) {
    // The operation has started: a thread that waits for it drives it and gets the failure.
  }
}

/// Returns a handle. Returns null without a Python error if the fast path does not handle the call.
PyObject* startAgain(HandleTable& table, const std::shared_ptr<comm::horovod::TensorGroup>& group, PyObject* input,
                     PyObject* output, PyObject* name, comm::horovod::PersistentReduction::Kind kind) {
  const std::string_view text = textOf(name);
  if (text.empty() || input == nullptr || !THPVariable_Check(input)) return nullptr;
  if (isGiven(output) && !THPVariable_Check(output)) return nullptr;
  try {
    const at::Tensor& from = THPVariable_Unpack(input);
    const at::Tensor& to = isGiven(output) ? THPVariable_Unpack(output) : from;
    HandleTable::Again again = table.startAgain(group, text, kind, from, to);
    if (again.toKick != nullptr) kick(std::move(again.toKick));
    return again.handle == 0 ? nullptr : PyLong_FromLongLong(again.handle);
  } catch (const std::exception&) {
    return nullptr;  // the wrapped function repeats the call and reports the error
  }
}

PyObject* allreduce(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  const auto& call = *reinterpret_cast<QuickCall*>(self);
  Arguments given{};
  if (arrange(args, static_cast<size_t>(PyVectorcall_NARGS(flags)), keywords, given) && !isGiven(given[kAverage]) &&
      (given[kProcessSet] == nullptr || given[kProcessSet] == call.globalSet)) {
    const auto kind = kindOf(given[kOp], given[kPrescale], given[kPostscale]);
    PyObject* handle =
        kind.has_value() ? startAgain(*call.table, nullptr, given[kTensor], nullptr, given[kName], *kind) : nullptr;
    if (handle != nullptr || PyErr_Occurred() != nullptr) return handle;
  }
  return PyObject_Vectorcall(call.function, args, flags, keywords);
}

PyObject* synchronize(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto& call = *reinterpret_cast<QuickCall*>(self);
  if (PyVectorcall_NARGS(flags) == 1 && keywords == nullptr && PyLong_CheckExact(args[0])) {
    int hasOverflown = 0;
    auto reduced = call.table->takeReduced(PyLong_AsLongLongAndOverflow(args[0], &hasOverflown));
    if (reduced.has_value()) {
      if (reduced->last != nullptr) {
        const pybind11::gil_scoped_release released;
        reduced->last.reset();
      }
      return THPVariable_Wrap(reduced->output);
    }
  }
  return PyObject_Vectorcall(call.function, args, flags, keywords);
  END_HANDLE_TH_ERRORS
}

/// Pickles by name, like functions.
PyObject* reduceToName(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

int traverse(PyObject* self, visitproc visit, void* arg) {
  const auto& call = *reinterpret_cast<QuickCall*>(self);
  for (PyObject* each : {call.function, call.globalSet, call.attributes, reinterpret_cast<PyObject*>(Py_TYPE(self))}) {
    Py_VISIT(each);
  }
  return 0;
}

/// It may still be called: it then wraps None.
int clear(PyObject* self) {
  auto& call = *reinterpret_cast<QuickCall*>(self);
  Py_CLEAR(call.attributes);
  Py_XSETREF(call.function, Py_NewRef(Py_None));
  Py_XSETREF(call.globalSet, Py_NewRef(Py_None));
  return 0;
}

void destroy(PyObject* self) {
  PyObject_GC_UnTrack(self);
  auto& call = *reinterpret_cast<QuickCall*>(self);
  for (PyObject** each : {&call.owner, &call.function, &call.globalSet, &call.attributes}) Py_CLEAR(*each);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyTypeObject* quickCallType() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(QuickCall, call), READONLY, nullptr},
      {"__dictoffset__", T_PYSSIZET, offsetof(QuickCall, attributes), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyMethodDef methods[] = {
      {"__reduce__", &reduceToName, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {
      {"__dict__", &PyObject_GenericGetDict, &PyObject_GenericSetDict, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
      {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
      {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(&clear)},
      {Py_tp_getset, properties},
      {Py_tp_members, members},
      {Py_tp_methods, methods},
      {0, nullptr},
  };
  static PyType_Spec spec = {"agspeed._native.QuickCall", sizeof(QuickCall), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  static PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw pybind11::error_already_set();
  return reinterpret_cast<PyTypeObject*>(type);
}

pybind11::object quickCall(const pybind11::object& handles, const pybind11::object& function,
                           const pybind11::object& globalSet, vectorcallfunc call) {
  PyTypeObject* type = quickCallType();
  auto made = pybind11::reinterpret_steal<pybind11::object>(type->tp_alloc(type, 0));
  if (!made) throw pybind11::error_already_set();
  auto& quick = *reinterpret_cast<QuickCall*>(made.ptr());
  quick.call = call;
  quick.table = &handles.cast<HandleTable&>();
  quick.owner = handles.inc_ref().ptr();
  quick.function = function.inc_ref().ptr();
  quick.globalSet = globalSet.inc_ref().ptr();
  return made;
}

}  // namespace

void bindQuickCalls(pybind11::module_& module) {
  namespace py = pybind11;
  module.def(
      "quick_allreduce",
      [](const py::object& handles, const py::object& function, const py::object& globalSet) {
        return quickCall(handles, function, globalSet, &allreduce);
      },
      py::arg("handles"), py::arg("function"), py::arg("global_set"));
  module.def(
      "quick_synchronize",
      [](const py::object& handles, const py::object& function) {
        return quickCall(handles, function, py::none(), &synchronize);
      },
      py::arg("handles"), py::arg("function"));
  module.def(
      "reduce_again",
      [](HandleTable& handles, const std::shared_ptr<comm::horovod::TensorGroup>& group, const py::object& input,
         const py::object& output, const py::object& name, const py::object& op, const py::object& prescale,
         const py::object& postscale) {
        const auto kind = kindOf(op.ptr(), prescale.ptr(), postscale.ptr());
        PyObject* handle =
            kind.has_value() ? startAgain(handles, group, input.ptr(), output.ptr(), name.ptr(), *kind) : nullptr;
        if (handle == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
        return handle == nullptr ? py::none() : py::reinterpret_steal<py::object>(handle);
      },
      py::arg("handles"), py::arg("group"), py::arg("input"), py::arg("output"), py::arg("name"), py::arg("op"),
      py::arg("prescale"), py::arg("postscale"));
}

}  // namespace agspeed::python
