// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/horovod/gradient_exchange.h"
#include "comm/horovod/handle_table.h"
#include "python/csrc/bindings.h"

namespace agspeed::python {
namespace {

using comm::FusionOrder;
using comm::NamedKind;
using comm::NamedReduction;
using comm::horovod::GradientExchange;
using comm::horovod::HandleTable;
using comm::horovod::TensorGroup;
using Tensors = TensorGroup::Tensors;

/// The arguments of an operation except its tensors.
struct Wanted {
  std::string kind;
  std::optional<std::string> name;
  int op;
  double prescale, postscale;
  int root;
  std::vector<int64_t> splits;
};

NamedKind kindOf(const std::string& name) {
  for (const NamedKind kind : comm::kNamedKinds) {
    if (name == comm::toString(kind)) return kind;
  }
  throw pybind11::value_error("there is no operation '" + name + "'");
}

NamedReduction reductionOf(int op) {
  if (const auto reduction = comm::horovod::reductionOf(op)) return *reduction;
  throw pybind11::value_error("there is no reduction " + std::to_string(op));
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

/// The all-reduce of one tensor. Training scripts call it thousands of times a second.
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

/// The results of an operation: (outputs, rows received from each rank, last rank that joined), or None.
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
                                           bool isHalf, bool isOther, bool isSparseDense, int numPasses,
                                           std::function<void(size_t)> refuse, std::function<void(size_t)> start,
                                           std::function<bool()> isCurrent) {
  return GradientExchange::create(
      std::move(group), std::move(parameters), members, std::move(names),
      {.reduction = reductionOf(op),
       .prescale = prescale,
       .postscale = postscale,
       .isHalf = isHalf,
       .isOther = isOther,
       .isSparseDense = isSparseDense,
       .numPasses = numPasses},
      {.refuse = std::move(refuse), .start = std::move(start), .isCurrent = std::move(isCurrent)});
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
  py::module_::import("torch.distributed");  // registers the type of stores
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
      .def("use", &HandleTable::use, py::arg("group"), released)
      .def("wait", &wait, py::arg("handle"))
      .def("wait_for_all", &waitForAll, py::arg("handle"));
  py::class_<GradientExchange, std::shared_ptr<GradientExchange>>(module, "GradientExchange",
                                                                  py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&exchange), py::kw_only(), py::arg("group"), py::arg("parameters"), py::arg("members"),
           py::arg("names"), py::arg("op"), py::arg("prescale"), py::arg("postscale"), py::arg("half"),
           py::arg("other"), py::arg("sparse_as_dense"), py::arg("passes"), py::arg("refuse"), py::arg("start"),
           py::arg("is_current"))
      .def("set_passes", &GradientExchange::setPasses, py::arg("passes"), released)
      .def("is_under_way", &GradientExchange::isUnderWay, released)
      .def("start_missing", &GradientExchange::startMissing, released)
      .def("wait", &GradientExchange::wait, released);
  module.def("create_named_group", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::kw_only(),
             py::arg("fusion_bytes"), py::arg("order"), py::arg("cache_capacity"), py::arg("stall_warning"),
             py::arg("stall_shutdown"), py::arg("timeout"), released);
}

}  // namespace agspeed::python
