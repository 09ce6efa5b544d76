// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/waiting_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace agspeed::comm::coordinator {
namespace {

using ::testing::ElementsAre;

EntryHandle entryOf(uint64_t order, uint32_t id = 0) {
  auto entry = std::make_unique<Entry>();
  entry->order = order;
  entry->id = id;
  return entry;
}

TEST(WaitingTable, EntriesAreKeptByIdOrByName) {
  WaitingTable table;
  Entry& numbered = table.add(3, "a", entryOf(1, 3));
  Entry& named = table.add(0, "b", entryOf(2));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.find(3, ""), &numbered);
  EXPECT_EQ(table.find(0, "a"), nullptr);
  EXPECT_EQ(table.find(0, "b"), &named);
  EXPECT_TRUE(table.contains(3));
  EXPECT_FALSE(table.contains(1));
  EXPECT_EQ(table.take(3, "a").get(), &numbered);
  EXPECT_EQ(table.take(0, "b").get(), &named);
  EXPECT_EQ(table.size(), 0u);
}

TEST(WaitingTable, AnEntryOutlivesItsId) {
  WaitingTable table;
  Entry& entry = table.add(2, "a", entryOf(1, 2));
  table.forgetId(2, "a");
  table.forgetId(1, "none");
  EXPECT_EQ(entry.id, 0u);
  EXPECT_EQ(table.find(0, "a"), &entry);
  EXPECT_FALSE(table.contains(2));
  EXPECT_EQ(table.size(), 1u);
}

TEST(WaitingTable, EntriesLeaveInTheOrderInWhichTheyWereMade) {
  WaitingTable table;
  table.add(1, "d", entryOf(4, 1));
  table.add(0, "a", entryOf(1));
  table.add(2, "b", entryOf(2, 2));
  table.add(0, "c", entryOf(3));
  std::vector<uint64_t> orders;
  for (const EntryHandle& each : table.takeIf([](const Entry& entry) { return entry.order != 2; })) {
    orders.push_back(each->order);
  }
  EXPECT_THAT(orders, ElementsAre(1u, 3u, 4u));
  std::vector<uint64_t> left;
  table.forEach([&](const Entry& entry) { left.push_back(entry.order); });
  EXPECT_THAT(left, ElementsAre(2u));
  EXPECT_EQ(table.size(), 1u);
}

}  // namespace
}  // namespace agspeed::comm::coordinator
