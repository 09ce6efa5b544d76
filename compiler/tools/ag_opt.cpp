// SPDX-License-Identifier: Apache-2.0
// ag-opt: runs named passes over a graph and prints the result. A tool for tests and for inspecting one stage.
//
//   ag-opt [--pass=NAME]... [--pipeline] [--plan] [--stage-bytes=N] [--disable=NAME]... FILE|-
//
// FILE is graph text ("graph ...") or GraphSpec JSON ("{ ..."). Passes run in the given order; --pipeline runs all of
// them. --plan also prints the memory and release plans; with --stage-bytes it prints after which nodes gradients are
// handed over. --kernel selects the kernel compiler: see kernel_tool.h.
// Errors are printed to stderr as one sentence, with exit code 1.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "compiler/import/importer.h"
#include "compiler/tools/kernel_tool.h"
#include "passes/pass_names.h"
#include "passes/pipeline.h"

namespace agspeed::compiler {
namespace {

struct ToolOptions {
  std::vector<std::string> passes;
  CompileOptions compile;
  bool runsPipeline = false;
  bool printsPlan = false;
  bool isKernel = false;  ///< FILE is a cluster or an MLIR module
  bool lowersKernel = false;
  std::string file;
};

StatusOr<ToolOptions> parseArguments(int argc, char** argv) {
  ToolOptions options;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument.starts_with("--pass=")) {
      options.passes.push_back(argument.substr(7));
    } else if (argument.starts_with("--disable=")) {
      options.compile.disabledPasses.push_back(argument.substr(10));
    } else if (argument.starts_with("--stage-bytes=")) {
      options.compile.gradientStages.bytes = std::atoll(argument.c_str() + 14);
    } else if (argument == "--kernel") {
      options.isKernel = true;
    } else if (argument == "--lower") {
      options.lowersKernel = true;
    } else if (argument == "--pipeline") {
      options.runsPipeline = true;
    } else if (argument == "--plan") {
      options.runsPipeline = options.printsPlan = true;
    } else if (argument.starts_with("--")) {
      return invalidArgument("unknown option " + argument);
    } else {
      options.file = argument;
    }
  }
  if (options.file.empty()) return invalidArgument("name a file, or - for standard input");
  AG_RETURN_IF_ERROR(passes::checkDisabledPasses(options.compile));
  return options;
}

StatusOr<std::string> readFile(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream file(path);
  if (!file) return invalidArgument("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// JSON files of tests may begin with // comment lines that hold the checks.
std::string withoutCommentLines(const std::string& text) {
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (!line.starts_with("//")) result += line + "\n";
    begin = end + 1;
  }
  return result;
}

StatusOr<Graph> readGraph(const std::string& text) {
  std::string body = withoutCommentLines(text);
  size_t start = body.find_first_not_of(" \n\t");
  bool isJson = start != std::string::npos && body[start] == '{';
  return isJson ? importGraphSpec(body) : parseGraph(body);
}

StatusOr<Graph> runPass(const std::string& name, Graph graph) {
  for (const passes::GraphPass& pass : passes::graphPasses()) {
    if (pass.name != name) continue;
    AG_ASSIGN_OR_RETURN(Graph result, pass.run(graph));
    AG_RETURN_IF_ERROR(verify(result));
    return result;
  }
  return invalidArgument("there is no pass named \"" + name + "\"");
}

StatusOr<std::string> runTool(int argc, char** argv) {
  AG_ASSIGN_OR_RETURN(ToolOptions options, parseArguments(argc, argv));
  AG_ASSIGN_OR_RETURN(std::string text, readFile(options.file));
  if (options.isKernel) {
    return runKernelTool(withoutCommentLines(text), {options.passes, options.lowersKernel, options.compile});
  }
  AG_ASSIGN_OR_RETURN(Graph graph, readGraph(text));
  for (const std::string& pass : options.passes) {
    AG_ASSIGN_OR_RETURN(graph, runPass(pass, std::move(graph)));
  }
  if (!options.runsPipeline) return toString(graph);
  AG_ASSIGN_OR_RETURN(passes::PlannedGraph planned, passes::runPipeline(std::move(graph), options.compile));
  std::string result = toString(planned.graph);
  if (!options.printsPlan) return result;
  result += toString(planned.memory, planned.graph) + toString(planned.releases, planned.graph);
  if (options.compile.gradientStages.bytes > 0) result += toString(planned.stages, planned.graph);
  return result;
}

}  // namespace
}  // namespace agspeed::compiler

int main(int argc, char** argv) {
  agspeed::StatusOr<std::string> result = agspeed::compiler::runTool(argc, argv);
  if (!result.hasValue()) {
    std::fprintf(stderr, "ag-opt: %s\n", result.status().toString().c_str());
    return 1;
  }
  std::fputs(result->c_str(), stdout);
  return 0;
}
