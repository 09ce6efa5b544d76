// SPDX-License-Identifier: Apache-2.0
// Region in Python: a type with vectorcall. A call converts arguments, runs Region::forward without the GIL and wraps
// the outputs. Refused or failed calls go to the fallback with their original arguments.
//
// The garbage collector sees the Region's callables only while no autograd node shares the Region, because a graph that
// is alive keeps them.
#include <cstddef>

#include "python/csrc/bind_executable.h"
#include "python/csrc/bindings.h"
#include "python/csrc/python_arguments.h"
#include "python/csrc/python_code.h"
#include "python/csrc/python_replay.h"
#include "python/csrc/region_dict.h"
#include "python/csrc/status_to_python.h"
#include "runtime/autograd/program_code.h"
#include "runtime/autograd/region.h"

namespace agspeed::python {
namespace {

namespace py = pybind11;
using runtime::aten::Argument;
using runtime::autograd::EagerFunction;
using runtime::autograd::ProgramCode;
using runtime::autograd::Region;
using runtime::autograd::RegionCode;

struct RegionObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* weakrefs;
  PyObject* fallback;  ///< nullptr: there is none
  std::shared_ptr<const Region> region;
  uint64_t calls;
  uint64_t fallbacks;
  std::string lastFallback;
};

RegionObject* cast(PyObject* self) { return reinterpret_cast<RegionObject*>(self); }

// Returns nullptr if every argument is a plain tensor object or an integer; they are then in `inputs`.
const char* convertArguments(PyObject* const* args, size_t count, std::vector<Argument>& inputs) {
  inputs.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (THPVariable_CheckExact(args[i])) {
      inputs.emplace_back(THPVariable_Unpack(args[i]));
    } else if (PyLong_CheckExact(args[i])) {
      inputs.emplace_back(static_cast<int64_t>(PyLong_AsLongLong(args[i])));
    } else {
      return "an input is a tensor subclass or no tensor";
    }
  }
  return PyErr_Occurred() != nullptr ? "an integer input is too large" : nullptr;
}

PyObject* callFallback(RegionObject* self, const std::string& reason, PyObject* const* args, size_t count) {
  PyErr_Clear();
  ++self->fallbacks;
  self->lastFallback = reason;
  if (self->fallback == nullptr) {
    raise(unsupported("region {} cannot run natively and has no fallback: {}", self->region->signature().name, reason));
  }
  const py::object keep = py::reinterpret_borrow<py::object>(self->fallback);
  return PyObject_Vectorcall(keep.ptr(), args, count, nullptr);
}

// Calls codeFailed(), which may raise in place of the outputs.
PyObject* tellFailure(const Region& region, const Status& status, PyObject* outputs) {
  const bool isFailure = status.code() != StatusCode::kUnsupported && outputs != nullptr;
  if (!isFailure || region.eager() == nullptr) return outputs;
  const auto owned = py::reinterpret_steal<py::object>(outputs);
  region.eager()->codeFailed(status.message());
  return owned.inc_ref().ptr();
}

PyObject* call(PyObject* object, PyObject* const* args, size_t nargs, PyObject* names) {
  HANDLE_TH_ERRORS
  RegionObject* self = cast(object);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(nargs));
  TORCH_CHECK_TYPE(names == nullptr || PyTuple_GET_SIZE(names) == 0, "a Region takes no keyword arguments");
  ++self->calls;
  std::vector<Argument> inputs;
  if (const char* reason = convertArguments(args, count, inputs)) return callFallback(self, reason, args, count);
  StatusOr<std::vector<Argument>> outputs = [&] {
    py::gil_scoped_release noGil;
    return self->region->forward(inputs);
  }();
  if (!outputs.hasValue()) {
    const std::shared_ptr<const Region> region = self->region;  // the callbacks may drop this object
    PyObject* instead = callFallback(self, outputs.status().message(), args, count);
    return tellFailure(*region, outputs.status(), instead);
  }
  return toTuple(*std::move(outputs)).release().ptr();
  END_HANDLE_TH_ERRORS
}

