// SPDX-License-Identifier: Apache-2.0
// Every algorithm of the catalog is verified for 1 to 17 ranks, and its costs equal the table in comm/README.md.
#include "comm/schedule/catalog.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "comm/schedule/verifier.h"

namespace agspeed::comm::schedule {
namespace {

TEST(Catalog, EveryAlgorithmIsProvedForOneToSeventeenRanksAndEveryRoot) {
  for (const Algorithm& algorithm : algorithms()) {
    for (int numRanks = 1; numRanks <= 17; ++numRanks) {
      for (int root = 0; root < (hasRoot(algorithm.collective) ? numRanks : 1); ++root) {
        const auto counts = verify(algorithm, numRanks, root);
        ASSERT_TRUE(counts.hasValue()) << "root " << root << ": " << counts.status().toString();
      }
    }
  }
}

TEST(Catalog, EveryAlgorithmIsProvedForSeveralRanksPerHost) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const int localGroupSize : {2, 4, 8}) {
      for (int numRanks = localGroupSize; numRanks <= 7 * localGroupSize && numRanks <= 40;
           numRanks += localGroupSize) {
        const auto counts = verify(algorithm, numRanks, numRanks / 2, localGroupSize);
        ASSERT_TRUE(counts.hasValue()) << localGroupSize << " ranks per host: " << counts.status().toString();
      }
    }
  }
}

TEST(Catalog, AlgorithmsHoldForManyRanks) {
  for (const Algorithm& algorithm : algorithms()) {
    const auto counts = verify(algorithm, 33, 5);
    EXPECT_TRUE(counts.hasValue()) << counts.status().toString();
  }
}

TEST(Catalog, NamesAreUniqueWithinACollective) {
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_EQ(findAlgorithm(algorithm.collective, algorithm.name), &algorithm) << algorithm.name;
  }
  EXPECT_EQ(findAlgorithm(Collective::kBarrier, "direct"), nullptr);
}

/// Returns the row of an algorithm for 4, 6 and 16 ranks, two on each host: "| all_reduce | direct | 2 | 6 | 1.50 |
/// 1.50 |".
std::string rowOf(const Algorithm& algorithm) {
  std::string row = "| `" + std::string(toString(algorithm.collective)) + "` | " + std::string(algorithm.name) + " |";
  for (const int numRanks : {4, 6, 16}) {
    const ScheduleCounts counts = verify(algorithm, numRanks, 0, 2).value();
    char cell[64];
    std::snprintf(cell, sizeof cell, " %d / %d / %.2f / %.2f |", counts.numRounds, counts.numMessages, counts.sent,
                  counts.received);
    row += cell;
  }
  return row;
}

TEST(Catalog, TheReadmeStatesTheCountedCosts) {
  std::ifstream file(AG_COMM_README);
  const std::string readme(std::istreambuf_iterator<char>(file), {});
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_NE(readme.find(rowOf(algorithm)), std::string::npos) << "comm/README.md lacks the row\n" << rowOf(algorithm);
  }
}

}  // namespace
}  // namespace agspeed::comm::schedule
