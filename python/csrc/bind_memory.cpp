// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "python/csrc/bindings.h"
#include "runtime/aten/cpu_allocator.h"
#include "runtime/aten/memory_meter.h"

namespace agspeed::python {
namespace {

namespace aten = runtime::aten;
namespace py = pybind11;

std::string retainMemory(size_t idleBytes, size_t slackBytes) {
  return aten::startRetaining({.idleBytes = idleBytes, .slackBytes = slackBytes}).message();
}

py::dict retainedMemory() {
  const aten::RetainedMemory memory = aten::retainedMemory();
  py::dict described;
  described["is_on"] = memory.isOn;
  described["is_replaced"] = memory.isReplaced;
  described["used_bytes"] = memory.counts.usedBytes;
  described["idle_bytes"] = memory.counts.idleBytes;
  described["peak_used_bytes"] = memory.counts.peakUsedBytes;
  described["num_reused"] = memory.counts.numReused;
  described["num_new"] = memory.counts.numNew;
  return described;
}

}  // namespace

void bindMemory(py::module_& module) {
  using aten::MemoryMeter;
  const auto start = [](MemoryMeter& meter) {
    if (Status status = meter.start(); !status.isOk()) throw std::runtime_error(status.message());
  };
  py::class_<MemoryMeter>(module, "MemoryMeter")
      .def(py::init<>())
      .def("start", start)
      .def("stop", &MemoryMeter::stop)
      .def("reset_peak", &MemoryMeter::resetPeak)
      .def("live_bytes", &MemoryMeter::liveBytes)
      .def("peak_bytes", &MemoryMeter::peakBytes)
      .def_property_readonly("is_running", &MemoryMeter::isRunning);
  module.def("why_memory_is_not_retained", &aten::whyNotRetained);
  module.def("retain_memory", &retainMemory, py::arg("idle_bytes"), py::arg("slack_bytes"));
  module.def("release_memory", &aten::stopRetaining, py::call_guard<py::gil_scoped_release>());
  module.def("retained_memory", &retainedMemory);
}

}  // namespace agspeed::python
