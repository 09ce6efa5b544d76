// SPDX-License-Identifier: Apache-2.0
// Kernels with reductions: values, NaN, independence of slicing, rows of several dimensions, and running in place.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernel_test_support.h"

namespace agspeed::compiler::testing {
namespace {

using Op = PointwiseOp;
constexpr DType kF32 = DType::kF32;

Cluster makeReduction(Op op, DType dtype, Columns columns) {
  ClusterBuilder builder(1);
  builder.store(builder.node(op, dtype, {builder.load(dtype, columns)}), Columns::kBroadcast);
  return builder.cluster();
}

Cluster makeSoftmax(Columns columns = Columns::kContiguous) {
  ClusterBuilder b(1);
  int x = b.load(kF32, columns);
  int shifted = b.node(Op::kSub, kF32, {x, b.node(Op::kReduceMax, kF32, {x})});
  int e = b.node(Op::kExp, kF32, {shifted});
  b.store(b.node(Op::kDiv, kF32, {e, b.node(Op::kReduceSum, kF32, {e})}), columns);
  return b.cluster();
}

// gelu(layer_norm(x) * weight + bias), with the mean and the reciprocal deviation stored too. `columns`: of x and of
// the result.
Cluster makeLayerNormGelu(DType dtype = DType::kBF16, Columns columns = Columns::kContiguous) {
  ClusterBuilder b(2);
  int x = b.cast(b.load(dtype, columns), kF32);
  int scale = b.constant(kF32, 1.0 / 64);
  int mean = b.node(Op::kMul, kF32, {b.node(Op::kReduceSum, kF32, {x}), scale});
  int centered = b.node(Op::kSub, kF32, {x, mean});
  int square = b.node(Op::kMul, kF32, {centered, centered});
  int variance = b.node(Op::kMul, kF32, {b.node(Op::kReduceSum, kF32, {square}), scale});
  int deviation = b.node(Op::kRsqrt, kF32, {b.node(Op::kAdd, kF32, {variance, b.constant(kF32, 1e-5)})});
  int normal = b.node(Op::kMul, kF32, {centered, deviation});
  int y = b.node(Op::kAdd, kF32, {b.node(Op::kMul, kF32, {normal, b.load(kF32)}), b.load(kF32)});
  int erf = b.node(Op::kErf, kF32, {b.node(Op::kMul, kF32, {y, b.constant(kF32, std::sqrt(0.5))})});
  int half = b.node(Op::kMul, kF32, {y, b.constant(kF32, 0.5)});
  b.store(b.node(Op::kMul, kF32, {half, b.node(Op::kAdd, kF32, {erf, b.constant(kF32, 1)})}), columns);
  b.store(mean, Columns::kBroadcast);
  b.store(deviation, Columns::kBroadcast);
  return b.cluster();
}

// Inputs are small integers. Floating-point sums are then exact in any order.
void fillWithSmallIntegers(Problem& problem, int modulus) {
  for (size_t operand = 0; operand < problem.cluster().operands.size(); ++operand) {
    const ClusterOperand& info = problem.cluster().operands[operand];
    if (info.isOutput) continue;
    for (int64_t row = 0; row < problem.numRows(); ++row) {
      for (int64_t column = 0; column < problem.columns(); ++column) {
        int64_t value = (row * 31 + column * 7) % modulus - modulus / 2;
        problem.set(operand, row, column, castScalar({0, value}, DType::kI64, info.dtype));
      }
    }
  }
}

TEST(Reduction, EveryOperationAndDTypeIsExactOnSmallIntegers) {
  std::vector<Cluster> clusters;
  for (Op op : {Op::kReduceSum, Op::kReduceMax, Op::kReduceMin, Op::kReduceProd}) {
    for (DType dtype : {DType::kU8, DType::kI8, DType::kI32, DType::kI64, kF32, DType::kF64}) {
      clusters.push_back(makeReduction(op, dtype, Columns::kContiguous));
      clusters.push_back(makeReduction(op, dtype, Columns::kStrided));
    }
  }
  auto library = build(clusters);
  ASSERT_TRUE(library);
  for (size_t i = 0; i < clusters.size(); ++i) {
    bool isProduct = clusters[i].nodes.back().op == Op::kReduceProd;
    for (int64_t columns : {1, 15, 16, 17, 1000, 3000}) {
      Problem actual(clusters[i], {3}, columns, 1);
      fillWithSmallIntegers(actual, isProduct ? 3 : 9);
      Problem expected = actual;
      actual.run(library->kernel(i));
      expected.interpret();
      EXPECT_EQ(compare(actual, expected, {0, 0, 0, true}), "") << "columns " << columns;
    }
  }
}

TEST(Reduction, NoColumnsGiveTheNeutralElement) {
  std::vector<Cluster> clusters;
  for (Op op : {Op::kReduceSum, Op::kReduceProd, Op::kReduceMax}) {
    clusters.push_back(makeReduction(op, kF32, Columns::kContiguous));
  }
  auto library = build(clusters);
  ASSERT_TRUE(library);
  const double neutral[] = {0, 1, -std::numeric_limits<double>::infinity()};
  for (size_t i = 0; i < clusters.size(); ++i) {
    Problem problem(clusters[i], {2}, 0, 1);
    problem.run(library->kernel(i));
    EXPECT_EQ(problem.at(1, 1, 0).f, neutral[i]);
  }
}

TEST(Reduction, ExtremesPropagateNanFromEveryLane) {
  std::vector<Cluster> clusters = {makeReduction(Op::kReduceMax, kF32, Columns::kContiguous),
                                   makeReduction(Op::kReduceMin, kF32, Columns::kContiguous)};
  auto library = build(clusters);
  ASSERT_TRUE(library);
  for (size_t i = 0; i < clusters.size(); ++i) {
    for (int64_t place = 0; place < 37; ++place) {
      Problem problem(clusters[i], {1}, 37, 1);
      fillWithSmallIntegers(problem, 9);
      problem.set(0, 0, place, {std::nan(""), 0});
      problem.run(library->kernel(i));
      EXPECT_TRUE(std::isnan(problem.at(1, 0, 0).f)) << "NaN in column " << place;
    }
  }
}

TEST(Reduction, LongSumsKeepTheirAccuracy) {
  Cluster cluster = makeReduction(Op::kReduceSum, kF32, Columns::kContiguous);
  auto library = build({cluster});
  ASSERT_TRUE(library);
  constexpr int64_t kColumns = 1 << 22;
  Problem problem(cluster, {1}, kColumns, 1);
  float* x = reinterpret_cast<float*>(problem.bytes(0).data());
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> uniform(0, 1);
  double sum = 0;
  for (int64_t i = 0; i < kColumns; ++i) sum += x[i] = uniform(random);
  problem.run(library->kernel(0));
  EXPECT_NEAR(problem.at(1, 0, 0).f / sum, 1, 1e-6) << "seed 3";
}

void expectSlicingChangesNothing(const Cluster& cluster, const std::vector<int64_t>& outer, int64_t columns) {
  auto library = build({cluster});
  ASSERT_TRUE(library);
  Problem whole(cluster, outer, columns, 11);
  Problem single = whole;
  Problem uneven = whole;
  whole.run(library->kernel(0));
  std::vector<std::pair<int64_t, int64_t>> ones;
  for (int64_t i = whole.extent(); i-- > 0;) ones.push_back({i, i + 1});
  single.run(library->kernel(0), ones);
  uneven.run(library->kernel(0), {{whole.extent() / 3, whole.extent()}, {0, whole.extent() / 3}});
  for (const ClusterStore& store : cluster.stores) {
    EXPECT_EQ(whole.bytes(store.operand), single.bytes(store.operand)) << "seed 11\n" << cluster.toString();
    EXPECT_EQ(whole.bytes(store.operand), uneven.bytes(store.operand)) << "seed 11\n" << cluster.toString();
  }
}

TEST(Slicing, DoesNotChangeABitOfRows) {
  expectSlicingChangesNothing(makeSoftmax(), {13}, 100);
  expectSlicingChangesNothing(makeLayerNormGelu(), {3, 5}, 64);
}

TEST(Slicing, DoesNotChangeABitOfColumns) {
  ClusterBuilder b(0);
  int x = b.load(kF32);
  int y = b.load(kF32);
  for (Op op : {Op::kExp, Op::kTanh, Op::kErf, Op::kSin, Op::kLog1p}) b.store(b.node(op, kF32, {x}));
  b.store(b.node(Op::kAdd, kF32, {b.node(Op::kMul, kF32, {x, y}), y}));
  expectSlicingChangesNothing(b.cluster(), {}, 500);
}

TEST(Rows, SoftmaxAgreesWithTheInterpreter) {
  Cluster cluster = makeSoftmax();
  auto library = build({cluster});
  ASSERT_TRUE(library);
  for (int64_t columns : {1, 5, 16, 33, 1000}) {
    Problem actual(cluster, {4}, columns, 1);
    fillWithSmallIntegers(actual, 17);
    Problem expected = actual;
    actual.run(library->kernel(0));
    expected.interpret();
    EXPECT_EQ(compare(actual, expected, {8, 0, 0, false}), "") << "columns " << columns;
  }
}

TEST(Rows, LayerNormGeluAgreesWithTheInterpreterOverTwoOuterDimensions) {
  Cluster cluster = makeLayerNormGelu();
  auto library = build({cluster});
  ASSERT_TRUE(library);
  Problem actual(cluster, {3, 7}, 64, 1);
  fillWithSmallIntegers(actual, 17);
  Problem expected = actual;
  actual.run(library->kernel(0), {{0, 9}, {9, 21}});
  expected.interpret();
  EXPECT_EQ(compare(actual, expected, {0, 1e-5, 1e-6, false}), "");
}

// Tiles hold 16 rows, or 8 if an element has 8 bytes. Blocks of as many columns are transposed in registers.
TEST(Transposed, RowsHaveTheBitsOfContiguousRows) {
  std::vector<Cluster> clusters;
  for (DType dtype : {kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kU8}) {
    clusters.push_back(makeLayerNormGelu(dtype, Columns::kContiguous));
    clusters.push_back(makeLayerNormGelu(dtype, Columns::kTransposed));
  }
  auto library = build(clusters);
  ASSERT_TRUE(library);
  for (size_t i = 0; i < clusters.size(); i += 2) {
    for (int64_t rows : {1, 7, 8, 16, 33}) {
      for (int64_t columns : {1, 8, 15, 16, 50, 1024}) {
        Problem expected(clusters[i], {2, rows}, columns, 1);
        Problem actual(clusters[i + 1], {2, rows}, columns, 1);
        fillWithSmallIntegers(expected, 17);
        fillWithSmallIntegers(actual, 17);
        Problem oracle = actual;
        expected.run(library->kernel(i));
        actual.run(library->kernel(i + 1), {{0, rows / 2}, {rows / 2, 2 * rows}});
        oracle.interpret();
        ASSERT_EQ(compare(actual, oracle, {0, 1e-4, 1e-5, false}), "") << clusters[i + 1].toString();
        for (const ClusterStore& store : clusters[i].stores) {
          for (int64_t row = 0; row < 2 * rows; ++row) {
            for (int64_t column = 0; column < columns; ++column) {
              ASSERT_EQ(actual.at(store.operand, row, column).f, expected.at(store.operand, row, column).f)
                  << rows << " rows of " << columns << " columns\n"
                  << clusters[i + 1].toString();
            }
          }
        }
      }
    }
  }
}

TEST(InPlace, AnOutputMayBeAnInput) {
  for (Columns layout : {Columns::kContiguous, Columns::kTransposed}) {
    Cluster cluster = makeSoftmax(layout);
    auto library = build({cluster});
    ASSERT_TRUE(library);
    for (int64_t columns : {1, 16, 100}) {
      Problem apart(cluster, {21}, columns, 1);
      fillWithSmallIntegers(apart, 17);
      Problem shared = apart;
      shared.alias(1, 0);
      apart.run(library->kernel(0));
      shared.run(library->kernel(0));
      for (int64_t row = 0; row < 21; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          EXPECT_EQ(apart.at(1, row, column).f, shared.at(1, row, column).f) << "row " << row << " column " << column;
        }
      }
    }
  }
}

// y0 = a + b is stored over a, y1 = a - b over b. Both inputs are read before either output is written.
TEST(InPlace, TwoOutputsOverTwoInputs) {
  ClusterBuilder builder(0);
  int a = builder.load(kF32);
  int b = builder.load(kF32);
  builder.store(builder.node(Op::kAdd, kF32, {a, b}));
  builder.store(builder.node(Op::kSub, kF32, {a, b}));
  auto library = build({builder.cluster()});
  ASSERT_TRUE(library);
  Problem problem(builder.cluster(), {}, 100, 1);
  fillWithSmallIntegers(problem, 9);
  for (int64_t i = 0; i < 100; ++i) problem.set(1, 0, i, {1000.0, 0});
  Problem before = problem;
  problem.alias(2, 0);
  problem.alias(3, 1);
  problem.run(library->kernel(0));
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(problem.at(2, 0, i).f, before.at(0, 0, i).f + 1000);
    EXPECT_EQ(problem.at(3, 0, i).f, before.at(0, 0, i).f - 1000);
  }
}

}  // namespace
}  // namespace agspeed::compiler::testing
