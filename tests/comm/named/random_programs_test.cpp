// SPDX-License-Identifier: Apache-2.0
// Random programs of named operations, in a different order on every rank, against a plain loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/comm/named/requests.h"

namespace agspeed::comm::named {
namespace {

/// One operation as all ranks see it. Values are small whole numbers, so sums of them are exact.
struct Step {
  Request request;                           ///< with rank 0's shapes
  std::vector<std::vector<float>> inputs;    ///< per rank
  std::vector<Dimensions> shapes, splits;    ///< per rank
  std::vector<std::vector<float>> expected;  ///< per rank
};

class Program {
 public:
  Program(unsigned seed, int size) : random_(seed), size_(size) {
    const int count = pick(1, 25);
    for (int i = 0; i < count; ++i) steps.push_back(step("op" + std::to_string(i)));
  }

  std::vector<Step> steps;

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  std::vector<float> values(int64_t count) {
    std::vector<float> made(static_cast<size_t>(count));
    for (float& each : made) each = static_cast<float>(pick(-8, 8));
    return made;
  }

  Step step(const std::string& name) {
    constexpr NamedKind kKinds[] = {NamedKind::kAllReduce,     NamedKind::kAllGather, NamedKind::kBroadcast,
                                    NamedKind::kReduceScatter, NamedKind::kAllToAll,  NamedKind::kBarrier};
    Step step;
    const int64_t columns = pick(1, 3), rows = pick(0, pick(0, 9) == 0 ? 9000 : 40);
    step.request = requestFor(name, {rows, columns}, kKinds[pick(0, 5)]);
    if (step.request.kind == NamedKind::kBroadcast) step.request.root = pick(0, size_ - 1);
    if (step.request.kind == NamedKind::kBarrier) step.request.shapes.clear();
    constexpr NamedReduction kReductions[] = {NamedReduction::kSum, NamedReduction::kMax, NamedReduction::kMin};
    if (step.request.kind == NamedKind::kAllReduce) step.request.reduction = kReductions[pick(0, 2)];
    for (int rank = 0; rank < size_; ++rank) {
      Dimensions shape = {rows, columns}, splits;
      if (step.request.kind == NamedKind::kAllGather) shape[0] = pick(0, 20);
      if (step.request.kind == NamedKind::kAllToAll) {
        for (int other = 0; other < size_; ++other) splits.push_back(pick(0, 5));
        shape[0] = std::accumulate(splits.begin(), splits.end(), int64_t{0});
      }
      step.inputs.push_back(values(shape[0] * shape[1]));
      step.shapes.push_back(shape);
      step.splits.push_back(splits);
    }
    for (int rank = 0; rank < size_; ++rank) step.expected.push_back(expect(step, rank));
    return step;
  }

  static float merge(NamedReduction reduction, float left, float right) {
    if (reduction == NamedReduction::kMax) return std::max(left, right);
    return reduction == NamedReduction::kMin ? std::min(left, right) : left + right;
  }

  std::vector<float> reduced(const Step& step) const {
    std::vector<float> result = step.inputs[0];
    for (size_t rank = 1; rank < step.inputs.size(); ++rank) {
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = merge(step.request.reduction, result[i], step.inputs[rank][i]);
      }
    }
    return result;
  }

  std::vector<float> expect(const Step& step, int rank) const {
    const auto own = static_cast<size_t>(rank);
    const auto columns = step.shapes[0][1];
    std::vector<float> result;
    const auto append = [&](const std::vector<float>& from, int64_t row, int64_t count) {
      result.insert(result.end(), from.begin() + row * columns, from.begin() + (row + count) * columns);
    };
    switch (step.request.kind) {
      case NamedKind::kAllReduce: return reduced(step);
      case NamedKind::kBroadcast: return step.inputs[static_cast<size_t>(step.request.root)];
      case NamedKind::kAllGather:
        for (size_t other = 0; other < step.inputs.size(); ++other)
          append(step.inputs[other], 0, step.shapes[other][0]);
        return result;
      case NamedKind::kReduceScatter: {
        const Dimensions shares = scatteredRows(step.shapes[0][0], size_);
        append(reduced(step), std::accumulate(shares.begin(), shares.begin() + rank, int64_t{0}), shares[own]);
        return result;
      }
      case NamedKind::kAllToAll:
        for (size_t other = 0; other < step.inputs.size(); ++other) {
          const Dimensions& splits = step.splits[other];
          append(step.inputs[other], std::accumulate(splits.begin(), splits.begin() + rank, int64_t{0}), splits[own]);
        }
        return result;
      default: return {};
    }
  }

  std::mt19937 random_;
  const int size_;
};

void runProgram(NamedGroup& group, int rank, const Program& program, unsigned seed) {
  std::vector<size_t> order(program.steps.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed * 131 + static_cast<unsigned>(rank)));
  std::vector<std::unique_ptr<Started>> started(order.size());
  const auto own = static_cast<size_t>(rank);
  for (const size_t at : order) {
    const Step& step = program.steps[at];
    Request request = step.request;
    const bool hasTensor = request.kind != NamedKind::kBarrier;
    if (hasTensor) request.shapes = {step.shapes[own]};
    request.splits = step.splits[own];
    std::vector<std::vector<float>> inputs;
    if (hasTensor) inputs.push_back(step.inputs[own]);
    started[at] = start(group, request, std::move(inputs));
  }
  for (size_t at = 0; at < started.size(); ++at) {
    const Status status = started[at]->wait();
    const std::string where = formatText("seed {}, {} ranks, rank {}, {} '{}'", seed, group.size(), rank,
                                         toString(program.steps[at].request.kind), program.steps[at].request.name);
    ASSERT_TRUE(status.isOk()) << where << ": " << status.message();
    if (program.steps[at].request.kind != NamedKind::kBarrier) {
      EXPECT_EQ(started[at]->outputs[0], program.steps[at].expected[own]) << where;
    }
  }
}

TEST(NamedGroup, RandomProgramsEqualAPlainLoop) {
  unsigned seed = 1;
  for (const int size : {1, 2, 4, 7}) {
    NamedOptions options;
    options.plan.fusionBytes = size == 4 ? 0 : 4096;
    options.cacheCapacity = 16;  // so small that some names have no id
    NamedRanks ranks(size, options);
    for (int round = 0; round < 50; ++round, ++seed) {
      const Program program(seed, size);
      ranks.run([&](int rank, NamedGroup& group) { runProgram(group, rank, program, seed); });
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  }
}

}  // namespace
}  // namespace agspeed::comm::named
