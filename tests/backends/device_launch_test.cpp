// SPDX-License-Identifier: Apache-2.0
// Launches at the limits of GPU kernels, through the fake driver: unaligned addresses, indices beyond 31 bits, and
// empty launches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backends/backend.h"
#include "backends/nvptx/kernel_plan.h"
#include "tests/backends/simt/fake_gpu.h"

namespace agspeed::backends {
namespace {

namespace fake_gpu = simt::fake_gpu;
using compiler::Cluster;

constexpr int64_t kBeyond31Bits = (int64_t{1} << 31) + 5;
constexpr int64_t kBeyond32Bits = (int64_t{1} << 33) + 5;

Cluster parse(const std::string& text) {
  StatusOr<Cluster> cluster = Cluster::parse(text);
  EXPECT_TRUE(cluster.hasValue()) << cluster.status().toString();
  return cluster.hasValue() ? *cluster : Cluster{};
}

// y = -x, column by column.
Cluster negation(const std::string& dtype, int rank = 0) {
  return parse("cluster rank " + std::to_string(rank) + "\noperand 0 " + dtype + " in contiguous\noperand 1 " + dtype +
               " out contiguous\nn0 = load 0 : " + dtype + "\nn1 = neg n0 : " + dtype + "\nstore n1 -> 1\nend\n");
}

// The sum of each row, and the row minus its sum.
Cluster rowSums() {
  return parse(R"(cluster rank 1
    operand 0 f32 in contiguous
    operand 1 f32 out contiguous
    operand 2 f32 out broadcast row
    n0 = load 0 : f32
    n1 = reduce_sum n0 : f32 row
    n2 = sub n0, n1 : f32
    store n2 -> 1
    store n1 -> 2
    end)");
}

class DeviceLaunch : public ::testing::Test {
 protected:
  void SetUp() override { fake_gpu::open(); }

  std::shared_ptr<const runtime::KernelLibrary> build(const Cluster& cluster) {
    compiler::CompileOptions options;
    options.device = {Device::Kind::kCuda, 0};
    runtime::CompileStats stats;
    auto library = (*findBackend("", options.device))->build({cluster}, options, stats);
    EXPECT_TRUE(library.hasValue()) << library.status().toString();
    return library.hasValue() ? *library : nullptr;
  }

  void run(const runtime::KernelLibrary& library, const std::vector<void*>& pointers,
           const std::vector<int64_t>& integers, int64_t begin, int64_t end) {
    const Status queued = library.enqueue(0, pointers.data(), integers.data(), begin, end, nullptr);
    ASSERT_TRUE(queued.isOk()) << queued.toString();
    fake_gpu::synchronize(nullptr);
  }
};

// The test of unaligned addresses: code that accesses 128 bits would fault here, or write over the guards.
template <typename T>
void expectNegated(const runtime::KernelLibrary& library, int64_t count, int64_t inputStart, int64_t outputStart) {
  constexpr T kGuard = T{77};
  alignas(64) T input[128] = {};
  alignas(64) T output[128];
  std::fill(std::begin(output), std::end(output), kGuard);
  std::iota(input + inputStart, input + inputStart + count, T{1});
  void* const pointers[] = {input + inputStart, output + outputStart};
  const int64_t integers[] = {count, 1, 1};
  ASSERT_TRUE(library.enqueue(0, pointers, integers, 0, count, nullptr).isOk());
  fake_gpu::synchronize(nullptr);
  for (int64_t i = 0; i < 128; ++i) {
    const bool isInside = i >= outputStart && i < outputStart + count;
    const T expected = isInside ? static_cast<T>(-static_cast<T>(i - outputStart + 1)) : kGuard;
    ASSERT_EQ(output[i], expected) << "element " << i << " of " << count << ", input at " << inputStart
                                   << ", output at " << outputStart;
  }
}

TEST_F(DeviceLaunch, UnalignedViewsAreReadAndWrittenElementByElement) {
  auto floats = build(negation("f32"));
  auto doubles = build(negation("f64"));
  auto bytes = build(negation("i8"));
  ASSERT_TRUE(floats && doubles && bytes);
  for (int64_t input = 0; input < 4; ++input) {
    for (int64_t output = 0; output < 4; ++output) {
      for (int64_t count : {1, 3, 4, 37}) {
        expectNegated<float>(*floats, count, input, output);
        expectNegated<double>(*doubles, count, input, output);
        expectNegated<int8_t>(*bytes, count, 5 * input, 3 * output);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(DeviceLaunch, RowsOfOddLengthStartAnywhere) {
  auto library = build(rowSums());
  ASSERT_TRUE(library);
  constexpr int64_t kRows = 5;
  for (int64_t columns : {3, 65, 259}) {
    std::vector<float> x(static_cast<size_t>(kRows * columns + 1)), y(x.size()), sums(kRows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7);
    run(*library, {x.data() + 1, y.data() + 1, sums.data()}, {kRows, columns, columns, 1, columns, 1, 1, 0}, 0, kRows);
    for (int64_t row = 0; row < kRows; ++row) {
      const float* first = x.data() + 1 + row * columns;
      EXPECT_EQ(sums[static_cast<size_t>(row)], std::accumulate(first, first + columns, 0.0f)) << columns;
      EXPECT_EQ(y[static_cast<size_t>(1 + row * columns)], first[0] - sums[static_cast<size_t>(row)]) << columns;
    }
  }
}

// The launch's slice lies within the tensors' memory. The addresses before it are not mapped.
TEST_F(DeviceLaunch, ElementsBeyond31BitsAreReached) {
  auto library = build(negation("f32"));
  ASSERT_TRUE(library);
  for (int64_t first : {kBeyond31Bits, kBeyond32Bits}) {
    std::vector<float> x(100), y(100);
    std::iota(x.begin(), x.end(), 1.0f);
    const auto originOf = [&](std::vector<float>& values) {
      return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(values.data()) -
                                     first * static_cast<int64_t>(sizeof(float)));
    };
    run(*library, {originOf(x), originOf(y)}, {first + 100, 1, 1}, first, first + 100);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], -x[i]) << "element " << first << " + " << i;
  }
}

TEST_F(DeviceLaunch, RowsBeyond31BitsAreReached) {
  auto library = build(negation("f32", /*rank=*/2));
  ASSERT_TRUE(library);
  constexpr int64_t kColumns = 6, kInner = 3;
  for (int64_t first : {kBeyond31Bits, kBeyond32Bits}) {
    std::vector<float> x(4 * kColumns), y(x.size());
    std::iota(x.begin(), x.end(), 1.0f);
    const auto originOf = [&](std::vector<float>& values) {
      return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(values.data()) -
                                     first * kColumns * static_cast<int64_t>(sizeof(float)));
    };
    const int64_t outer = kInner * kColumns;
    run(*library, {originOf(x), originOf(y)}, {first, kInner, kColumns, outer, kColumns, 1, outer, kColumns, 1}, first,
        first + 4);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], -x[i]) << "row " << first << ", element " << i;
  }
}

