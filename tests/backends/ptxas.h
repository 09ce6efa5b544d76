// SPDX-License-Identifier: Apache-2.0
// Assembles PTX with the `ptxas` of a CUDA toolkit or of Triton's wheel, and parses its output for each kernel.
#pragma once

#include <string>
#include <vector>

#include "backends/nvptx/ptx.h"
#include "runtime/base/status.h"

namespace agspeed::backends::nvptx {

struct AssembledKernel {
  std::string name;
  int registers = 0;
  int stackBytes = 0;
  int spillBytes = 0;  ///< stores and loads
};

/// Returns the path of the assembler; empty if none was found when the tests were built.
std::string ptxasPath();

/// Joins several PTX texts of one capability to one module, so that the assembler starts only once.
std::string joinPtx(const std::vector<std::string>& texts);

/// Errors: kInternal with what the assembler printed.
StatusOr<std::vector<AssembledKernel>> assemble(const std::string& ptx, Capability capability);

}  // namespace agspeed::backends::nvptx
