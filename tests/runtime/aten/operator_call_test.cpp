// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/operator_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/program_builder.h"

namespace agspeed::runtime::aten {
namespace {

using ::testing::HasSubstr;

TEST(OperatorCall, PositionalAndKeywordArgumentsMeetTheSchema) {
  auto call =
      OperatorCall::bind({"aten.add.Tensor", {tensorArg(0), tensorArg(1), scalarArg(SymExpr(3), "alpha")}, {2}});
  ASSERT_TRUE(call.hasValue()) << call.status().message();
  auto arguments = call->resolveArguments({});
  ASSERT_TRUE(arguments.hasValue());
  EXPECT_TRUE((*arguments)[0].isNone() && (*arguments)[1].isNone());
  EXPECT_EQ((*arguments)[2].toScalar().toLong(), 3);
}

TEST(OperatorCall, MissingArgumentsTakeDefaultsOrAreNamed) {
  auto call = OperatorCall::bind({"aten.softmax.int", {tensorArg(0)}, {1}});
  ASSERT_TRUE(call.hasValue());
  EXPECT_THAT(call->resolveArguments({}).status().message(), HasSubstr("\"dim\" is missing"));
}

TEST(OperatorCall, BadCallsAreNamed) {
  EXPECT_EQ(OperatorCall::bind({"aten.no_such_operator.default", {}, {}}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(OperatorCall::bind({"nonsense", {}, {}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(OperatorCall::bind({"aten.relu.default", {tensorArg(0), tensorArg(1)}, {2}}).status().message(),
              HasSubstr("takes 1 arguments"));
  EXPECT_THAT(OperatorCall::bind({"aten.relu.default", {listArg({0})}, {2}}).status().message(), HasSubstr("\"self\""));
  ExternalArg twice = tensorArg(0);
  twice.name = "self";
  EXPECT_THAT(OperatorCall::bind({"aten.relu.default", {tensorArg(0), twice}, {2}}).status().message(),
              HasSubstr("\"self\" twice"));
}

TEST(OperatorCall, KnowsWhichResultsAreViews) {
  const auto alias = [](const std::string& op, std::vector<ExternalArg> args) {
    return OperatorCall::bind({op, std::move(args), {7}})->aliasOfResult(0);
  };
  EXPECT_EQ(alias("aten.view.default", {tensorArg(4), scalarListArg({SymExpr(2)})}), 4);
  EXPECT_EQ(alias("aten._unsafe_view.default", {tensorArg(4), scalarListArg({SymExpr(2)})}), 4);
  EXPECT_EQ(alias("aten.split.Tensor", {tensorArg(4), scalarArg(SymExpr(2))}), 4);
  EXPECT_EQ(alias("aten.relu.default", {tensorArg(4)}), kNoValue);
}

}  // namespace
}  // namespace agspeed::runtime::aten
