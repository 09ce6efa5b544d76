// SPDX-License-Identifier: Apache-2.0
// Kernels of window operators for this machine against the reference interpreter, on random sizes, layouts and dtypes,
// with special values. Any slices of a launch give the same bits. AG_TEST_SEED chooses the first seed, and
// AG_TEST_THOROUGH runs ten times as many cases.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "backends/cpu/backend.h"
#include "backends/reference/backend.h"
#include "backends/reference/scalar_op.h"
#include "compiler/graph/resample_plan.h"
#include "compiler/graph/window_plan.h"

namespace agspeed::backends {
namespace {

using compiler::Cluster;
using compiler::ClusterOperand;
using compiler::Sampling;
using compiler::SamplingOrder;
using compiler::Window;
using compiler::WindowAxis;
using compiler::WindowDivisor;
using compiler::WindowOp;
using compiler::WindowSide;

using Bytes = std::vector<std::byte>;

// One operator on random tensors.
class Case {
 public:
  explicit Case(WindowOp op, uint64_t seed) : random_(seed) {
    const DType dtypes[] = {DType::kF32, DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
    dtype_ = dtypes[pick(0, 4)];
    batch_ = pick(1, 3);
    channels_ = pick(1, 40);
    window_.op = op;
    window_.dividesBy = static_cast<WindowDivisor>(pick(0, 3));
    window_.divisor = pick(1, 5);
    const bool dilates = op != WindowOp::kAvgPool && op != WindowOp::kAvgPoolBackward;
    window_.sampling = static_cast<Sampling>(pick(0, 3));
    window_.order = static_cast<SamplingOrder>(pick(0, 1));
    window_.multipliesPadding = (op == WindowOp::kDepthwise || op == WindowOp::kDepthwiseWeight) && pick(0, 1) == 1;
    window_.rows = window_.isResampling() ? resampledAxis() : randomAxis(dilates);
    window_.columns = window_.isResampling() ? resampledAxis() : randomAxis(dilates);
    cluster_.outerRank = 3;
    cluster_.window = window_;
    const compiler::WindowOpInfo& info = infoOf(op);
    for (size_t i = 0; i < info.operands.size(); ++i) {
      if (static_cast<int32_t>(i) == info.optional && pick(0, 1) == 0) continue;
      addOperand(info.operands[i]);
    }
    integers_.insert(integers_.begin(), {batch_, window_.rows.image, window_.columns.image, channels_});
  }

  const Cluster& cluster() const { return cluster_; }
  const Bytes& input(size_t operand) const { return buffers_[operand]; }

  int64_t extent() const {
    const int64_t lanes = compiler::windowLanes(dtype_);
    const int64_t blocks = (channels_ + lanes - 1) / lanes;
    return infoOf(window_.op).sumsOverBatch ? blocks : blocks * batch_;
  }

  /// Runs the launch in slices of at most `slice` units.
  std::vector<Bytes> run(const runtime::KernelLibrary& library, int64_t slice) const {
    std::vector<Bytes> buffers = buffers_;
    std::vector<void*> pointers;
    for (Bytes& buffer : buffers) pointers.push_back(buffer.data());
    for (int64_t begin = 0; begin < extent(); begin += slice) {
      library.launch(0, pointers.data(), integers_.data(), begin, std::min(begin + slice, extent()));
    }
    return buffers;
  }

 private:
  int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  // Every window has an element of the image, as in ATen.
  WindowAxis randomAxis(bool dilates) {
    WindowAxis axis;
    axis.kernel = pick(1, 5);
    axis.stride = pick(1, 4);
    axis.dilation = dilates ? pick(1, 2) : 1;
    axis.padding = pick(0, axis.kernel / 2);
    axis.image = pick(1, 3) == 1 ? pick(20, 90) : pick(1, 12);
    const int64_t length = axis.dilation * (axis.kernel - 1) + 1;
    axis.image = std::max(axis.image, length - 2 * axis.padding);
    const bool roundsUp = pick(0, 1) == 1;
    axis.windows = (axis.image + 2 * axis.padding - length + (roundsUp ? axis.stride - 1 : 0)) / axis.stride + 1;
    if ((axis.windows - 1) * axis.stride >= axis.image + axis.padding) --axis.windows;
    return axis;
  }

  // An image that grows or shrinks, whose size divides the other one or not.
  WindowAxis resampledAxis() {
    WindowAxis axis;
    axis.image = pick(1, 3) == 1 ? pick(20, 90) : pick(1, 12);
    axis.windows = pick(0, 2) == 0 ? axis.image * pick(1, 3) : pick(1, 40);
    const bool isAligned = window_.sampling == Sampling::kBilinearAligned;
    const int64_t one = isAligned ? 1 : 0;
    axis.ratio = static_cast<double>(axis.image - one) / static_cast<double>(std::max<int64_t>(axis.windows - one, 1));
    if (dtype_ != DType::kF64) axis.ratio = static_cast<float>(axis.ratio);
    return axis;
  }

  std::array<int64_t, 4> sizesOf(WindowSide side) const {
    switch (side) {
      case WindowSide::kImage: return {batch_, window_.rows.image, window_.columns.image, channels_};
      case WindowSide::kWindows: return {batch_, window_.rows.windows, window_.columns.windows, channels_};
      case WindowSide::kFilter: return {1, window_.rows.kernel, window_.columns.kernel, channels_};
      case WindowSide::kChannel: return {1, 1, 1, channels_};
    }
    return {};
  }

  void addOperand(const compiler::WindowOperandInfo& info) {
    ClusterOperand operand;
    operand.dtype = info.isPosition ? DType::kI64 : dtype_;
    operand.isOutput = info.isOutput;
    const std::array<int64_t, 4> sizes = sizesOf(info.side);
    // The order of the dimensions in memory, the innermost one last: channels last, or first, or columns before rows.
    const int orders[][4] = {{0, 1, 2, 3}, {0, 3, 1, 2}, {3, 2, 0, 1}};
    const int* order = orders[pick(0, 2)];
    std::array<int64_t, 4> strides{};
    int64_t count = pick(0, 4) == 0 && !info.isOutput ? 2 : 1;
    for (int i = 3; i >= 0; --i) {
      strides[order[i]] = count;
      count *= sizes[order[i]];
    }
    if (sizes[0] == 1) strides[0] = 0;
    operand.columns = strides[3] == 1 ? ClusterOperand::Columns::kContiguous : ClusterOperand::Columns::kStrided;
    cluster_.operands.push_back(operand);
    integers_.insert(integers_.end(), strides.begin(), strides.end());
    fill(operand, count);
  }

  void fill(const ClusterOperand& operand, int64_t count) {
    const bool isConvolution = window_.op >= WindowOp::kDepthwise && window_.op <= WindowOp::kDepthwiseWeight;
    Bytes& buffer = buffers_.emplace_back(static_cast<size_t>(count) * sizeInBytes(operand.dtype));
    for (int64_t i = 0; i < count; ++i) {
      reference::Scalar value;
      value.real = std::round(std::normal_distribution<double>()(random_) * 64) / 64;  // exact in every dtype
      // A result of a convolution reads many elements, and one that is not finite hides the others.
      const int64_t special = pick(0, isConvolution ? 2000 : 60);
      if (special == 0) value.real = NAN;
      if (special == 1) value.real = -INFINITY;
      if (operand.dtype == DType::kI64) value.integer = pick(0, window_.rows.image * window_.columns.image - 1);
      reference::storeScalar(buffer.data(), operand.dtype, i, value);
    }
  }

  std::mt19937_64 random_;
  DType dtype_;
  int64_t batch_;
  int64_t channels_;
  Window window_;
  Cluster cluster_;
  std::vector<int64_t> integers_;
  std::vector<Bytes> buffers_;
};

std::shared_ptr<const runtime::KernelLibrary> build(const Backend& backend, const Cluster& cluster) {
  runtime::CompileStats stats;
  auto library = backend.build({cluster}, compiler::CompileOptions(), stats);
  EXPECT_TRUE(library.hasValue()) << library.status().toString();
  return library.hasValue() ? *library : nullptr;
}

double toleranceOf(DType dtype) {
  return dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 2e-3 : 2e-2;
}

void expectClose(const Bytes& expected, const Bytes& actual, DType dtype) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size() / sizeInBytes(dtype); ++i) {
    const auto a = reference::loadScalar(expected.data(), dtype, static_cast<int64_t>(i));
    const auto b = reference::loadScalar(actual.data(), dtype, static_cast<int64_t>(i));
    if (!isFloat(dtype)) {
      ASSERT_EQ(a.integer, b.integer) << "element " << i;
    } else if (a.real != b.real && !(std::isnan(a.real) && std::isnan(b.real))) {
      ASSERT_NEAR(a.real, b.real, toleranceOf(dtype) * std::max(1.0, std::abs(a.real))) << "element " << i;
    }
  }
}

class WindowKernels : public ::testing::TestWithParam<WindowOp> {};

TEST_P(WindowKernels, ComputeWhatTheReferenceComputes) {
  const char* firstSeed = std::getenv("AG_TEST_SEED");
  const uint64_t first = firstSeed ? std::strtoull(firstSeed, nullptr, 10) : 1;
  const uint64_t count = std::getenv("AG_TEST_THOROUGH") ? 150 : 15;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case test(GetParam(), seed);
    SCOPED_TRACE("AG_TEST_SEED=" + std::to_string(seed) + "\n" + test.cluster().toString());
    ASSERT_TRUE(test.cluster().verify().isOk()) << test.cluster().verify().toString();
    auto kernel = build(cpu::kBackend, test.cluster());
    auto oracle = build(reference::kBackend, test.cluster());
    ASSERT_TRUE(kernel && oracle);
    const std::vector<Bytes> expected = test.run(*oracle, test.extent());
    const std::vector<Bytes> actual = test.run(*kernel, test.extent());
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE("operand " + std::to_string(i));
      expectClose(expected[i], actual[i], test.cluster().operands[i].dtype);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(test.run(*kernel, 1), actual);  // slices do not change bits
  }
}

