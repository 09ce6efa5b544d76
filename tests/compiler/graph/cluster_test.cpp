// SPDX-License-Identifier: Apache-2.0
// Clusters: text form, typing rules, shape rules.
#include "compiler/graph/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::compiler {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr const char* kSoftmax = R"(cluster rank 1
  operand 0 f32 in contiguous
  operand 1 f32 out contiguous
  n0 = load 0 : f32
  n1 = reduce_max n0 : f32 row
  n2 = sub n0, n1 : f32
  n3 = exp n2 : f32
  n4 = reduce_sum n3 : f32 row
  n5 = div n3, n4 : f32
  store n5 -> 1
end
)";

TEST(Cluster, PrintsWhatItParsed) {
  StatusOr<Cluster> cluster = Cluster::parse(kSoftmax);
  ASSERT_TRUE(cluster.hasValue()) << cluster.status().toString();
  EXPECT_EQ(cluster->toString(), kSoftmax);
  EXPECT_TRUE(cluster->hasReduction());
}

TEST(Cluster, NamesBeginWithTheFirstOperationsAndDifferForOtherTexts) {
  Cluster softmax = *Cluster::parse(kSoftmax);
  const std::string name = softmax.name();
  EXPECT_THAT(name, MatchesRegex("ag_kernel_reduce_max_sub_exp_reduce_sum_[0-9a-f]{16}"));
  EXPECT_EQ(Cluster::parse(kSoftmax)->name(), name);
  softmax.operands[0].columns = ClusterOperand::Columns::kStrided;
  EXPECT_NE(softmax.name(), name);
}

TEST(Cluster, AKernelThatOnlyMovesElementsIsACopy) {
  Cluster copy = *Cluster::parse(
      "cluster rank 0 operand 0 f32 in strided operand 1 f32 out contiguous n0 = load 0 : f32 store n0 -> 1 end");
  EXPECT_THAT(copy.name(), MatchesRegex("ag_kernel_copy_[0-9a-f]{16}"));
}

TEST(Cluster, TransposedOperandsNeedAnOuterDimension) {
  Cluster copy = *Cluster::parse(
      "cluster rank 1 operand 0 f32 in transposed operand 1 f32 out contiguous n0 = load 0 : f32 store n0 -> 1 end");
  EXPECT_TRUE(copy.verify().isOk());
  EXPECT_EQ(Cluster::parse(copy.toString())->operands[0].columns, ClusterOperand::Columns::kTransposed);
  copy.outerRank = 0;
  EXPECT_THAT(copy.verify().toString(), HasSubstr("operand 0: is transposed and needs an outer dimension"));
}

TEST(Cluster, EveryOperationIsFoundByItsName) {
  for (int i = 0; i <= static_cast<int>(PointwiseOp::kSumRows); ++i) {
    auto op = static_cast<PointwiseOp>(i);
    StatusOr<PointwiseOp> found = pointwiseOpFromString(infoOf(op).name);
    ASSERT_TRUE(found.hasValue()) << infoOf(op).name;
    EXPECT_EQ(*found, op);
  }
}

TEST(Cluster, ConstantsKeepTheirBits) {
  for (double value : {0.1, -0.0, 1e300, 5e-324, 1.0 / 3}) {
    Cluster cluster = *Cluster::parse(
        "cluster rank 0 operand 0 f64 out contiguous n0 = constant 1 : f64 row n1 = cast n0 : f64 store n1 -> 0 end");
    cluster.nodes[0].constant = value;
    EXPECT_EQ(Cluster::parse(cluster.toString())->nodes[0].constant, value);
  }
}

TEST(ClusterText, WindowsReadBackAndNameTheirKernel) {
  const StatusOr<Cluster> cluster = Cluster::parse(R"(cluster rank 3
    window avg_pool rows 8 4 3 2 1 1 columns 9 5 3 2 1 1 divisor constant 7
    operand 0 bf16 in strided
    operand 1 bf16 out contiguous
    end)");
  ASSERT_TRUE(cluster.hasValue()) << cluster.status().toString();
  EXPECT_EQ(cluster->window->columns.windows, 5);
  EXPECT_EQ(cluster->window->divisor, 7);
  EXPECT_EQ(Cluster::parse(cluster->toString())->toString(), cluster->toString());
  EXPECT_THAT(cluster->name(), HasSubstr("ag_kernel_avg_pool_"));
}

TEST(ClusterText, ResamplingKeepsTheBitsOfItsRatios) {
  const char* text = R"(cluster rank 3
    window resample_backward rows 3 10 0.30000001192092896 columns 5 2 4 sampling bilinear_aligned separable
    operand 0 f64 in strided
    operand 1 f64 out contiguous
    end)";
  const StatusOr<Cluster> cluster = Cluster::parse(text);
  ASSERT_TRUE(cluster.hasValue()) << cluster.status().toString();
  EXPECT_EQ(cluster->window->rows.ratio, static_cast<double>(0.3f));
  EXPECT_EQ(cluster->window->columns.windows, 2);
  EXPECT_EQ(cluster->window->sampling, Sampling::kBilinearAligned);
  EXPECT_EQ(cluster->window->order, SamplingOrder::kSeparable);
  EXPECT_EQ(Cluster::parse(cluster->toString())->toString(), cluster->toString());
  EXPECT_THAT(cluster->name(), HasSubstr("ag_kernel_resample_backward_"));
}

