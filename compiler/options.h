// SPDX-License-Identifier: Apache-2.0
// CompileOptions: how a compilation is asked to go. compile() takes them and hands them down to every stage as they
// are. Plain data. What a stage calls its subject (an entry, a kernel) is no option: it goes beside them, as a file
// stem.
#pragma once

#include <string>
#include <vector>

namespace agspeed::compiler {

struct CompileOptions {
  std::string target = "cpu";               ///< a row of backends/registry.cpp: "cpu", "reference", "null"
  std::string cacheDir;                     ///< object cache folder; empty: no cache
  std::string dumpDir;                      ///< every pass writes its result here, compile() makes it; empty: no dumps
  std::vector<std::string> disabledPasses;  ///< rows of passes/passes.def that are not required
  bool verifyEachPass = true;               ///< run the verifiers between passes
};

}  // namespace agspeed::compiler
