// SPDX-License-Identifier: Apache-2.0
// agspeed._native: the list of its parts.
#include "python/csrc/bindings.h"
#include "python/csrc/status_to_python.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native half of agspeed. Typed stubs and documentation: agspeed/_native.pyi.";
  agspeed::python::registerInternalError();
  agspeed::python::bindBuildInfo(module);
  agspeed::python::bindCodecs(module);
  agspeed::python::bindDispatcher(module);
  agspeed::python::bindExecutable(module);
  agspeed::python::bindHorovod(module);
  agspeed::python::bindQuickCalls(module);
  agspeed::python::bindRegion(module);
  agspeed::python::bindMemory(module);
  agspeed::python::bindNetwork(module);
  agspeed::python::bindOptimizer(module);
  agspeed::python::bindProcessGroup(module);
  agspeed::python::bindSettings(module);
  agspeed::python::bindTuner(module);
}
