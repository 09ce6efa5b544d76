// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/bindings.h"
#include "runtime/aten/memory_meter.h"

namespace agspeed::python {

void bindMemoryMeter(pybind11::module_& module) {
  namespace py = pybind11;
  using runtime::aten::MemoryMeter;
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
}

}  // namespace agspeed::python
