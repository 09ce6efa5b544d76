// SPDX-License-Identifier: Apache-2.0
// Names that are valid in the list of disabled passes.
#include "passes/pass_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::passes {
namespace {

using ::testing::HasSubstr;

compiler::CompileOptions without(std::vector<std::string> passes) {
  compiler::CompileOptions options;
  options.disabledPasses = std::move(passes);
  return options;
}

Status check(const std::string& name) { return checkDisabledPasses(without({"dce", name})); }

TEST(PassNames, OptionalPassesOfBothStagesMayBeDisabled) {
  for (const char* name : {"dce", "cse", "gradient-stages", "expand-math"})
    EXPECT_TRUE(check(name).isOk()) << check(name).toString();
}

TEST(PassNames, UnknownOnesAreRefusedWithTheKnownOnes) {
  for (const char* name : {"", "ag-", "ag-expand-math", "ag-frobnicate", "expand_math", "frobnicate", "memory"}) {
    Status status = check(name);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), HasSubstr("no pass named \"" + std::string(name) + "\"")) << name;
    EXPECT_THAT(status.message(),
                HasSubstr("dce, cse, join-slices, reorder-joins, turn-images, gradient-stages, expand-math"))
        << name;
  }
}

TEST(PassNames, RequiredOnesAreRefusedWithThoseThatMay) {
  for (const char* name : {"fuse-pointwise", "plan-memory", "plan-releases", "math-to-libm", "lower-to-llvm"}) {
    Status status = check(name);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), HasSubstr("\"" + std::string(name) + "\" cannot be disabled")) << name;
    EXPECT_THAT(status.message(),
                HasSubstr("dce, cse, join-slices, reorder-joins, turn-images, gradient-stages, expand-math"))
        << name;
  }
}

TEST(PassNames, DisabledIsWhatTheOptionsName) {
  EXPECT_TRUE(isDisabled(without({"cse"}), "cse"));
  EXPECT_FALSE(isDisabled(without({"cse"}), "dce"));
}

}  // namespace
}  // namespace agspeed::passes
