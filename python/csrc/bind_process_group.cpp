// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <optional>

#include "comm/c10d/process_group.h"
#include "python/csrc/bindings.h"

namespace agspeed::python {
namespace {

using comm::c10d::ProcessGroup;
using Options = ProcessGroup::Options;
using GroupClass = pybind11::class_<ProcessGroup, ::c10d::Backend, c10::intrusive_ptr<ProcessGroup>>;

void monitoredBarrier(ProcessGroup& group, std::optional<std::chrono::milliseconds> timeout, bool waitAllRanks) {
  ::c10d::BarrierOptions options;
  options.timeout = timeout.value_or(::c10d::kUnsetTimeout);
  group.monitoredBarrier(options, waitAllRanks);
}

std::vector<std::pair<std::string, std::string>> collectiveAlgorithms() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const comm::Algorithm& each : comm::algorithms()) {
    names.emplace_back(std::string(comm::toString(each.collective)), std::string(each.name));
  }
  return names;
}

c10::intrusive_ptr<Options> copyOf(const Options& options) { return c10::make_intrusive<Options>(options); }

/// Methods beyond c10d::Backend that torch expects of backends that support splitting.
void bindSplitting(GroupClass& group) {
  namespace py = pybind11;
  py::class_<Options, ::c10d::Backend::Options, c10::intrusive_ptr<Options>>(group, "Options")
      .def("__copy__", &copyOf)
      .def("__deepcopy__", [](const Options& options, const py::dict& /*memo*/) { return copyOf(options); });
  group
      .def_property_readonly("options", &ProcessGroup::getBackendOptions)
      // Torch calls it at the ranks outside a new group; our groups do not need it.
      .def("perform_nocolor_split", [](const ProcessGroup&, const py::object&) {}, py::arg("device"));
}

}  // namespace

void bindProcessGroup(pybind11::module_& module) {
  namespace py = pybind11;
  // The import registers the base class, unless torch was built without it.
  const py::module_ distributed = py::module_::import("torch.distributed");
  if (!distributed.attr("is_available")().cast<bool>()) return;
  const auto released = py::call_guard<py::gil_scoped_release>();
  // Python may drop the last reference, and the destructor waits for threads that may need the GIL.
  GroupClass group(module, "ProcessGroup", py::release_gil_before_calling_cpp_dtor());
  group.def("counters", &ProcessGroup::countersJson, released)
      .def("flight_record", &ProcessGroup::flightRecordJson, released)
      .def("monitored_barrier", &monitoredBarrier, py::arg("timeout"), py::arg("wait_all_ranks"), released)
      .def("set_algorithm", &ProcessGroup::setAlgorithm, py::arg("collective"), py::arg("algorithm"), released);
  bindSplitting(group);
  module.def("collective_algorithms", &collectiveAlgorithms);
  module.def("create_process_group", &ProcessGroup::create, py::arg("options"), released);
}

}  // namespace agspeed::python
