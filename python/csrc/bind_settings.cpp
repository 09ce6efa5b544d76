// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "compiler/driver/compile.h"
#include "python/csrc/bindings.h"
#include "python/csrc/status_to_python.h"
#include "runtime/base/settings.h"

namespace agspeed::python {
namespace {

void configure(const SettingValues& values, const std::map<std::string, std::string>& origins) {
  for (const auto configureOne : {&configureSettings, &compiler::configure}) {
    if (const Status status = configureOne(values, origins); !status.isOk()) raise(status);
  }
}

}  // namespace

void bindSettings(pybind11::module_& module) {
  module.def("configure", &configure, pybind11::arg("values"), pybind11::arg("origins") = pybind11::dict());
}

}  // namespace agspeed::python
