// SPDX-License-Identifier: Apache-2.0
// Random clusters against the interpreter. Data are small integers on which the operations are exact, so results must
// be bit-equal. AG_FUZZ_SEED reruns one seed, AG_FUZZ_COUNT sets the number of clusters.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernel_test_support.h"

namespace agspeed::compiler::testing {
namespace {

using Op = PointwiseOp;

int64_t fromEnvironment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : fallback;
}

class RandomCluster {
 public:
  explicit RandomCluster(uint64_t seed) : random_(seed), rank_(pick(3)), builder_(rank_) {}

  Cluster make() {
    int numLoads = 1 + pick(3);
    for (int i = 0; i < numLoads; ++i) numbers_.push_back(addLoad());
    int numNodes = 2 + pick(10);
    for (int i = 0; i < numNodes; ++i) addNode();
    int numStores = 1 + pick(2);
    for (int i = 0; i < numStores; ++i) addStore();
    return builder_.cluster();
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % count); }
  int anyNumber() { return numbers_[pick(static_cast<int>(numbers_.size()))]; }

  int addLoad() {
    const DType dtypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kI32, DType::kI8, DType::kBool};
    int node = builder_.load(dtypes[pick(6)], static_cast<Columns>(pick(rank_ > 0 ? 4 : 3)));
    return builder_.cast(node, DType::kF32);
  }

  // Maps every product and every reduction back into a small range of integers, so that sums stay small.
  int bounded(int node) {
    int limit = builder_.constant(DType::kF32, 7);
    return builder_.node(Op::kRemainder, DType::kF32, {node, limit});
  }

  void addNode() {
    const Op binary[] = {Op::kAdd, Op::kSub, Op::kMul, Op::kMaximum, Op::kMinimum};
    const Op unary[] = {Op::kAbs, Op::kNeg, Op::kRelu, Op::kFloor, Op::kSign};
    const Op reductions[] = {Op::kReduceSum, Op::kReduceMax, Op::kReduceMin};
    switch (pick(rank_ > 0 ? 5 : 4)) {
      case 0: return numbers_.push_back(builder_.node(unary[pick(5)], DType::kF32, {anyNumber()}));
      case 1: {
        int condition = builder_.node(Op::kLt, DType::kBool, {anyNumber(), anyNumber()});
        return numbers_.push_back(builder_.node(Op::kWhere, DType::kF32, {condition, anyNumber(), anyNumber()}));
      }
      case 4: return numbers_.push_back(bounded(builder_.node(reductions[pick(3)], DType::kF32, {anyNumber()})));
      default: numbers_.push_back(bounded(builder_.node(binary[pick(5)], DType::kF32, {anyNumber(), anyNumber()})));
    }
  }

  void addStore() {
    const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kI64, DType::kF16};
    int node = anyNumber();
    bool isRow = builder_.cluster().nodes[node].isPerRow && rank_ > 0 && pick(2);
    DType dtype = dtypes[pick(4)];
    if (isRow) return builder_.store(builder_.cast(node, dtype), Columns::kBroadcast);
    Columns columns = pick(3) ? Columns::kContiguous : rank_ > 0 && pick(2) ? Columns::kTransposed : Columns::kStrided;
    builder_.store(builder_.castToElement(node, dtype), columns);
  }

  std::mt19937_64 random_;
  int rank_;
  ClusterBuilder builder_;
  std::vector<int> numbers_;  ///< nodes of dtype f32
};

void fill(Problem& problem, std::mt19937_64& random) {
  for (size_t operand = 0; operand < problem.cluster().operands.size(); ++operand) {
    const ClusterOperand& info = problem.cluster().operands[operand];
    if (info.isOutput) continue;
    for (int64_t row = 0; row < problem.numRows(); ++row) {
      for (int64_t column = 0; column < problem.columns(); ++column) {
        int64_t value = static_cast<int64_t>(random() % 9) - 4;
        problem.set(operand, row, column, castScalar({0, value}, DType::kI64, info.dtype));
      }
    }
  }
}

std::string runSeed(uint64_t seed) {
  Cluster cluster = RandomCluster(seed).make();
  if (Status status = cluster.verify(); !status.isOk()) return status.toString() + "\n" + cluster.toString();
  auto library = build({cluster});
  if (!library) return "build failed\n" + cluster.toString();
  std::mt19937_64 random(seed);
  std::vector<int64_t> outer;
  for (int d = 0; d < cluster.outerRank; ++d) outer.push_back(1 + random() % 5);
  if (!outer.empty() && random() % 2) outer.back() = 1 + random() % 50;
  Problem actual(cluster, outer, random() % 50, seed);
  fill(actual, random);
  Problem expected = actual;
  int64_t cut = actual.extent() ? static_cast<int64_t>(random() % actual.extent()) : 0;
  actual.run(library->kernel(0), {{cut, actual.extent()}, {0, cut}});
  expected.interpret();
  return compare(actual, expected, {0, 0, 0, true});
}

TEST(RandomClusters, AgreeWithTheInterpreter) {
  int64_t first = fromEnvironment("AG_FUZZ_SEED", 1);
  int64_t count = fromEnvironment("AG_FUZZ_COUNT", std::getenv("AG_FUZZ_SEED") ? 1 : 60);
  for (int64_t seed = first; seed < first + count; ++seed) {
    ASSERT_EQ(runSeed(seed), "") << "AG_FUZZ_SEED=" << seed;
  }
}

}  // namespace
}  // namespace agspeed::compiler::testing
