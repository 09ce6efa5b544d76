// SPDX-License-Identifier: Apache-2.0
#include "compiler/kernel/kernel_library.h"

#include <map>

#include "compiler/kernel/kernel_compiler.h"
#include "compiler/kernel/object/host_target.h"
#include "compiler/kernel/object/object_linker.h"
#include "llvm/Config/llvm-config.h"
#include "runtime/kernel_cache.h"

namespace agspeed::compiler {
namespace {

/// Raise this if the code generated for some cluster changes, so that objects of other versions are not found in the
/// cache.
constexpr const char* kGeneratorVersion = "3";

std::string cacheKey(const std::string& clusterText, const CompileOptions& options) {
  std::string key = "generator " + std::string(kGeneratorVersion) + "\nllvm " LLVM_VERSION_STRING "\nhost " +
                    hostTargetKey() + "\ndisabled";
  for (const std::string& pass : options.disabledPasses) key += " " + pass;
  return key + "\n" + clusterText;
}

StatusOr<KernelObject> loadOrCompile(const Cluster& cluster, const CompileOptions& options,
                                     runtime::CompileStats& stats) {
  std::string text = cluster.toString();
  std::string key = cacheKey(text, options);
  std::string symbol = "ag_kernel_" + runtime::contentHash(text);
  runtime::KernelCache cache(options.cacheDir);
  if (std::optional<std::string> bytes = cache.load(key)) {
    ++stats.numKernelCacheHits;
    return KernelObject{symbol, *std::move(bytes)};
  }
  AG_ASSIGN_OR_RETURN(std::string bytes, compileKernel(cluster, symbol, options));
  cache.store(key, bytes);
  return KernelObject{symbol, std::move(bytes)};
}

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
      AG_ASSIGN_OR_RETURN(KernelObject object, loadOrCompile(cluster, options, stats));
      entry->second = object.symbol;
      objects.push_back(std::move(object));
    }
    symbols.push_back(entry->second);
  }
  return linkKernels(objects, symbols);
}

}  // namespace agspeed::compiler
