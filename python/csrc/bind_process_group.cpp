// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/process_group.h"
#include "python/csrc/bindings.h"

namespace agspeed::python {

void bindProcessGroup(pybind11::module_& module) {
  namespace py = pybind11;
  using comm::ProcessGroup;
  // The last reference may be Python's, and the destructor waits for threads that may want Python's lock.
  py::class_<ProcessGroup, ::c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(
      module, "ProcessGroup", py::release_gil_before_calling_cpp_dtor());
  module.def("create_process_group", &ProcessGroup::create, py::arg("options"),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace agspeed::python