// Each row of windows has a thousand rows of results here. Tiles lie on the stack, so they must not grow with that.
TEST(WindowTiles, StaySmallForNarrowResults) {
  constexpr int64_t kRows = 128000, kColumns = 3, kChannels = 16, kStride = 1000;
  constexpr int64_t kWindows = kRows / kStride;
  Cluster cluster;
  cluster.outerRank = 3;
  cluster.window = Window();
  cluster.window->op = WindowOp::kAvgPoolBackward;
  cluster.window->rows = {kRows, kWindows, 1, kStride, 0, 1};
  cluster.window->columns = {kColumns, kColumns, 1, 1, 0, 1};
  for (const bool isOutput : {false, true}) {
    ClusterOperand operand;
    operand.dtype = DType::kF32;
    operand.isOutput = isOutput;
    operand.columns = ClusterOperand::Columns::kStrided;
    cluster.operands.push_back(operand);
  }
  ASSERT_TRUE(cluster.verify().isOk()) << cluster.verify().toString();
  const auto kernel = build(cpu::kBackend, cluster);
  ASSERT_TRUE(kernel);
  std::vector<float> gradient(kChannels * kWindows * kColumns, 2);
  std::vector<float> image(kChannels * kRows * kColumns, -1);
  void* pointers[] = {gradient.data(), image.data()};
  const int64_t integers[] = {1, kRows,    kColumns, kChannels,  //
                              0, kColumns, 1,        kWindows * kColumns, 0, kColumns, 1, kRows * kColumns};
  kernel->launch(0, pointers, integers, 0, 1);
  for (size_t i = 0; i < image.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / kColumns % kRows;
    ASSERT_EQ(image[i], row % kStride == 0 ? 2 : 0) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, WindowKernels,
                         ::testing::Values(WindowOp::kAvgPool, WindowOp::kAvgPoolBackward, WindowOp::kDepthwise,
                                           WindowOp::kDepthwiseInput, WindowOp::kDepthwiseWeight, WindowOp::kMaxPool,
                                           WindowOp::kMaxPoolBackward, WindowOp::kResample,
                                           WindowOp::kResampleBackward),
                         [](const auto& info) { return std::string(compiler::infoOf(info.param).name); });

TEST(WindowPlan, GradientsReadTheWindowsThatCoverAnElement) {
  // Windows of 3 elements, 2 apart, with a border of 1: element 2 is in window 1 alone, element 3 in windows 1 and 2.
  const compiler::AxisPlan plan = compiler::planAxis({8, 4, 3, 2, 1, 1}, /*isImageResult=*/true);
  ASSERT_EQ(plan.phases(), 2);
  ASSERT_EQ(plan.taps[0].size(), 1u);
  EXPECT_EQ(plan.taps[0][0].offset, 0);
  ASSERT_EQ(plan.taps[1].size(), 2u);
  EXPECT_EQ(plan.taps[1][0].offset, 0);
  EXPECT_EQ(plan.taps[1][0].index, 2);
  EXPECT_EQ(plan.taps[1][1].offset, 1);
  EXPECT_EQ(plan.taps[1][1].index, 0);
}

Window bilinear(int64_t image, int64_t windows) {
  Window window;
  window.op = WindowOp::kResampleBackward;
  window.sampling = Sampling::kBilinear;
  const auto ratio = static_cast<double>(image) / static_cast<double>(windows);
  window.rows = window.columns = {.image = image, .windows = windows, .ratio = ratio};
  return window;
}

TEST(ResamplePlan, GradientsReadTheWindowsThatAnElementIsPartOf) {
  // Two elements become four windows. The last window reads the last element twice.
  const Window window = bilinear(2, 4);
  const compiler::AxisSamples samples =
      compiler::windowsOfSamples(compiler::samplesOfWindows(window, window.rows, DType::kF32), 2);
  const auto expectSamples = [&](size_t result, const std::vector<std::pair<int64_t, double>>& expected) {
    ASSERT_EQ(samples[result].size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(samples[result][i].source, expected[i].first);
      EXPECT_EQ(samples[result][i].weight, expected[i].second);
    }
  };
  expectSamples(0, {{0, 1}, {1, 0.75}, {2, 0.25}});
  expectSamples(1, {{0, 0}, {1, 0.25}, {2, 0.75}, {3, 0.75}, {3, 0.25}});
}

TEST(ResamplePlan, RefusesRowsThatDoNotFitATile) {
  EXPECT_TRUE(compiler::checkWindowSize(bilinear(600, 1200), DType::kF32).isOk());
  EXPECT_EQ(compiler::checkWindowSize(bilinear(1200, 2400), DType::kF32).message(), "its rows are too long");
  EXPECT_EQ(compiler::checkWindowSize(bilinear(20000, 2), DType::kF32).message(), "its images are too large");
}

TEST(WindowPlan, RefusesRowsThatDoNotFitATile) {
  Window window;
  window.op = WindowOp::kAvgPool;
  window.rows = window.columns = {4096, 2048, 2, 2, 0, 1};
  EXPECT_EQ(compiler::checkWindowSize(window, DType::kF32).message(), "its rows are too long");
}

}  // namespace
}  // namespace agspeed::backends
