// SPDX-License-Identifier: Apache-2.0
// CompileOptions: the options of a compilation. compile() passes them unchanged to every stage. Plain data. The name
// that a stage gives its subject (an entry, a kernel) is not an option; it is passed separately, as a file stem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/device.h"

namespace agspeed::compiler {

/// How the entry "backward" is cut into stages, after each of which gradients are handed over
/// (passes/graph/gradient_stages.cpp).
struct GradientStageOptions {
  int64_t bytes = 0;  ///< least bytes of gradients of each stage but the last; 0: there is one stage
  /// By output: entry inputs that may share memory with the tensor whose gradient it is. Empty: there are none.
  std::vector<std::vector<int32_t>> inputsInMemoryOf;
};

struct CompileOptions {
  Device device;                            ///< where the graphs' tensors are and where kernels run
  std::string target;                       ///< a row of backends/registry.cpp; empty: the default one for `device`
  std::string cacheDir;                     ///< object cache folder; empty: no cache
  std::string dumpDir;                      ///< folder for the results of all stages; compile() makes it; empty: none
  std::vector<std::string> disabledPasses;  ///< rows of passes/passes.def that are not required
  bool verifyEachPass = true;               ///< run the verifiers between passes
  GradientStageOptions gradientStages;
};

}  // namespace agspeed::compiler
