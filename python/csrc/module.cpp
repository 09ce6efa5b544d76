// SPDX-License-Identifier: Apache-2.0
// agspeed._native: the list of its parts.
#include "python/csrc/bindings.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native half of agspeed. Typed stubs and documentation: agspeed/_native.pyi.";
  agspeed::python::bindBuildInfo(module);
  agspeed::python::bindDispatcher(module);
  agspeed::python::bindMemoryMeter(module);
  agspeed::python::bindTuner(module);
}