TEST_F(DeviceLaunch, NothingToDoLaunchesNothing) {
  auto flat = build(negation("f32", /*rank=*/1));
  auto sums = build(rowSums());
  ASSERT_TRUE(flat && sums);
  run(*flat, {nullptr, nullptr}, {0, 8, 8, 1, 8, 1}, 0, 0);
  run(*flat, {nullptr, nullptr}, {8, 0, 0, 1, 0, 1}, 0, 8);
  run(*sums, {nullptr, nullptr, nullptr}, {0, 8, 8, 1, 8, 1, 1, 0}, 0, 0);
  EXPECT_EQ(fake_gpu::numRun(), 0);
  std::vector<float> sumsOfNothing(3, 7.0f);
  run(*sums, {nullptr, nullptr, sumsOfNothing.data()}, {3, 0, 0, 1, 0, 1, 1, 0}, 0, 3);
  EXPECT_EQ(sumsOfNothing, std::vector<float>(3, 0.0f)) << "rows without columns";
}

TEST(LaunchShapes, MoreParametersThanALaunchTakesAreRefused) {
  constexpr int kNumInputs = 200;
  std::string text = "cluster rank 1\n", body = "n0 = load 0 : f32\n";
  for (int i = 0; i < kNumInputs; ++i) text += formatText("operand {} f32 in contiguous\n", i);
  text += formatText("operand {} f32 out contiguous\n", kNumInputs);
  for (int i = 1; i < kNumInputs; ++i) {
    body += formatText("n{} = load {} : f32\nn{} = add n{}, n{} : f32\n", 2 * i - 1, i, 2 * i, 2 * i - 2, 2 * i - 1);
  }
  const Cluster sum = parse(text + body + formatText("store n{} -> {}\nend\n", 2 * kNumInputs - 2, kNumInputs));
  ASSERT_TRUE(sum.verify().isOk()) << sum.verify().toString();
  const Status refused = nvptx::planKernel(sum).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_EQ(refused.message(),
            "a GPU kernel over 201 tensors of rank 2 takes 4856 bytes of parameters, a launch at most 4096");
}

TEST(LaunchShapes, GridsGrowWithTheTensorUpToWhatAGpuHas) {
  auto plan = nvptx::planKernel(negation("f32"));
  ASSERT_TRUE(plan.hasValue());
  const int64_t integers[] = {0, 1, 1};
  auto shape = nvptx::shapeLaunch(*plan, integers, 0, kBeyond32Bits);
  ASSERT_TRUE(shape.hasValue()) << shape.status().toString();
  const int64_t perBlock = int64_t{nvptx::kFlatThreads} * plan->lanes;
  EXPECT_EQ(shape->numBlocks, (kBeyond32Bits + perBlock - 1) / perBlock);
  const Status tooMany = nvptx::shapeLaunch(*plan, integers, 0, (int64_t{1} << 42) + 1).status();
  EXPECT_EQ(tooMany.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(tooMany.message(), ::testing::HasSubstr("a grid has at most 2147483647"));
}

}  // namespace
}  // namespace agspeed::backends
