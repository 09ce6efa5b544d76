// SPDX-License-Identifier: Apache-2.0
// linkKernels(): object files -> callable code in this process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/executable.h"

namespace agspeed::compiler {

struct KernelObject {
  std::string symbol;  ///< of the kernel function; unique for each distinct object
  std::string bytes;
};

/// One kernel per entry of `symbols`, in order; each must be the symbol of one of `objects`. The code may call only the
/// mathematical and memory functions listed in object_linker.cpp; any other is an unresolved symbol. The code lives as
/// long as the library. Errors: kDataLoss for a malformed object or an unresolved symbol.
StatusOr<std::shared_ptr<const runtime::KernelLibrary>> linkKernels(const std::vector<KernelObject>& objects,
                                                                    const std::vector<std::string>& symbols);

}  // namespace agspeed::compiler
