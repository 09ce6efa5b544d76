// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/horovod/gradient_exchange.h"
#include "comm/horovod/handle_table.h"
#include "python/csrc/bindings.h"

namespace agspeed::python {
namespace {

using comm::FusionOrder;
using comm::GradientExchange;
using comm::HandleTable;
using comm::NamedKind;
using comm::NamedReduction;
using comm::TensorGroup;
using Tensors = TensorGroup::Tensors;

/// What Python says of an operation beside its tensors.
struct Wanted {
  std::string kind;
  std::optional<std::string> name;
  int op;
  double prescale, postscale;
  int root;
  std::vector<int64_t> splits;
};

NamedKind kindOf(const std::string& name) {
  for (const NamedKind kind :
       {NamedKind::kAllReduce, NamedKind::kAllGather, NamedKind::kBroadcast, NamedKind::kAllToAll,
        NamedKind::kReduceScatter, NamedKind::kBarrier, NamedKind::kJoin}) {
    if (name == comm::toString(kind)) return kind;
  }
  throw pybind11::value_error("there is no operation '" + name + "'");
}

/// By Horovod's numbers; 2 is Adasum, which is none of ours.
NamedReduction reductionOf(int op) {
  switch (op) {
    case 0: return NamedReduction::kAverage;
    case 1: return NamedReduction::kSum;
    case 3: return NamedReduction::kMin;
    case 4: return NamedReduction::kMax;
    case 5: return NamedReduction::kProduct;
    default: throw pybind11::value_error("there is no reduction " + std::to_string(op));
  }
}

FusionOrder orderOf(const std::string& name) {
  for (const FusionOrder order :
       {FusionOrder::kTime, FusionOrder::kSize, FusionOrder::kPriority, FusionOrder::kModel}) {
    if (name == comm::toString(order)) return order;
  }
  throw pybind11::value_error("there is no order '" + name + "'");
}

comm::Request requestOf(const Wanted& wanted) {
  comm::Request request;
  request.kind = kindOf(wanted.kind);
  request.name = wanted.name.value_or("");
  request.isCacheable = wanted.name.has_value();
  request.reduction = reductionOf(wanted.op);
  request.prescale = wanted.prescale;
  request.postscale = wanted.postscale;
  request.root = wanted.root;
  request.splits = wanted.splits;
  return request;
}

int64_t start(HandleTable& table, TensorGroup& group, const Wanted& wanted, Tensors inputs, Tensors outputs,
              bool isList) {
  return table.start(group, requestOf(wanted), std::move(inputs), std::move(outputs), isList);
}

/// The all-reduce of one tensor: what training scripts call thousands of times a second.
int64_t reduce(HandleTable& table, TensorGroup& group, at::Tensor input, std::optional<at::Tensor> output,
               std::optional<std::string> name, int op, double prescale, double postscale) {
  comm::Request request;
  request.kind = NamedKind::kAllReduce;
  request.isCacheable = name.has_value();
  if (name.has_value()) request.name = std::move(*name);
  request.reduction = reductionOf(op);
  request.prescale = prescale;
  request.postscale = postscale;
  Tensors outputs = {output.has_value() ? std::move(*output) : input};
  return table.start(group, std::move(request), {std::move(input)}, std::move(outputs), false);
}

/// Two calls that training scripts make for every tensor: without what pybind adds to a call, and with Python's lock
/// held, which is let go where the network is looked at. Bound to a table; None is the answer to all that the usual
/// calls have to do.
/// (group, input, output or None, name, op, prescale, postscale) -> handle or None.
PyObject* startAgain(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 7 || !THPVariable_Check(args[1]) || !PyUnicode_Check(args[3]) || !PyLong_Check(args[4]) ||
      !PyFloat_Check(args[5]) || !PyFloat_Check(args[6])) {
    Py_RETURN_NONE;
  }
  Py_ssize_t size = 0;
  const char* name = PyUnicode_AsUTF8AndSize(args[3], &size);
  if (name == nullptr || size == 0) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  try {
    auto& group = *pybind11::handle(args[0]).cast<TensorGroup*>();
    comm::Request request;
    request.kind = NamedKind::kAllReduce;
    request.isCacheable = true;
    request.reduction = reductionOf(static_cast<int>(PyLong_AsLong(args[4])));
    request.prescale = PyFloat_AS_DOUBLE(args[5]);
    request.postscale = PyFloat_AS_DOUBLE(args[6]);
    const at::Tensor& input = THPVariable_Unpack(args[1]);
    const at::Tensor& output = THPVariable_Check(args[2]) ? THPVariable_Unpack(args[2]) : input;
    const HandleTable::Again again = pybind11::handle(self).cast<HandleTable&>().startAgain(
        group, {name, static_cast<size_t>(size)}, request, input, output);
    if (again.isKickDue) {
      const pybind11::gil_scoped_release released;
      group.kick();
    }
    if (again.handle != 0) return PyLong_FromLongLong(again.handle);
  } catch (const std::exception&) {
    PyErr_Clear();  // the usual call says it
  }
  Py_RETURN_NONE;
}

/// handle -> the reduced tensor or None.
PyObject* takeReduced(PyObject* self, PyObject* handle) {
  if (!PyLong_Check(handle)) Py_RETURN_NONE;
  const int64_t number = PyLong_AsLongLong(handle);
  PyErr_Clear();
  const auto output = pybind11::handle(self).cast<HandleTable&>().takeReduced(number);
  if (!output.has_value()) Py_RETURN_NONE;
  return THPVariable_Wrap(*output);
}

PyMethodDef againMethod = {"start_again", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&startAgain)),
                           METH_FASTCALL, nullptr};
