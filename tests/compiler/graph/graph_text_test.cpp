// SPDX-License-Identifier: Apache-2.0
// The text form of graphs and clusters, and what the verifiers reject.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/graph/graph.h"

namespace agspeed::compiler {
namespace {

using ::testing::HasSubstr;

std::string roundTrip(const std::string& text) {
  StatusOr<Graph> graph = parseGraph(text);
  return graph.hasValue() ? toString(*graph) : graph.status().toString();
}

TEST(GraphText, PrintsWhatItParsed) {
  const std::string text = R"(graph
  symbols [8, 64]
  %n = input int s1
  %x = input f32[s0,64]
  %b = input bf16[64,s0]{1,64}
  %k = int (2 * s1)
  %c = constant 0.5 : f32[]
  %y = add %x, %c : f32[s0,64] @"add_1,add_2"
  %r = reduce_sum %y dims 1 : f32[s0,1]
  %v = call "aten.t.default"(%b) view [1, 0] alias : bf16[s0,64]
  %l, none = call "aten.topk.default"(%y, int 3, [int 1, int (s0 + 1)], none, true, float -inf, "x\"y", out=dtype i64, like=%r) random : f32[s0,3], none
  call "aten.copy_.default"(%x, %y) alias mutates [0]
  %m = call "aten.mm.default"(%b, %x) : bf16[64,64] @"mm" because "it has no \"native\" form"
  return %l, none, %k, %m
)";
  EXPECT_EQ(roundTrip(text), text);
}

TEST(GraphText, PrintsKernelsWithTheirClusters) {
  const std::string text = R"(graph
  %x = input f32[4,8]
  %y = kernel 0(%x) integers [32, 1, 1] extent [32] grain [1024] : f32[4,8] @"exp"
  return %y
cluster rank 0
  operand 0 f32 in contiguous
  operand 1 f32 out contiguous
  n0 = load 0 : f32
  n1 = exp n0 : f32
  store n1 -> 1
end
)";
  EXPECT_EQ(roundTrip(text), text);
}

TEST(GraphText, NamesLineAndColumnOfAnError) {
  EXPECT_EQ(parseGraph("graph\n  %y = exp %x : f32[4]\n  return %y\n").status().message(),
            "line 2, column 14: %x is not defined above");
  EXPECT_THAT(parseGraph("graph\n  %y = frob %x\n").status().message(), HasSubstr("frob"));
}

struct Broken {
  const char* name;
  const char* body;
  const char* message;
};

class GraphVerifier : public ::testing::TestWithParam<Broken> {};

TEST_P(GraphVerifier, RejectsABrokenRule) {
  Status status = parseGraph(std::string("graph\n  %x = input f32[4,8]\n  %h = input bf16[4,8]\n") + GetParam().body +
                             "\n  return %x\n")
                      .status();
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, GraphVerifier,
    ::testing::Values(
        Broken{"dtypes", "%y = add %x, %h : f32[4,8]", "inputs of its result's dtype"},
        Broken{"half", "%y = add %h, %h : bf16[4,8]", "does not compute in bf16"},
        Broken{"comparison", "%y = lt %x, %x : f32[4,8]", "gives bool"},
        Broken{"broadcast", "%y = exp %x : f32[8,8]", "does not broadcast"},
        Broken{"reduction", "%y = reduce_sum %x dims 1 : f32[8]", "another size in dimension 0"},
        Broken{"rank", "%y = reduce_sum %x dims 3 : f32[4]", "impossible number of dims"},
        Broken{"mutation", "%y = call \"a.b\"(%x) mutates [1] : f32[4,8]", "mutates an input that does not exist"},
        Broken{"view", "%y = call \"a.b\"(%x) view [0] alias : f32[4,8]", "wrong view map"},
        Broken{"twice", "%x = exp %x : f32[4,8]", "two values are named %x"},
        Broken{"cluster", "%y = kernel 0(%x) integers [] extent [1] grain [1] : f32[4,8]", "does not exist"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Graph, AliasClassesFollowViewsOnly) {
  StatusOr<Graph> graph = parseGraph(R"(graph
  %x = input f32[4,8]
  %v = call "aten.t.default"(%x) view [1, 0] alias : f32[8,4]{1,8}
  %y = call "aten.relu.default"(%v) : f32[8,4]
  return %y
)");
  ASSERT_TRUE(graph.hasValue()) << graph.status().toString();
  std::vector<int32_t> classes = aliasClassesOf(*graph);
  EXPECT_EQ(classes[0], classes[1]);
  EXPECT_NE(classes[1], classes[2]);
}

TEST(Graph, JoinedOriginsNameEachNodeOnce) {
  EXPECT_EQ(joinOrigins("add,mul", "mul,mul_1"), "add,mul,mul_1");
  EXPECT_EQ(joinOrigins("", "add"), "add");
}

}  // namespace
}  // namespace agspeed::compiler
