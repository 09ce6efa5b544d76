// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/horovod/tensor_group.h"
#include "python/csrc/bindings.h"

namespace agspeed::python {
namespace {

using comm::NamedKind;
using comm::NamedReduction;
using comm::TensorGroup;
using comm::TensorWork;
using Tensors = TensorGroup::Tensors;

/// What Python says of an operation beside its tensors.
struct Wanted {
  std::string kind, name, reduction;
  bool isCacheable;
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

NamedReduction reductionOf(const std::string& name) {
  for (const NamedReduction reduction : {NamedReduction::kAverage, NamedReduction::kSum, NamedReduction::kMin,
                                         NamedReduction::kMax, NamedReduction::kProduct}) {
    if (name == comm::toString(reduction)) return reduction;
  }
  throw pybind11::value_error("there is no reduction '" + name + "'");
}

std::unique_ptr<TensorWork> start(TensorGroup& group, const Wanted& wanted, Tensors inputs, Tensors outputs) {
  comm::Request request;
  request.kind = kindOf(wanted.kind);
  request.name = wanted.name;
  request.isCacheable = wanted.isCacheable;
  request.reduction = reductionOf(wanted.reduction);
  request.prescale = wanted.prescale;
  request.postscale = wanted.postscale;
  request.root = wanted.root;
  request.splits = wanted.splits;
  return group.start(std::move(request), std::move(inputs), std::move(outputs));
}

std::shared_ptr<TensorGroup> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                    int64_t fusionBytes, int64_t cacheCapacity, double stallWarning,
                                    double stallShutdown, double timeout) {
  return TensorGroup::create(store, rank, size,
                             {.fusionBytes = static_cast<size_t>(fusionBytes),
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
      .def(py::init<std::string, std::string, std::string, bool, double, double, int, std::vector<int64_t>>(),
           py::kw_only(), py::arg("kind"), py::arg("name"), py::arg("reduction") = "Sum", py::arg("cacheable") = false,
           py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("root") = 0,
           py::arg("splits") = std::vector<int64_t>());
  py::class_<TensorWork>(module, "NamedWork", py::release_gil_before_calling_cpp_dtor())
      .def("poll", &TensorWork::poll, released)
      .def("wait", &TensorWork::wait, released)
      .def("received_rows", &TensorWork::receivedRows)
      .def("last_joined", &TensorWork::lastJoined);
  py::class_<TensorGroup, std::shared_ptr<TensorGroup>>(module, "NamedGroup", py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("rank", &TensorGroup::rank)
      .def_property_readonly("size", &TensorGroup::size)
      .def("start", &start, py::arg("request"), py::arg("inputs"), py::arg("outputs"), released)
      .def("create_part", &TensorGroup::createPart, py::arg("ranks"), released)
      .def("shutdown", &TensorGroup::shutdown, released);
  module.def("create_named_group", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::kw_only(),
             py::arg("fusion_bytes"), py::arg("cache_capacity"), py::arg("stall_warning"), py::arg("stall_shutdown"),
             py::arg("timeout"), released);
}

}  // namespace agspeed::python
