// SPDX-License-Identifier: Apache-2.0
// Assembles PTX with the `ptxas` of a CUDA toolkit or of Triton's wheel, and reads what it says of each kernel.
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

/// Path of the assembler; empty where none was found when the tests were built.
std::string ptxasPath();

/// Several PTX texts of one capability as one module, so that the assembler starts once.
std::string joinPtx(const std::vector<std::string>& texts);

/// Errors: kInternal with what the assembler printed.
StatusOr<std::vector<AssembledKernel>> assemble(const std::string& ptx, Capability capability);

}  // namespace agspeed::backends::nvptx
