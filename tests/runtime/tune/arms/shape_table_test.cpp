// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arms/shape_table.h"

#include <gtest/gtest.h>

#include <set>

namespace agspeed::runtime::tune {
namespace {

TEST(ShapeTable, NumbersClassesInTheOrderInWhichTheyAppear) {
  ShapeTable table;
  EXPECT_EQ(table.indexOf("8x128"), 0);
  EXPECT_EQ(table.indexOf("4x128"), 1);
  EXPECT_EQ(table.indexOf("8x128"), 0);
  EXPECT_EQ(table.names(), (std::vector<std::string>{"8x128", "4x128"}));
}

TEST(ShapeTable, StepsAreIncomparableAfterManyThatDidNotCount) {
  ShapeTable table;
  for (int i = 0; i < 1023; ++i) table.addStep(false);
  EXPECT_FALSE(table.isIncomparable());
  table.addStep(true);
  for (int i = 0; i < 1024; ++i) table.addStep(false);
  EXPECT_TRUE(table.isIncomparable());
}

TEST(ShapeTable, ARunMeetsUpToSixteenShapesAndWithMoreItsLengthVaries) {
  ShapeTable table;
  for (int i = 0; i < 16; ++i) table.indexOf(std::to_string(i));
  EXPECT_EQ(table.minRunSteps(), 16);
  EXPECT_EQ(table.takeExtraSteps(), 0);
  EXPECT_EQ(table.takeExtraSteps(), 0);
  table.indexOf("one more");
  EXPECT_EQ(table.minRunSteps(), 16);
  std::set<int32_t> lengths;
  for (int i = 0; i < 16; ++i) lengths.insert(table.takeExtraSteps());
  EXPECT_EQ(lengths.size(), 16);
  EXPECT_EQ(*lengths.rbegin(), 15);
}

TEST(ShapeTable, PeaksFromBeforeTheFirstLoadStay) {
  ShapeTable table;
  table.addEagerPeak(0, 100);
  table.addEagerPeak(0, 120);
  table.addEagerPeak(0, 110);
  table.addEagerPeak(2, 0);
  table.armLoaded();
  table.addEagerPeak(0, 500);
  table.addEagerPeak(1, 300);
  table.addEagerPeak(1, 400);
  EXPECT_EQ(table.eagerPeaks(), (std::map<int32_t, int64_t>{{0, 120}, {1, 400}}));
}

}  // namespace
}  // namespace agspeed::runtime::tune
