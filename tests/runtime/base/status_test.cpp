// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "runtime/base/status.h"

namespace agspeed {
namespace {

StatusOr<int> half(int value) {
  if (value % 2 != 0) return invalidArgument(std::to_string(value) + " is odd");
  return value / 2;
}

StatusOr<int> quarter(int value) {
  AG_ASSIGN_OR_RETURN(int once, half(value));
  AG_ASSIGN_OR_RETURN(int twice, half(once));
  return twice;
}

Status checkQuarter(int value) {
  AG_RETURN_IF_ERROR(quarter(value).status());
  return {};
}

TEST(Status, SuccessHasNoMessage) {
  Status ok;
  EXPECT_TRUE(ok.isOk());
  EXPECT_EQ(ok.code(), StatusCode::kOk);
  EXPECT_EQ(ok.message(), "");
  EXPECT_EQ(ok.toString(), "ok");
}

TEST(Status, AFailureSaysItsCodeAndMessage) {
  Status failure = unavailable("the cache is locked");
  EXPECT_FALSE(failure.isOk());
  EXPECT_EQ(failure.toString(), "unavailable: the cache is locked");
  EXPECT_EQ(Status(failure).message(), failure.message());
}

TEST(Status, EveryFactoryHasItsOwnCode) {
  EXPECT_EQ(invalidArgument("").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unsupported("").code(), StatusCode::kUnsupported);
  EXPECT_EQ(unavailable("").code(), StatusCode::kUnavailable);
  EXPECT_EQ(resourceExhausted("").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(dataLoss("").code(), StatusCode::kDataLoss);
  EXPECT_EQ(internalError("").code(), StatusCode::kInternal);
}

TEST(Status, ContextGoesInFrontAndKeepsTheCode) {
  Status failure = dataLoss("checksum differs").withContext("object 12ab").withContext("kernel cache");
  EXPECT_EQ(failure.toString(), "data loss: kernel cache: object 12ab: checksum differs");
  EXPECT_TRUE(Status().withContext("anything").isOk());
}

TEST(StatusOr, MacrosPassValuesAndFailuresOn) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
  EXPECT_TRUE(checkQuarter(4).isOk());
  EXPECT_EQ(checkQuarter(5).code(), StatusCode::kInvalidArgument);
}

TEST(StatusOr, CarriesValuesThatOnlyMove) {
  StatusOr<std::unique_ptr<int>> holder(std::make_unique<int>(5));
  std::unique_ptr<int> taken = std::move(holder).value();
  EXPECT_EQ(*taken, 5);
}

TEST(StatusOr, AskingAFailureForItsValueIsOurBug) {
  StatusOr<int> failure = half(3);
  EXPECT_THROW(failure.value(), InternalError);
  EXPECT_THROW(StatusOr<int>{Status{}}, InternalError);
}

TEST(Check, AFailureNamesConditionPlaceAndMessage) {
  try {
    AG_CHECK(1 + 1 == 3, "arithmetic broke");
    FAIL() << "AG_CHECK did not throw";
  } catch (const InternalError& error) {
    std::string text = error.what();
    EXPECT_NE(text.find("status_test.cpp:"), std::string::npos) << text;
    EXPECT_NE(text.find("1 + 1 == 3: arithmetic broke"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace agspeed
