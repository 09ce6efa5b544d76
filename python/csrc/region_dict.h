// SPDX-License-Identifier: Apache-2.0
// The dict that describes a Region in Python: a RegionSignature and three callables.
//
// Keys; all are required unless a default is given. runtime/autograd/region_signature.h describes them under the same
// names.
//   name                  str
//   requires_grad         list[bool]
//   num_outputs           int
//   mutated_inputs        list[int]; [] by default
//   mutated_by_code       list[int]; [] by default
//   outputs_as_inputs     dict[int, int], user output -> input; {} by default
//   output_views          dict[int, int], user output -> input; {} by default
//   tangents              list[int]; [] by default
//   tangent_layouts       list[list[int]]; read by PythonCode; [] by default
//   gradient_sources      list[list[int]]; [] by default
//   num_saved_tensors     int; 0 by default
//   num_saved_symints     int; 0 by default
//   overwritten_saved     list[int]; [] by default
//   gradient_stages       list[int]; [] by default
//   saved_stages          list[int]; [] by default
//   draws_random_numbers  bool; False by default
//   fallback              callable    (*inputs) -> sequence of user outputs, computed eagerly, mutations included; or
//                                     None
//   replay                callable    (*inputs) -> sequence of user outputs, differentiable, WITHOUT mutations; or
//                                     None. Used for create_graph=True and for batched or subclass tangents.
//   on_failure            callable    (reason: str), called at each failure of an Executable: for a failed forward
//   after
//                                     the fallback has computed it, and for a failed backward. Its exceptions pass.
//                                     None by default
// GIL required.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/autograd/region_signature.h"

namespace agspeed::python {

/// Throws UserError for a missing key or a value of the wrong type. The signature is not verified.
runtime::autograd::RegionSignature parseSignature(const pybind11::dict& dict);

/// The callable of this key; a null object for None. Throws UserError if it is missing or cannot be called.
pybind11::object parseCallable(const pybind11::dict& dict, const char* key);

}  // namespace agspeed::python