// Makes the code from an Executable, or from a pair: a callable, and a tuple of callables, one per stage of the
// backward.
std::unique_ptr<const RegionCode> codeOf(PyObject* code) {
  if (PyTuple_CheckExact(code) != 0 && PyTuple_GET_SIZE(code) == 2) {
    return unwrap(PythonCode::create(PyTuple_GET_ITEM(code, 0), PyTuple_GET_ITEM(code, 1)));
  }
  return unwrap(ProgramCode::create(atenExecutableOf(code)));
}

std::unique_ptr<const EagerFunction> replayOf(const py::dict& signature) {
  const py::object replay = parseCallable(signature, "replay");
  const py::object onFailure = signature.contains("on_failure") ? parseCallable(signature, "on_failure") : py::object();
  if (!replay) return nullptr;
  return std::make_unique<const PythonReplay>(replay.ptr(), onFailure ? onFailure.ptr() : Py_None);
}

PyObject* newRegion(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"code", "signature", nullptr};
  PyObject* code = nullptr;
  PyObject* signature = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!:Region", const_cast<char**>(names), &code, &PyDict_Type,
                                   &signature)) {
    return nullptr;
  }
  const auto dict = py::reinterpret_borrow<py::dict>(signature);
  py::object fallback = parseCallable(dict, "fallback");
  std::shared_ptr<const Region> region = unwrap(Region::create(codeOf(code), parseSignature(dict), replayOf(dict)));
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  cast(self)->vectorcall = &call;
  cast(self)->fallback = fallback.release().ptr();
  new (&cast(self)->region) std::shared_ptr<const Region>(std::move(region));
  new (&cast(self)->lastFallback) std::string;
  return self;
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cast(self)->fallback);
  const std::shared_ptr<const Region>& region = cast(self)->region;
  if (region == nullptr || region.use_count() != 1) return 0;
  if (const auto* replay = static_cast<const PythonReplay*>(region->eager())) {
    if (const int stop = replay->traverse(visit, arg)) return stop;
  }
  const auto* code = dynamic_cast<const PythonCode*>(&region->code());
  return code == nullptr ? 0 : code->traverse(visit, arg);
}

int clear(PyObject* self) {
  Py_CLEAR(cast(self)->fallback);
  cast(self)->region.reset();
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (cast(self)->weakrefs != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(cast(self)->fallback);
  cast(self)->region.~shared_ptr();
  cast(self)->lastFallback.~basic_string();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* stats(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  py::dict result;
  result["calls"] = cast(self)->calls;
  result["fallbacks"] = cast(self)->fallbacks;
  result["last_fallback"] = cast(self)->fallbacks == 0 ? py::object(py::none()) : py::str(cast(self)->lastFallback);
  return result.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(RegionObject, vectorcall), Py_READONLY, nullptr},
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(RegionObject, weakrefs), Py_READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef kMethods[] = {
    {"stats", &stats, METH_NOARGS, "stats($self)\n--\n\nCounts of calls and fallbacks, and the last reason."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>("Region(code, signature)\n--\n\nSee runtime/autograd/region.h.")},
                        {Py_tp_new, reinterpret_cast<void*>(&newRegion)},
                        {Py_tp_dealloc, reinterpret_cast<void*>(&dealloc)},
                        {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                        {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                        {Py_tp_members, kMembers},
                        {Py_tp_methods, kMethods},
                        {0, nullptr}};

PyType_Spec kSpec = {"agspeed._native.Region", sizeof(RegionObject), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
                     kSlots};

}  // namespace

void bindRegion(py::module_& module) {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type == nullptr) throw py::error_already_set();
  module.attr("Region") = py::reinterpret_steal<py::object>(type);
}

}  // namespace agspeed::python
