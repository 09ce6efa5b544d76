// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/format.h"

#include <gtest/gtest.h>

#include "runtime/base/dtype.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace agspeed {
namespace {

TEST(FormatText, TakesNumbersTextsAndWhatHasAToString) {
  const std::string_view view = "view";
  EXPECT_EQ(formatText("{} {} {} {} {}", -1, uint64_t{18446744073709551615u}, true, view, std::string("text")),
            "-1 18446744073709551615 true view text");
  EXPECT_EQ(formatText("{:.2f} s, {:016x}, {:>4}", 1.005f, 255, "a"), "1.00 s, 00000000000000ff,    a");
  EXPECT_EQ(formatText("{}", DType::kF32), "f32");
}

TEST(FormatText, DoubledBracesAreText) { EXPECT_EQ(formatText("{{{}}}", 1), "{1}"); }

TEST(FormatText, AReadyTextIsNoPattern) { EXPECT_EQ(formatText(std::string("{}")), "{}"); }

TEST(FormatText, AFieldThatDoesNotFitItsArgumentGivesThePattern) {
  EXPECT_EQ(formatText("{:d} bytes", "many"), "{:d} bytes");
}

TEST(FormatText, FailuresTakePatterns) {
  EXPECT_EQ(invalidArgument("rank {} of {}", 3, 2).toString(), "invalid argument: rank 3 of 2");
  EXPECT_EQ(unavailable("100 % {of} it").message(), "100 % {of} it");
}

}  // namespace
}  // namespace agspeed
