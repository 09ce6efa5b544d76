// SPDX-License-Identifier: Apache-2.0
// Every algorithm of the catalog is verified for 1 to 17 ranks, and its costs equal the table in comm/README.md.
#include "comm/schedule/catalog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

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

/// Returns the first ranks of local groups of `size` ranks each.
std::vector<int> equalGroups(int numRanks, int size) {
  std::vector<int> firstRanks;
  for (int rank = 0; rank < numRanks; rank += size) firstRanks.push_back(rank);
  return firstRanks;
}

TEST(Catalog, EveryAlgorithmIsProvedForSeveralRanksPerHost) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const int size : {2, 3, 4, 8}) {
      for (int numRanks = size; numRanks <= 7 * size && numRanks <= 40; numRanks += size) {
        const auto counts = verify(algorithm, numRanks, numRanks / 2, equalGroups(numRanks, size));
        ASSERT_TRUE(counts.hasValue()) << size << " ranks per host: " << counts.status().toString();
      }
    }
  }
}

/// Calls f(firstRanks) for every split of the ranks into local groups.
template <typename F>
void forEachSplit(int numRanks, F f) {
  for (uint32_t borders = 0; borders < uint32_t{1} << (numRanks - 1); ++borders) {
    std::vector<int> firstRanks = {0};
    for (int rank = 1; rank < numRanks; ++rank) {
      if ((borders >> (rank - 1) & 1) != 0) firstRanks.push_back(rank);
    }
    f(firstRanks);
  }
}

TEST(Catalog, HierarchicalAlgorithmsAreProvedForEverySplitOfRanksIntoHosts) {
  // All splits of up to 8 ranks, and every 499th of up to 17. AG_TEST_THOROUGH=1 tries all.
  const bool isThorough = std::getenv("AG_TEST_THOROUGH") != nullptr;
  for (const Algorithm& algorithm : algorithms()) {
    if (!usesLocalGroups(algorithm)) continue;
    for (int numRanks = 1; numRanks <= 17; ++numRanks) {
      int split = 0;
      forEachSplit(numRanks, [&](const std::vector<int>& firstRanks) {
        if (!isThorough && numRanks > 8 && split++ % 499 != 0) return;
        const auto counts = verify(algorithm, numRanks, 0, firstRanks);
        ASSERT_TRUE(counts.hasValue()) << testing::PrintToString(firstRanks) << ": " << counts.status().toString();
      });
    }
  }
}

/// Returns the bytes that leave the host with most such bytes in an all-reduce, as a share of the buffer. Wide values
/// count `wideBytes` times.
double mostLeaving(const std::vector<int>& sizes, const char* algorithm = "hierarchical", double wideBytes = 1) {
  std::vector<int> firstRanks, hostOf;
  for (size_t host = 0; host < sizes.size(); ++host) {
    firstRanks.push_back(static_cast<int>(hostOf.size()));
    hostOf.insert(hostOf.end(), static_cast<size_t>(sizes[host]), static_cast<int>(host));
  }
  const int numRanks = static_cast<int>(hostOf.size());
  std::vector<double> leaving(sizes.size());
  for (int rank = 0; rank < numRanks; ++rank) {
    const size_t host = static_cast<size_t>(hostOf[static_cast<size_t>(rank)]);
    const Schedule schedule =
        findAlgorithm(Collective::kAllReduce, algorithm)->make({Collective::kAllReduce, rank, numRanks, 0, firstRanks});
    for (const Step& step : schedule.steps) {
      if (step.kind != StepKind::kSend || hostOf[static_cast<size_t>(step.peer)] == static_cast<int>(host)) continue;
      leaving[host] += (schedule.isWide(step.range) ? wideBytes : 1) * step.range.count / schedule.numChunks;
    }
  }
  return *std::max_element(leaving.begin(), leaving.end());
}

TEST(Catalog, AHostSendsAnAllReduceOncePerSubtreeOfItsRanks) {
  EXPECT_DOUBLE_EQ(mostLeaving({8, 8}), 1.0);
  EXPECT_DOUBLE_EQ(mostLeaving({8, 8, 8, 8}), 1.5);
  EXPECT_DOUBLE_EQ(mostLeaving({8, 7}), 1.0);
  EXPECT_DOUBLE_EQ(mostLeaving({4, 3}), 1.0);
  EXPECT_DOUBLE_EQ(mostLeaving({6, 6}), 1.5) << "two subtrees on each host";
}

TEST(Catalog, RoundedPartialResultsOfSixteenBitsLeaveAHostAtTheirOwnSize) {
  EXPECT_DOUBLE_EQ(mostLeaving({8, 8}, "hierarchical", 2), 1.5);
  EXPECT_DOUBLE_EQ(mostLeaving({8, 8}, "hierarchical-rounded", 2), 1.0);
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
    const ScheduleCounts counts = verify(algorithm, numRanks, 0, equalGroups(numRanks, 2)).value();
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
