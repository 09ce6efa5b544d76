// SPDX-License-Identifier: Apache-2.0
// Access to a Python Executable for other bindings. GIL required.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "runtime/aten/aten_executable.h"

namespace agspeed::python {

/// Throws TypeError if the object is not an Executable.
std::shared_ptr<const runtime::aten::AtenExecutable> atenExecutableOf(PyObject* object);

}  // namespace agspeed::python
