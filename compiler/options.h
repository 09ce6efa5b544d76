// SPDX-License-Identifier: Apache-2.0
// CompileOptions: how a compilation is asked to go. compile() takes them and hands them down to every stage as they
// are. Plain data. What a stage calls its subject (an entry, a kernel) is no option: it goes beside them, as a file
// stem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/device.h"

namespace agspeed::compiler {

/// How the entry "backward" is cut into stages, after each of which gradients leave (passes/graph/gradient_stages.cpp).
struct GradientStageOptions {
  int64_t bytes = 0;  ///< what each stage but the last hands over at least; 0: there is one stage
  /// By output: entry inputs that may share memory with what it is the gradient of. Empty: none do.
  std::vector<std::vector<int32_t>> inputsInMemoryOf;
};

struct CompileOptions {
  Device device;                            ///< where the graphs' tensors are and kernels run
  std::string target;                       ///< a row of backends/registry.cpp; empty: the one for use on `device`
  std::string cacheDir;                     ///< object cache folder; empty: no cache
  std::string dumpDir;                      ///< every pass writes its result here, compile() makes it; empty: no dumps
  std::vector<std::string> disabledPasses;  ///< rows of passes/passes.def that are not required
  bool verifyEachPass = true;               ///< run the verifiers between passes
  GradientStageOptions gradientStages;
};

}  // namespace agspeed::compiler
