// SPDX-License-Identifier: Apache-2.0
// The target for which kernels are compiled: this machine. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/status.h"

namespace llvm {
class TargetMachine;
}

namespace agspeed::compiler {

/// "x86_64;znver4;+avx512f,..." for this machine: part of every cache key.
std::string hostTargetKey();

/// A new code generator for this CPU with all its features. Errors: kUnsupported if LLVM lacks the host's target.
StatusOr<std::unique_ptr<llvm::TargetMachine>> createHostTargetMachine();

}  // namespace agspeed::compiler
