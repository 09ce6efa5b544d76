// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/bindings.h"

namespace agspeed::python {
namespace {

pybind11::dict buildInfo() {
  pybind11::dict info;
  info["version"] = AG_VERSION;
  info["torch"] = AG_TORCH_VERSION;
  info["llvm"] = AG_LLVM_VERSION;
  info["python"] = PY_VERSION;
  info["compiler"] = "GNU-compatible " __VERSION__;
  return info;
}

}  // namespace

void bindBuildInfo(pybind11::module_& module) { module.def("build_info", &buildInfo); }

}  // namespace agspeed::python
