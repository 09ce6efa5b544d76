// SPDX-License-Identifier: Apache-2.0
// Random operations, the inputs of their ranks, and what a plain loop computes from them.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "comm/reduce/reduce.h"
#include "tests/comm/collective/ranks.h"

namespace agspeed::comm::collective {

/// One random operation, the same on all ranks.
struct Case {
  const schedule::Algorithm* algorithm;
  int numRanks;
  int root;
  DType dtype;
  reduce::ReduceOp op;
  std::vector<size_t> counts;  ///< elements per rank; a divisible buffer uses [0] only
  size_t segmentBytes;
  bool isInPlace;
  messaging::LoopbackOptions loopback;
  engine::WireCoding coding = engine::WireCoding::kOff;

  std::string text() const {
    std::string text = std::string(toString(algorithm->collective)) + "/" + std::string(algorithm->name) + ", ranks " +
                       std::to_string(numRanks) + ", root " + std::to_string(root) + ", " +
                       std::string(agspeed::toString(dtype)) + " " + std::string(toString(op)) + ", segments " +
                       std::to_string(segmentBytes) + (isInPlace ? ", in place" : "") + ", counts";
    for (const size_t count : counts) text += " " + std::to_string(count);
    text += ", hosts";
    for (const uint32_t host : loopback.hosts) text += " " + std::to_string(host);
    return text;
  }
};

using Bytes = std::vector<std::byte>;

/// The contribution of `rank` to chunk `chunk`: small integers or random floats that differ everywhere.
inline Bytes contribution(const Case& test, int rank, int chunk, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank * 1009 + chunk * 31 + 7));
  Bytes bytes(count * sizeInBytes(test.dtype));
  for (size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * sizeInBytes(test.dtype);
    const float value = std::uniform_real_distribution<float>(-4, 4)(random);
    const auto bits = static_cast<uint64_t>(random());
    switch (test.dtype) {
      case DType::kF32: std::memcpy(at, &value, 4); break;
      case DType::kF64: {
        const double wide = value / 3.0;
        std::memcpy(at, &wide, 8);
        break;
      }
      case DType::kBF16: {
        const auto narrow = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
        std::memcpy(at, &narrow, 2);
        break;
      }
      case DType::kF16: {
        const auto narrow = static_cast<_Float16>(value);
        std::memcpy(at, &narrow, 2);
        break;
      }
      default: std::memcpy(at, &bits, sizeInBytes(test.dtype));
    }
  }
  return bytes;
}

inline Bytes reduced(const Case& test, int chunk, size_t count) {
  std::vector<Bytes> inputs;
  std::vector<reduce::Operand> operands;
  for (int rank = 0; rank < test.numRanks; ++rank) inputs.push_back(contribution(test, rank, chunk, count));
  for (const Bytes& input : inputs) operands.push_back({input.data(), false});
  Bytes result(count * sizeInBytes(test.dtype));
  const int divisor = test.op == reduce::ReduceOp::kAverage ? test.numRanks : 1;
  reduce::reduce(result.data(), false, operands, count, {test.dtype, test.op, divisor});
  return result;
}

/// The input and the expected output of one rank, chunk by chunk.
struct Expectation {
  std::vector<Bytes> input, output;
};

inline Expectation expectationOf(const Case& test, int rank) {
  Expectation result;
  const auto own = static_cast<size_t>(rank);
  const auto add = [&](std::vector<Bytes>& list, int from, int chunk, size_t count) {
    list.push_back(contribution(test, from, chunk, count));
  };
  const bool isRoot = rank == test.root;
  switch (test.algorithm->collective) {
    case schedule::Collective::kAllReduce:
    case schedule::Collective::kReduce:
      add(result.input, rank, 0, test.counts[0]);
      if (isRoot || test.algorithm->collective == schedule::Collective::kAllReduce) {
        result.output.push_back(reduced(test, 0, test.counts[0]));
      }
      break;
    case schedule::Collective::kBroadcast:
      if (isRoot) add(result.input, test.root, 0, test.counts[0]);
      add(result.output, test.root, 0, test.counts[0]);
      break;
    case schedule::Collective::kAllGather:
    case schedule::Collective::kGather:
      add(result.input, rank, 0, test.counts[own]);
      for (int i = 0; i < test.numRanks; ++i) {
        if (isRoot || test.algorithm->collective == schedule::Collective::kAllGather) {
          add(result.output, i, 0, test.counts[static_cast<size_t>(i)]);
        }
      }
      break;
    case schedule::Collective::kReduceScatter:
      for (int i = 0; i < test.numRanks; ++i) add(result.input, rank, i, test.counts[static_cast<size_t>(i)]);
      result.output.push_back(reduced(test, rank, test.counts[own]));
      break;
    case schedule::Collective::kScatter:
      for (int i = 0; isRoot && i < test.numRanks; ++i) add(result.input, rank, i, test.counts[static_cast<size_t>(i)]);
      add(result.output, test.root, rank, test.counts[own]);
      break;
    case schedule::Collective::kAllToAll: {
      const auto countOf = [&](int from, int to) {
        return test.counts[static_cast<size_t>((from * 3 + to) % test.numRanks)];
      };
      for (int i = 0; i < test.numRanks; ++i) add(result.input, rank, i, countOf(rank, i));
      for (int i = 0; i < test.numRanks; ++i) add(result.output, i, rank, countOf(i, rank));
      break;
    }
    case schedule::Collective::kBarrier: break;
  }
  return result;
}

/// Stores chunks one after another.
struct Buffer {
  Bytes bytes;
  engine::BufferList chunks;
  explicit Buffer(const std::vector<Bytes>& parts) {
    for (const Bytes& part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
    size_t at = 0;
    for (const Bytes& part : parts) {
      chunks.push_back(std::span(bytes).subspan(at, part.size()));
      at += part.size();
    }
  }
};

/// Makes ranks exchange host statistics before the first large collective.
inline void applyHostStats(Communicator& group) {
  const auto size = static_cast<size_t>(group.size());
  Bytes own(((size_t{4} << 20) + size) / size), all(own.size() * size);
  const Status status = group
                            .start({.collective = schedule::Collective::kAllGather,
                                    .input = {own},
                                    .output = engine::splitEvenly(all, group.size())})
                            ->wait();
  ASSERT_TRUE(status.isOk()) << status.toString();
}

}  // namespace agspeed::comm::collective
