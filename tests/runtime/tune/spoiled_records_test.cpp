// SPDX-License-Identifier: Apache-2.0
// Records of earlier processes and of other ranks, damaged at random. Each is refused or read, without other effects.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "runtime/base/format.h"
#include "runtime/tune/arms/findings.h"
#include "runtime/tune/rank_record.h"
#include "tests/fuzz/random_bytes.h"

namespace agspeed::runtime::tune {
namespace {

const int kRounds = fuzzCount(20000);

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

/// Returns `text` with some bytes changed, lost, repeated or nested.
std::string spoiled(std::string text, std::mt19937_64& random) {
  for (size_t numChanges = random() % 4 + 1; numChanges > 0 && !text.empty(); --numChanges) {
    const size_t at = random() % text.size();
    switch (random() % 4) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, random() % 20); break;
      case 2: text.insert(at, nested(random() % 200)); break;
      default: text.insert(at, text.substr(random() % text.size(), random() % 40));
    }
  }
  return text;
}

TEST(SpoiledRecords, FindingsAreRefusedOrRead) {
  ArmFindings findings{
      "native", true, "too slow", "aot", {{0.002, 0.001, 0.002, 0.001}}, "aot", {{0.2, 0.1, 0.2, 0.1}}};
  const std::string text = toText({findings, {"aot", false, "", "", {}, "", {}}});
  ASSERT_TRUE(parseFindings(text).hasValue());
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(formatText("seed {}, round {}", seed, round));
    const StatusOr<std::vector<ArmFindings>> found = parseFindings(spoiled(text, random));
    if (!found.hasValue()) continue;
    for (const ArmFindings& arm : *found) {
      EXPECT_FALSE(arm.name.empty());
      for (const RunPair& pair : arm.pairs) EXPECT_TRUE(pair.reference > 0 && pair.arm > 0);
    }
  }
}

TEST(SpoiledRecords, FindingsNestedDeepAreRefused) {
  EXPECT_FALSE(parseFindings(nested(200'000)).hasValue());
  EXPECT_FALSE(
      parseFindings(R"({"version":1,"arms":[{"name":"native","reason":)" + nested(200'000) + "}]}").hasValue());
}

TEST(SpoiledRecords, RecordsOfRanksAreRefusedOrRead) {
  RankRecord record;
  record.step = StepFinished{"native", 0.01, "4x8", 1 << 20, false};
  record.newArms.push_back({.name = "native"});
  record.arms.emplace("native", ArmChanged{"native", ArmState::kReady, "", 1.0, 0.5});
  const std::string text = record.toText();
  ASSERT_TRUE(RankRecord::parse(text).hasValue());
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(formatText("seed {}, round {}", seed, round));
    const StatusOr<RankRecord> found = RankRecord::parse(spoiled(text, random));
    EXPECT_TRUE(!found.hasValue() || !found->toText().empty());
  }
}

TEST(SpoiledRecords, AFractionIsNoWholeNumber) {
  RankRecord record;
  record.step = StepFinished{"native", 0.01, "4x8", 12345, false};
  const std::string text = record.toText();
  for (const std::string whole : {"\"peak\":12345", "\"searches\":1", "\"skipped\":0"}) {
    std::string changed = text;
    const size_t at = changed.find(whole);
    ASSERT_NE(at, std::string::npos) << whole;
    changed.replace(at, whole.size(), whole.substr(0, whole.find(':')) + ":1e300");
    EXPECT_FALSE(RankRecord::parse(changed).hasValue()) << changed;
  }
}

TEST(SpoiledRecords, RecordsOfRanksNestedDeepAreRefused) {
  EXPECT_FALSE(RankRecord::parse(nested(200'000)).hasValue());
}

}  // namespace
}  // namespace agspeed::runtime::tune