PyMethodDef takeMethod = {"take_reduced", &takeReduced, METH_O, nullptr};

/// Both, of this table.
pybind11::tuple quickCalls(const pybind11::object& self) {
  return pybind11::make_tuple(pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(&againMethod, self.ptr())),
                              pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(&takeMethod, self.ptr())));
}

pybind11::object wait(HandleTable& table, int64_t handle) {
  std::optional<HandleTable::Result> result;
  {
    const pybind11::gil_scoped_release released;
    result = table.wait(handle);
  }
  if (!result.has_value()) return pybind11::none();
  if (result->isList || result->outputs.empty()) return pybind11::cast(std::move(result->outputs));
  return pybind11::cast(std::move(result->outputs[0]));
}

/// What operations give beside tensors: (outputs, rows received from each rank, last rank that joined), or None.
pybind11::object waitForAll(HandleTable& table, int64_t handle) {
  std::optional<HandleTable::Result> result;
  {
    const pybind11::gil_scoped_release released;
    result = table.wait(handle);
  }
  if (!result.has_value()) return pybind11::none();
  return pybind11::make_tuple(std::move(result->outputs), result->receivedRows, result->lastJoined);
}

std::shared_ptr<GradientExchange> exchange(std::shared_ptr<TensorGroup> group, Tensors parameters,
                                           const std::vector<std::vector<size_t>>& members,
                                           std::vector<std::string> names, int op, double prescale, double postscale,
                                           bool isHalf, bool isOther, int numPasses, std::function<void(size_t)> refuse,
                                           std::function<void(size_t)> start) {
  return GradientExchange::create(std::move(group), std::move(parameters), members, std::move(names),
                                  {.reduction = reductionOf(op),
                                   .prescale = prescale,
                                   .postscale = postscale,
                                   .isHalf = isHalf,
                                   .isOther = isOther,
                                   .numPasses = numPasses},
                                  {.refuse = std::move(refuse), .start = std::move(start)});
}

comm::FusionPlan planOf(int64_t fusionBytes, const std::string& order, uint32_t version) {
  return {.fusionBytes = static_cast<size_t>(fusionBytes), .order = orderOf(order), .version = version};
}

void setPlan(TensorGroup& group, int64_t fusionBytes, const std::string& order, uint32_t version) {
  group.setPlan(planOf(fusionBytes, order, version));
}

