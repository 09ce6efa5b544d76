// SPDX-License-Identifier: Apache-2.0
// Dispatcher: a callable that forwards its arguments, by vectorcall, to a target that may be swapped at any time.
//
// Written against the C API because pybind11 has no vectorcall: a call costs one indirection and runs no Python code of
// agspeed. A running call keeps the target that it started with alive; the next call uses the new one. GIL required.
//
// The target runs a captured graph. The graph already contains the effects of the user's TorchFunctionModes on each
// operator at capture. So modes that are active during a call must not see these operators again.
#include <ATen/PythonTorchFunctionTLS.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "python/csrc/bindings.h"

namespace agspeed::python {
namespace {

struct Dispatcher {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* target;
  PyObject* weakrefs;
  PyObject* dict;
  uint64_t calls;
};

Dispatcher* cast(PyObject* self) { return reinterpret_cast<Dispatcher*>(self); }

/// Takes this thread's TorchFunctionModes off their stack while it exists. Modes that the target enters itself work.
class HiddenFunctionModes {
 public:
  HiddenFunctionModes() {
    while (TLS::stack_len() > 0) hidden_.push_back(TLS::pop_stack());
  }
  ~HiddenFunctionModes() {
    for (; !hidden_.empty(); hidden_.pop_back()) TLS::push_onto_stack(hidden_.back());
  }
  HiddenFunctionModes(const HiddenFunctionModes&) = delete;
  HiddenFunctionModes& operator=(const HiddenFunctionModes&) = delete;

 private:
  using TLS = at::impl::PythonTorchFunctionTLS;
  std::vector<std::shared_ptr<c10::SafePyObject>> hidden_;  ///< innermost first
};

PyObject* forwardCall(PyObject* self, PyObject* const* args, size_t nargs, PyObject* names) {
  PyObject* target = cast(self)->target;
  ++cast(self)->calls;
  const HiddenFunctionModes hidden;
  Py_INCREF(target);
  PyObject* result = PyObject_Vectorcall(target, args, nargs, names);
  Py_DECREF(target);
  return result;
}

bool setTarget(Dispatcher* self, PyObject* target) {
  if (!PyCallable_Check(target)) {
    PyErr_Format(PyExc_TypeError, "Dispatcher needs a callable target, got %.200s", Py_TYPE(target)->tp_name);
    return false;
  }
  Py_INCREF(target);
  Py_XSETREF(self->target, target);
  return true;
}

PyObject* newDispatcher(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"target", nullptr};
  PyObject* target = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Dispatcher", const_cast<char**>(names), &target)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  cast(self)->vectorcall = &forwardCall;
  if (!setTarget(cast(self), target)) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

PyObject* setTargetMethod(PyObject* self, PyObject* target) {
  if (!setTarget(cast(self), target)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* getTarget(PyObject* self, void*) { return Py_NewRef(cast(self)->target); }

PyObject* getCalls(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(cast(self)->calls); }

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cast(self)->target);
  Py_VISIT(cast(self)->dict);
  return 0;
}

int clear(PyObject* self) {
  // Another member of the garbage cycle may still call a cleared Dispatcher, which then returns None.
  Py_INCREF(Py_None);
  Py_XSETREF(cast(self)->target, Py_None);
  Py_CLEAR(cast(self)->dict);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (cast(self)->weakrefs != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(cast(self)->target);
  Py_CLEAR(cast(self)->dict);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Dispatcher, vectorcall), Py_READONLY, nullptr},
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(Dispatcher, weakrefs), Py_READONLY, nullptr},
    {"__dictoffset__", Py_T_PYSSIZET, offsetof(Dispatcher, dict), Py_READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef kMethods[] = {{"set_target", &setTargetMethod, METH_O,
                           "set_target($self, target, /)\n--\n\nSwaps the target; calls under way are unaffected."},
                          {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kProperties[] = {{"target", &getTarget, nullptr, "The callable that receives the calls.", nullptr},
                             {"calls", &getCalls, nullptr, "How many calls were forwarded.", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>("Dispatcher(target)\n--\n\nForwards calls to its target.")},
                        {Py_tp_new, reinterpret_cast<void*>(&newDispatcher)},
                        {Py_tp_dealloc, reinterpret_cast<void*>(&dealloc)},
                        {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                        {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                        {Py_tp_members, kMembers},
                        {Py_tp_methods, kMethods},
                        {Py_tp_getset, kProperties},
                        {0, nullptr}};

PyType_Spec kSpec = {"agspeed._native.Dispatcher", sizeof(Dispatcher), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
                     kSlots};

}  // namespace

void bindDispatcher(pybind11::module_& module) {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type == nullptr) throw pybind11::error_already_set();
  module.attr("Dispatcher") = pybind11::reinterpret_steal<pybind11::object>(type);
}

}  // namespace agspeed::python
