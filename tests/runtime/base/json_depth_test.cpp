// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace agspeed {
namespace {

std::string nested(int depth, char open, char close) {
  return std::string(static_cast<size_t>(depth), open) + std::string(static_cast<size_t>(depth), close);
}

TEST(JsonDepth, CountsOpenBracketsAlone) {
  EXPECT_FALSE(isNestedTooDeep(nested(kMaxJsonDepth, '[', ']')));
  EXPECT_TRUE(isNestedTooDeep(nested(kMaxJsonDepth + 1, '[', ']')));
  EXPECT_TRUE(isNestedTooDeep(nested(kMaxJsonDepth + 1, '{', '}')));
  std::string siblings;
  for (int i = 0; i < 1000; ++i) siblings += "[{}],";
  EXPECT_FALSE(isNestedTooDeep(siblings));
}

TEST(JsonDepth, BracketsInTextsAreText) {
  const std::string many(1000, '[');
  EXPECT_FALSE(isNestedTooDeep("\"" + many + "\""));
  EXPECT_FALSE(isNestedTooDeep(R"("a \" )" + many + "\""));
  EXPECT_TRUE(isNestedTooDeep(R"("a \\" )" + many)) << "the quote behind two backslashes ends the text";
}

}  // namespace
}  // namespace agspeed