pybind11::dict statsOf(TensorGroup& group) {
  comm::NamedStats stats;
  {
    const pybind11::gil_scoped_release released;
    stats = group.stats();
  }
  pybind11::dict dict;
  dict["fusion_buffers"] = stats.numFusionBuffers;
  dict["fusion_buffer_bytes"] = stats.fusionBufferBytes;
  dict["max_fusion_buffer_bytes"] = stats.maxFusionBufferBytes;
  dict["responses"] = stats.numResponses;
  dict["operations"] = stats.numOperations;
  dict["cached_names"] = stats.numCachedNames;
  dict["plan_version"] = stats.planVersion;
  return dict;
}

std::shared_ptr<TensorGroup> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                    int64_t fusionBytes, const std::string& order, int64_t cacheCapacity,
                                    double stallWarning, double stallShutdown, double timeout) {
  return TensorGroup::create(store, rank, size,
                             {.plan = planOf(fusionBytes, order, 0),
                              .cacheCapacity = static_cast<size_t>(cacheCapacity),
                              .stallWarningSeconds = stallWarning,
                              .stallShutdownSeconds = stallShutdown,
                              .timeoutSeconds = timeout});
}

}  // namespace

void bindHorovod(pybind11::module_& module) {
  namespace py = pybind11;
  py::module_::import("torch.distributed");  // makes stores known
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<Wanted>(module, "NamedRequest")
      .def(py::init<std::string, std::optional<std::string>, int, double, double, int, std::vector<int64_t>>(),
           py::kw_only(), py::arg("kind"), py::arg("name"), py::arg("op") = 1, py::arg("prescale") = 1.0,
           py::arg("postscale") = 1.0, py::arg("root") = 0, py::arg("splits") = std::vector<int64_t>());
  py::class_<TensorGroup, std::shared_ptr<TensorGroup>>(module, "NamedGroup", py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("rank", &TensorGroup::rank)
      .def_property_readonly("size", &TensorGroup::size)
      .def("create_part", &TensorGroup::createPart, py::arg("ranks"), released)
      .def("restart_names", &TensorGroup::restartNames, released)
      .def("set_plan", &setPlan, py::arg("fusion_bytes"), py::arg("order"), py::arg("version"), released)
      .def("stats", &statsOf)
      .def("start_timeline", &TensorGroup::startTimeline, py::arg("path"), py::arg("mark_cycles"), released)
      .def("stop_timeline", &TensorGroup::stopTimeline, released)
      .def("shutdown", &TensorGroup::shutdown, released);
  py::class_<HandleTable>(module, "NamedHandles", py::release_gil_before_calling_cpp_dtor())
      .def(py::init<>())
      .def("start", &start, py::arg("group"), py::arg("request"), py::arg("inputs"), py::arg("outputs"),
           py::arg("is_list"), released)
      .def("reduce", &reduce, py::arg("group"), py::arg("input"), py::arg("output"), py::arg("name"), py::arg("op"),
           py::arg("prescale"), py::arg("postscale"), released)
      .def("poll", &HandleTable::poll, py::arg("handle"), released)
      .def("quick_calls", &quickCalls)
      .def("wait", &wait, py::arg("handle"))
      .def("wait_for_all", &waitForAll, py::arg("handle"));
  py::class_<GradientExchange, std::shared_ptr<GradientExchange>>(module, "GradientExchange",
                                                                  py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&exchange), py::kw_only(), py::arg("group"), py::arg("parameters"), py::arg("members"),
           py::arg("names"), py::arg("op"), py::arg("prescale"), py::arg("postscale"), py::arg("half"),
           py::arg("other"), py::arg("passes"), py::arg("refuse"), py::arg("start"))
      .def("set_passes", &GradientExchange::setPasses, py::arg("passes"), released)
      .def("is_under_way", &GradientExchange::isUnderWay, released)
      .def("start_missing", &GradientExchange::startMissing, released)
      .def("wait", &GradientExchange::wait, released);
  module.def("create_named_group", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::kw_only(),
             py::arg("fusion_bytes"), py::arg("order"), py::arg("cache_capacity"), py::arg("stall_warning"),
             py::arg("stall_shutdown"), py::arg("timeout"), released);
}

}  // namespace agspeed::python
