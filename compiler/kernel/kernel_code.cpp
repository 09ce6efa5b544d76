// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/kernel_code.h"

#include <optional>
#include <utility>

#include "llvm/Config/llvm-config.h"
#include "runtime/base/format.h"
#include "runtime/kernel_cache.h"

namespace agspeed::compiler {

StatusOr<std::string> loadOrCompile(const Cluster& cluster, const std::string& target, int generatorVersion,
                                    const CompileOptions& options, runtime::CompileStats& stats,
                                    const KernelCompiler& compile) {
  const std::string text = cluster.toString();
  std::string key = formatText("generator {}\nllvm " LLVM_VERSION_STRING "\n{}\ndisabled", generatorVersion, target);
  for (const std::string& pass : options.disabledPasses) key += " " + pass;
  key += "\n" + text;
  runtime::KernelCache cache(options.cacheDir);
  // A dump shows all stages of a kernel, so a kernel is compiled again for it.
  if (options.dumpDir.empty()) {
    if (std::optional<std::string> code = cache.load(key)) {
      ++stats.numKernelCacheHits;
      return *std::move(code);
    }
  }
  AG_ASSIGN_OR_RETURN(std::string code, compile(cluster.name()));
  cache.store(key, code);
  return code;
}

}  // namespace agspeed::compiler
