// SPDX-License-Identifier: Apache-2.0
// Every row of the import table turns a typical call into native nodes. Python tests compare values with ATen's.
#include "compiler/import/op_table.h"

#include <gtest/gtest.h>

#include <set>

#include "compiler/import/importer.h"
#include "tests/compiler/import/typical_call.h"

namespace agspeed::compiler {
namespace {

using testing::Json;
using testing::TypicalCall;

class OpTable : public ::testing::TestWithParam<OpRow> {};

TEST_P(OpTable, TypicalCallBecomesNativeNodes) {
  Json spec = TypicalCall(GetParam()).spec();
  StatusOr<Graph> graph = importGraphSpec(spec.dump());
  ASSERT_TRUE(graph.hasValue()) << graph.status().toString() << "\n" << spec.dump();
  ASSERT_FALSE(graph->nodes.empty());
  for (const Node& node : graph->nodes) {
    EXPECT_FALSE(node.kind == NodeKind::kCall && node.target == GetParam().target)
        << "imported as a call: " << spec.dump() << "\n"
        << toString(*graph);
    EXPECT_EQ(node.origin, "y");
  }
}

std::string testName(const ::testing::TestParamInfo<OpRow>& info) {
  std::string name(info.param.target);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, OpTable, ::testing::ValuesIn(opTable().begin(), opTable().end()), testName);

TEST(OpTableFile, NamesEachOperatorOnce) {
  std::set<std::string_view> names;
  for (const OpRow& row : opTable()) EXPECT_TRUE(names.insert(row.target).second) << row.target;
}

}  // namespace
}  // namespace agspeed::compiler
