// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/kernel_library.h"

#include <map>

#include "compiler/kernel/kernel_code.h"
#include "compiler/kernel/kernel_compiler.h"
#include "compiler/kernel/object/host_target.h"
#include "compiler/kernel/object/object_linker.h"

namespace agspeed::compiler {
namespace {

/// See loadOrCompile().
constexpr int kGeneratorVersion = 7;

}  // namespace

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> buildKernels(const std::vector<Cluster>& clusters,
                                                                     const CompileOptions& options,
                                                                     runtime::CompileStats& stats) {
  std::vector<KernelObject> objects;
  std::vector<std::string> symbols;
  std::map<std::string, std::string> symbolOfText;
  for (const Cluster& cluster : clusters) {
    AG_RETURN_IF_ERROR(cluster.verify());
    auto [entry, isNew] = symbolOfText.try_emplace(cluster.toString());
    if (isNew) {
      const auto compile = [&](const std::string& symbol) { return compileKernel(cluster, symbol, options); };
      AG_ASSIGN_OR_RETURN(std::string bytes, loadOrCompile(cluster, "host " + hostTargetKey(), kGeneratorVersion,
                                                           options, stats, compile));
      entry->second = cluster.name();
      objects.push_back({entry->second, std::move(bytes)});
    }
    symbols.push_back(entry->second);
  }
  return linkKernels(objects, symbols);
}

}  // namespace agspeed::compiler
