// SPDX-License-Identifier: Apache-2.0
#include "compiler/driver/compile.h"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>

#include "backends/backend.h"
#include "compiler/import/importer.h"
#include "compiler/program/assemble_program.h"
#include "passes/pass_names.h"
#include "passes/pipeline.h"

namespace agspeed::compiler {
namespace {

// Makes the folder for this user alone: dumps show the user's model.
Status prepareDumpDir(const std::string& dumpDir) {
  if (dumpDir.empty()) return {};
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(dumpDir).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (!error && mkdir(dumpDir.c_str(), 0700) != 0 && errno != EEXIST) error.assign(errno, std::generic_category());
  return error ? unavailable("cannot create dump folder " + dumpDir + ": " + error.message()) : Status();
}

// One entry: GraphSpec -> graph -> plan -> Program.
StatusOr<runtime::Program> compileEntry(const std::string& name, const std::string& json, const CompileOptions& options,
                                        ClusterTable& clusters, runtime::CompileStats& stats) {
  AG_ASSIGN_OR_RETURN(Graph graph, importGraphSpec(json, options.device));
  CompileOptions own = options;
  if (name != "backward") own.gradientStages = {};
  AG_ASSIGN_OR_RETURN(passes::PlannedGraph planned, passes::runPipeline(std::move(graph), own, name + "-"));
  OperatorCounts counts = countOperators(planned.graph);
  stats.numCompiledOperators += counts.numCompiled;
  stats.numExternalOperators += counts.numExternal;
  return assembleProgram(planned, clusters);
}

// The last inputs of a Program become constants of its Executable. Constants are never released.
Status bindConstants(runtime::Program& program, std::vector<std::vector<std::byte>> bytes,
                     std::vector<runtime::ConstantTensor>& constants) {
  if (bytes.size() > program.inputs.size()) {
    return invalidArgument("it gets {} constants, but has only {} inputs", bytes.size(), program.inputs.size());
  }
  const size_t numArguments = program.inputs.size() - bytes.size();
  for (size_t i = 0; i < bytes.size(); ++i) {
    runtime::ValueDecl& value = program.values[program.inputs[numArguments + i]];
    if (value.isScalar) return invalidArgument("constant {} is not a tensor", i);
    value.storage = runtime::Storage::kConstant;
    value.index = static_cast<int32_t>(constants.size());
    constants.push_back({value.type, std::move(bytes[i]), value.isOnHost});
  }
  program.inputs.resize(numArguments);
  std::erase_if(program.instructions, [&](const runtime::Instruction& instruction) {
    const auto* release = std::get_if<runtime::Release>(&instruction.op);
    return release != nullptr && program.values[release->value].storage == runtime::Storage::kConstant;
  });
  return {};
}

}  // namespace

StatusOr<std::unique_ptr<runtime::Executable>> compile(const std::map<std::string, std::string>& graphSpecs,
                                                       const CompileOptions& options, Constants constants) {
  auto begin = std::chrono::steady_clock::now();
  AG_ASSIGN_OR_RETURN(const backends::Backend* backend, backends::findBackend(options.target, options.device));
  AG_RETURN_IF_ERROR(passes::checkDisabledPasses(options));
  AG_RETURN_IF_ERROR(prepareDumpDir(options.dumpDir));
  for (const auto& [name, bytes] : constants) {
    if (!graphSpecs.contains(name)) return invalidArgument("constants for entry \"{}\", which does not exist", name);
  }
  auto executable = std::make_unique<runtime::Executable>();
  ClusterTable clusters;
  for (const auto& [name, json] : graphSpecs) {
    StatusOr<runtime::Program> program = compileEntry(name, json, options, clusters, executable->stats);
    if (!program.hasValue()) return program.status().withContext("entry \"" + name + "\"");
    AG_RETURN_IF_ERROR(bindConstants(*program, std::move(constants[name]), executable->constants)
                           .withContext("entry \"" + name + "\""));
    executable->entries.emplace(name, std::move(*program));
  }
  AG_ASSIGN_OR_RETURN(executable->kernels, backend->build(clusters.clusters(), options, executable->stats));
  for (const Cluster& cluster : clusters.clusters()) {
    executable->kernelTexts.push_back({cluster.name(), cluster.toString()});
  }
  executable->stats.numKernels = static_cast<int32_t>(clusters.clusters().size());
  executable->stats.compileSeconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return executable;
}

Status configure(const SettingValues& values, const std::map<std::string, std::string>& origins) {
  return configureSettings(values, origins);
}

}  // namespace agspeed::compiler
