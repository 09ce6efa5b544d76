// SPDX-License-Identifier: Apache-2.0
// What other bindings need of a Python Executable. GIL required.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "runtime/aten/aten_executable.h"

namespace agspeed::python {

/// Throws TypeError when the object is no Executable.
std::shared_ptr<const runtime::aten::AtenExecutable> atenExecutableOf(PyObject* object);

}  // namespace agspeed::python
