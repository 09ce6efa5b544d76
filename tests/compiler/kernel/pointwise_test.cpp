// SPDX-License-Identifier: Apache-2.0
// Every pointwise operation on every dtype that it supports, in two layouts, against the scalar interpreter.
#include <gtest/gtest.h>

#include "kernel_test_support.h"

namespace agspeed::compiler::testing {
namespace {

using Op = PointwiseOp;

bool isFloatOnly(Op op) { return (op >= Op::kExp && op <= Op::kSigmoid) || op == Op::kDiv || op == Op::kAtan2; }
bool isIntOnly(Op op) { return op == Op::kBitwiseNot || (op >= Op::kBitwiseAnd && op <= Op::kShiftRight); }
bool isLogical(Op op) { return op == Op::kLogicalNot || (op >= Op::kLogicalAnd && op <= Op::kLogicalXor); }
bool isPredicate(Op op) { return (op >= Op::kEq && op <= Op::kGe) || op == Op::kIsNan || op == Op::kIsInf; }

bool hasCode(Op op, DType dtype) {
  if (dtype == DType::kBool) return isLogical(op) || op == Op::kWhere || op == Op::kEq || op == Op::kNe;
  if (isLogical(op)) return false;
  return isFloat(dtype) ? !isIntOnly(op) : !isFloatOnly(op);
}

std::vector<Op> operationsOf(DType dtype) {
  std::vector<Op> ops;
  for (int i = static_cast<int>(Op::kAbs); i <= static_cast<int>(Op::kFma); ++i) {
    if (hasCode(static_cast<Op>(i), dtype)) ops.push_back(static_cast<Op>(i));
  }
  return ops;
}

// One load per input with the given layouts in turn, the operation, one store.
Cluster makeCluster(Op op, DType dtype, int rank, const std::vector<Columns>& inputs, Columns output) {
  ClusterBuilder builder(rank);
  std::vector<int32_t> nodes;
  for (int i = 0; i < infoOf(op).arity; ++i) {
    DType inputDType = op == Op::kWhere && i == 0 ? DType::kBool : dtype;
    nodes.push_back(builder.load(inputDType, inputs[i % inputs.size()]));
  }
  DType result = isPredicate(op) || isLogical(op) ? DType::kBool : dtype;
  builder.store(builder.node(op, result, nodes), output);
  return builder.cluster();
}

class Pointwise : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr uint64_t kSeed = 20240501;

  void check(const Cluster& cluster, runtime::KernelFunction kernel, const std::vector<int64_t>& outer, int64_t columns,
             const std::vector<std::pair<int64_t, int64_t>>& slices) {
    Problem actual(cluster, outer, columns, kSeed);
    Problem expected = actual;
    actual.run(kernel, slices);
    expected.interpret();
    std::string difference = compare(actual, expected, toleranceOf(cluster.nodes.back().op));
    EXPECT_EQ(difference, "") << "seed " << kSeed << ", rows " << actual.numRows() << ", columns " << columns;
  }

  std::vector<Cluster> clustersOf(int rank, const std::vector<Columns>& inputs, Columns output) {
    std::vector<Cluster> clusters;
    for (Op op : operationsOf(GetParam())) clusters.push_back(makeCluster(op, GetParam(), rank, inputs, output));
    return clusters;
  }
};

TEST_P(Pointwise, ContiguousColumnsInSlices) {
  std::vector<Cluster> clusters = clustersOf(0, {Columns::kContiguous}, Columns::kContiguous);
  auto library = build(clusters);
  ASSERT_TRUE(library);
  for (size_t i = 0; i < clusters.size(); ++i) {
    for (int64_t n : {0, 1, 7, 15, 16, 17}) check(clusters[i], library->kernel(i), {}, n, {{0, n}});
    check(clusters[i], library->kernel(i), {}, 1000, {{0, 1}, {1, 17}, {17, 17}, {17, 640}, {640, 1000}});
  }
}

TEST_P(Pointwise, StridedAndPerRowOperandsOverRows) {
  std::vector<Cluster> clusters = clustersOf(2, {Columns::kStrided, Columns::kBroadcast}, Columns::kStrided);
  auto library = build(clusters);
  ASSERT_TRUE(library);
  for (size_t i = 0; i < clusters.size(); ++i) {
    for (int64_t n : {0, 1, 16, 37}) check(clusters[i], library->kernel(i), {5, 3}, n, {{0, 4}, {4, 15}});
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Pointwise,
                         ::testing::Values(DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kI32, DType::kI64,
                                           DType::kF32, DType::kF64),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace agspeed::compiler::testing
