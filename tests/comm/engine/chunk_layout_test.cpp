// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/chunk_layout.h"

#include <gtest/gtest.h>

#include <random>

namespace agspeed::comm::engine {
namespace {

TEST(ChunkLayout, SegmentsAndChunksCoverADivisibleBufferOnceInOrder) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    const auto numChunks = static_cast<uint32_t>(1 + random() % 9);
    const size_t count = random() % 5000, segment = 64 * (1 + random() % 10);
    std::vector<uint32_t> shares;
    for (uint32_t chunk = 0; i % 2 && chunk < numChunks; ++chunk) {
      shares.push_back(static_cast<uint32_t>(random() % 5 + (chunk == 0)));
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", chunks " + std::to_string(numChunks) + ", count " +
                 std::to_string(count) + ", segment " + std::to_string(segment));
    std::vector<float> values(count);
    const auto bytes = std::as_writable_bytes(std::span(values));
    const CollectiveCall call{
        .collective = schedule::Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes}, .output = {bytes}};
    const ChunkLayout layout(call, 0, numChunks, segment, shares);
    const std::byte* next = bytes.data();
    std::vector<Chunk> input(numChunks), output(numChunks);
    for (uint32_t segment = 0; segment < layout.numSegments(); ++segment) {
      layout.locate(segment, input, output);
      for (const Chunk& chunk : input) {
        ASSERT_EQ(chunk.data, next);
        next += chunk.numElements * sizeof(float);
      }
    }
    ASSERT_EQ(next, bytes.data() + bytes.size());
  }
}

TEST(ChunkLayout, ListedChunksAreCutOnTheirOwn) {
  std::byte memory[100];
  const auto bytes = std::span(memory);
  const CollectiveCall call{.collective = schedule::Collective::kAllGather,
                            .input = {bytes.subspan(0, 70)},
                            .output = {bytes.subspan(70, 10), bytes.subspan(0, 70), bytes.subspan(80, 0)}};
  const ChunkLayout layout(call, 1, 3, 32, {});
  ASSERT_EQ(layout.numSegments(), 3u);
  std::vector<Chunk> input(3), output(3);
  layout.locate(2, input, output);
  EXPECT_EQ(input[1].data, memory + 64);
  EXPECT_EQ(input[1].numElements, 6u);
  EXPECT_EQ(input[0].numElements, 0u);
  EXPECT_EQ(output[0].numElements, 0u);
  EXPECT_EQ(output[1].numElements, 6u);
}

TEST(ChunkLayout, AnEmptyBufferHasOneEmptySegment) {
  const CollectiveCall call{.collective = schedule::Collective::kAllReduce, .input = {{}}, .output = {{}}};
  const ChunkLayout layout(call, 0, 4, 64, {});
  EXPECT_EQ(layout.numSegments(), 1u);
  std::vector<Chunk> input(4), output(4);
  layout.locate(0, input, output);
  for (const Chunk& chunk : input) EXPECT_EQ(chunk.numElements, 0u);
}

}  // namespace
}  // namespace agspeed::comm::engine