struct Broken {
  const char* name;
  const char* text;
  const char* message;
};

class ClusterVerifier : public ::testing::TestWithParam<Broken> {};

TEST_P(ClusterVerifier, RejectsABrokenRule) {
  EXPECT_THAT(Cluster::parse(GetParam().text).status().message(), HasSubstr(GetParam().message));
}

constexpr const char* kNoRows = R"(cluster rank 0 operand 0 f32 in contiguous operand 1 f32 out broadcast row
  n0 = load 0 : f32 n1 = reduce_sum n0 : f32 row store n1 -> 1 end)";
constexpr const char* kRowUsesElement = R"(cluster rank 1 operand 0 f32 in contiguous operand 1 f32 out contiguous
  n0 = load 0 : f32 n1 = exp n0 : f32 row store n1 -> 1 end)";
constexpr const char* kStoreShape = R"(cluster rank 1 operand 0 f32 in contiguous operand 1 f32 out broadcast row
  n0 = load 0 : f32 n1 = exp n0 : f32 store n1 -> 1 end)";
constexpr const char* kHalf = R"(cluster rank 1 operand 0 bf16 in contiguous operand 1 bf16 out contiguous
  n0 = load 0 : bf16 n1 = exp n0 : bf16 store n1 -> 1 end)";
constexpr const char* kOrder = R"(cluster rank 0 operand 0 f32 out contiguous n0 = exp n1 : f32 store n0 -> 0 end)";
constexpr const char* kSumUsed = R"(cluster rank 1 operand 0 f32 in contiguous operand 1 f32 out contiguous
  n0 = load 0 : f32 n1 = sum_rows n0 : f32 n2 = exp n1 : f32 store n2 -> 1 end)";
constexpr const char* kSumPlace = R"(cluster rank 1 operand 0 f32 in contiguous operand 1 f32 out contiguous
  n0 = load 0 : f32 n1 = sum_rows n0 : f32 store n1 -> 1 end)";
constexpr const char* kOperandNumber = R"(cluster rank 0 operand 3 f32 in contiguous operand 1 f32 out contiguous
  n0 = load 0 : f32 store n0 -> 1 end)";
constexpr const char* kNodeNumber = R"(cluster rank 0 operand 0 f32 in contiguous operand 1 f32 out contiguous
  n1 = load 0 : f32 store n0 -> 1 end)";
constexpr const char* kWindowOperands = R"(cluster rank 3
  window max_pool rows 4 2 2 2 0 1 columns 4 2 2 2 0 1 divisor inside 1
  operand 0 f32 in contiguous operand 1 f32 out contiguous end)";
constexpr const char* kWindowDType = R"(cluster rank 3
  window max_pool rows 4 2 2 2 0 1 columns 4 2 2 2 0 1 divisor inside 1
  operand 0 f32 in contiguous operand 1 f32 out contiguous operand 2 f32 out contiguous end)";
constexpr const char* kWindowSize = R"(cluster rank 3
  window avg_pool rows 4 2 2 0 0 1 columns 4 2 2 2 0 1 divisor inside 1
  operand 0 f32 in contiguous operand 1 f32 out contiguous end)";
constexpr const char* kSampling = R"(cluster rank 3
  window resample rows 4 2 2 columns 4 2 2 sampling cubic joint
  operand 0 f32 in contiguous operand 1 f32 out contiguous end)";
constexpr const char* kRatio = R"(cluster rank 3
  window resample rows 4 2 -1 columns 4 2 2 sampling nearest joint
  operand 0 f32 in contiguous operand 1 f32 out contiguous end)";
constexpr const char* kNoStore = "cluster rank 0 operand 0 f32 in contiguous n0 = load 0 : f32 end";

INSTANTIATE_TEST_SUITE_P(Rules, ClusterVerifier,
                         ::testing::Values(Broken{"rows", kNoRows, "needs an outer dimension"},
                                           Broken{"row_uses_element", kRowUsesElement, "uses an element node"},
                                           Broken{"store_shape", kStoreShape, "differ in dtype or shape"},
                                           Broken{"half", kHalf, "does not compute in bf16"},
                                           Broken{"order", kOrder, "not before it"},
                                           Broken{"sum_used", kSumUsed, "uses a sum over rows"},
                                           Broken{"sum_place", kSumPlace, "go to block operands"},
                                           Broken{"operand_number", kOperandNumber, "expected operand 0, not 3"},
                                           Broken{"node_number", kNodeNumber, "expected node 0, not 1"},
                                           Broken{"window_operands", kWindowOperands, "another number of operands"},
                                           Broken{"window_dtype", kWindowDType, "operand 2 of max_pool"},
                                           Broken{"window_size", kWindowSize, "must be positive"},
                                           Broken{"sampling", kSampling, "the name of a sampling"},
                                           Broken{"ratio", kRatio, "must not be negative"},
                                           Broken{"no_store", kNoStore, "must store something"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace agspeed::compiler
