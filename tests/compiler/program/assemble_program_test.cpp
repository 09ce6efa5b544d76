// SPDX-License-Identifier: Apache-2.0
// Assembles a planned graph into a Program: storage classes, instructions, symbols, operator counts.
#include "compiler/program/assemble_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::compiler {
namespace {

using runtime::Storage;
using ::testing::HasSubstr;

passes::PlannedGraph plan(const std::string& text) {
  StatusOr<Graph> graph = parseGraph(text);
  EXPECT_TRUE(graph.hasValue()) << graph.status().toString();
  StatusOr<passes::PlannedGraph> planned = passes::runPipeline(std::move(*graph), {});
  EXPECT_TRUE(planned.hasValue()) << planned.status().toString();
  return std::move(*planned);
}

constexpr const char* kBlock = R"(graph
  symbols [8]
  %x = input f32[s0,8]
  %w = input f32[8,8]
  %a = exp %x : f32[s0,8] @"exp"
  %m = call "aten.mm.default"(%a, %w, out_dtype=dtype f32) : f32[s0,8] @"mm"
  %b = neg %m : f32[s0,8] @"neg"
  %n = int (s0 * 2)
  return %b, none, %n
)";

ValueId find(const Graph& graph, const std::string& name) {
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].name == name) return static_cast<ValueId>(v);
  }
  return kNoValue;
}

TEST(AssembleProgram, GivesEachValueItsStorage) {
  passes::PlannedGraph planned = plan(kBlock);
  ClusterTable clusters;
  StatusOr<runtime::Program> program = assembleProgram(planned, clusters);
  ASSERT_TRUE(program.hasValue()) << program.status().toString();
  auto storage = [&](const char* name) { return program->values[find(planned.graph, name)].storage; };
  EXPECT_EQ(storage("x"), Storage::kInput);
  EXPECT_EQ(storage("a"), Storage::kArena);
  EXPECT_EQ(storage("m"), Storage::kExternal);
  EXPECT_EQ(storage("b"), Storage::kFresh);
  EXPECT_TRUE(program->values[find(planned.graph, "n")].isScalar);
  EXPECT_EQ(program->outputs[1], runtime::kNoValue);
}

TEST(AssembleProgram, KeepsOrderAndReleasesAfterTheLastUse) {
  passes::PlannedGraph planned = plan(kBlock);
  ClusterTable clusters;
  StatusOr<runtime::Program> program = assembleProgram(planned, clusters);
  ASSERT_TRUE(program.hasValue());
  ASSERT_EQ(program->instructions.size(), 6u);
  auto released = [&](size_t index) { return std::get<runtime::Release>(program->instructions[index].op).value; };
  const auto& kernel = std::get<runtime::KernelCall>(program->instructions[0].op);
  const auto& call = std::get<runtime::ExternalCall>(program->instructions[2].op);
  EXPECT_EQ(kernel.operands, (std::vector<runtime::ValueId>{find(planned.graph, "x"), find(planned.graph, "a")}));
  EXPECT_EQ(call.op, "aten.mm.default");
  ASSERT_EQ(call.args.size(), 3u);
  EXPECT_EQ(call.args[2].name, "out_dtype");
  EXPECT_EQ(released(1), find(planned.graph, "x"));
  EXPECT_EQ(released(3), find(planned.graph, "w"));
  EXPECT_EQ(released(5), find(planned.graph, "m"));
  EXPECT_EQ(program->instructions[0].origin, "exp");
}

TEST(AssembleProgram, ReadsSymbolsFromInputSizes) {
  passes::PlannedGraph planned = plan(kBlock);
  ClusterTable clusters;
  StatusOr<runtime::Program> program = assembleProgram(planned, clusters);
  ASSERT_TRUE(program.hasValue());
  ASSERT_EQ(program->symbols.size(), 1u);
  EXPECT_EQ(program->symbols[0].input, 0);
  EXPECT_EQ(program->symbols[0].dim, 0);
}

TEST(AssembleProgram, RefusesASymbolThatNoInputShows) {
  passes::PlannedGraph planned =
      plan("graph\n  %x = input f32[(2 * s0)]\n  %y = exp %x : f32[(2 * s0)]\n  return %y\n");
  ClusterTable clusters;
  Status status = assembleProgram(planned, clusters).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("symbol s0"));
}

TEST(ClusterTable, SharesEqualClusters) {
  passes::PlannedGraph planned = plan(kBlock);
  ClusterTable clusters;
  ASSERT_TRUE(assembleProgram(planned, clusters).hasValue());
  size_t count = clusters.clusters().size();
  ASSERT_TRUE(assembleProgram(planned, clusters).hasValue());
  EXPECT_EQ(clusters.clusters().size(), count);
}

TEST(CountOperators, CountsFxOperatorsOnceAndNoViews) {
  passes::PlannedGraph planned = plan(R"(graph
  %x = input f32[4,4]
  %a = exp %x : f32[4,4] @"gelu"
  %b = neg %a : f32[4,4] @"gelu"
  %v = call "aten.view.default"(%b, [int 16]) alias : f32[16] @"view"
  %m = call "aten.sort.default"(%v) : f32[16] @"sort"
  return %m
)");
  OperatorCounts counts = countOperators(planned.graph);
  EXPECT_EQ(counts.numCompiled, 1);
  EXPECT_EQ(counts.numExternal, 1);
}

}  // namespace
}  // namespace agspeed::compiler
