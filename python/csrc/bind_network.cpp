// SPDX-License-Identifier: Apache-2.0
#include "comm/api.h"
#include "python/csrc/bindings.h"
#include "python/csrc/status_to_python.h"

namespace agspeed::python {
namespace {

pybind11::dict explainInterfaces() {
  const auto [variable, text] = comm::interfaceSelection();
  const comm::InterfaceSelector selector = unwrap(comm::InterfaceSelector::parse(text));
  pybind11::list interfaces;
  for (const comm::InterfaceChoice& choice : selector.explain(unwrap(comm::listInterfaces()))) {
    pybind11::dict found;
    found["name"] = choice.interface.name;
    found["address"] = comm::toString(choice.interface.address);
    found["prefix_bits"] = choice.interface.prefixBits;
    found["is_up"] = choice.interface.isUp;
    found["is_selected"] = choice.isSelected;
    found["reason"] = choice.reason;
    interfaces.append(found);
  }
  pybind11::dict result;
  result["variable"] = variable;
  result["selector"] = text;
  result["interfaces"] = interfaces;
  return result;
}

}  // namespace

void bindNetwork(pybind11::module_& module) {
  module.def("describe_transport", [] { return unwrap(comm::World::describeAlone()); });
  module.def("explain_interfaces", &explainInterfaces);
}

}  // namespace agspeed::python
