// SPDX-License-Identifier: Apache-2.0
// The suite that every registered backend must pass. GPU kernels run through a fake driver. The reference interpreter
// is the oracle; reference_test.cpp checks its arithmetic against hand-written values. A backend that does not compute
// only has to launch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backends/backend.h"
#include "backends/reference/backend.h"
#include "tests/backends/simt/fake_gpu.h"

namespace agspeed::backends {
namespace {

using compiler::Cluster;
using compiler::infoOf;
using compiler::PointwiseOp;

std::shared_ptr<const runtime::KernelLibrary> buildWith(const Backend& backend, const Cluster& cluster) {
  if (backend.device == Device::Kind::kCuda) simt::fake_gpu::open();
  runtime::CompileStats stats;
  compiler::CompileOptions options;
  options.device.kind = backend.device;
  auto library = backend.build({cluster}, options, stats);
  if (!library.hasValue()) {
    ADD_FAILURE() << library.status().toString() << "\n" << cluster.toString();
    return nullptr;
  }
  return *library;
}

// One launch: buffers of all operands and the integer table.
struct Launch {
  Cluster cluster;
  std::vector<int64_t> integers;
  std::vector<std::vector<float>> buffers;

  std::vector<std::vector<float>> run(const Backend& backend, const runtime::KernelLibrary& library,
                                      const std::vector<std::pair<int64_t, int64_t>>& slices) const {
    std::vector<std::vector<float>> result = buffers;
    std::vector<void*> pointers;
    for (std::vector<float>& buffer : result) pointers.push_back(buffer.data());
    for (auto [begin, end] : slices) {
      if (backend.device == Device::Kind::kCpu) {
        library.launch(0, pointers.data(), integers.data(), begin, end);
      } else {
        Status queued = library.enqueue(0, pointers.data(), integers.data(), begin, end, /*stream=*/nullptr);
        EXPECT_TRUE(queued.isOk()) << queued.toString();
      }
    }
    if (backend.device == Device::Kind::kCuda) simt::fake_gpu::synchronize(nullptr);
    return result;
  }
};

std::vector<float> randomFloats(size_t count, std::mt19937& random, float low = 0.1f, float high = 0.9f) {
  std::uniform_real_distribution<float> distribution(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

// Expects equal values up to a few units in the last place of the row's larger magnitude.
void expectClose(const std::vector<float>& expected, const std::vector<float>& actual, double tolerance) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    bool isSame = expected[i] == actual[i] || (std::isnan(expected[i]) && std::isnan(actual[i]));
    if (isSame) continue;
    ASSERT_NEAR(expected[i], actual[i], tolerance * std::max(1.0, std::abs(double(expected[i])))) << "element " << i;
  }
}

class Conformance : public ::testing::TestWithParam<Backend> {
 protected:
  void expectSameAsReference(const Launch& launch, const std::vector<std::pair<int64_t, int64_t>>& slices,
                             double tolerance = 2e-6) {
    auto library = buildWith(GetParam(), launch.cluster);
    auto oracle = buildWith(reference::kBackend, launch.cluster);
    ASSERT_TRUE(library && oracle);
    ASSERT_EQ(library->numKernels(), 1u);
    auto actual = launch.run(GetParam(), *library, slices);
    if (!GetParam().computes) return;
    auto expected = launch.run(reference::kBackend, *oracle, {{slices.front().first, slices.back().second}});
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE("operand " + std::to_string(i) + "\n" + launch.cluster.toString());
      expectClose(expected[i], actual[i], tolerance);
    }
  }
};

Cluster parse(const std::string& text) {
  StatusOr<Cluster> cluster = Cluster::parse(text);
  EXPECT_TRUE(cluster.hasValue()) << cluster.status().toString();
  return cluster.hasValue() ? *cluster : Cluster{};
}

// A flat kernel with one float operation.
Cluster flatCluster(PointwiseOp op) {
  int arity = infoOf(op).arity;
  std::string text = "cluster rank 0\n";
  std::string body;
  std::string inputs;
  for (int i = 0; i < arity; ++i) {
    text += "operand " + std::to_string(i) + " f32 in contiguous\n";
    body += "n" + std::to_string(i) + " = load " + std::to_string(i) + " : f32\n";
    inputs += (i ? ", n" : "n") + std::to_string(i);
  }
  std::string last = "n" + std::to_string(arity);
  text += "operand " + std::to_string(arity) + " f32 out contiguous\n" + body;
  text += last + " = " + std::string(infoOf(op).name) + " " + inputs + " : f32\n";
  return parse(text + "store " + last + " -> " + std::to_string(arity) + "\nend\n");
}

bool isFloatArithmetic(PointwiseOp op) {
  const compiler::OpInfo& info = infoOf(op);
  if (info.isReduction || info.arity == 0) return false;
  std::vector<DType> inputs(static_cast<size_t>(info.arity), DType::kF32);
  bool isInteger = op == PointwiseOp::kBitwiseNot || (op >= PointwiseOp::kBitwiseAnd && op <= PointwiseOp::kShiftRight);
  return !isInteger && compiler::checkTyping(op, DType::kF32, inputs).isOk();
}

TEST_P(Conformance, ComputesEveryFloatOperation) {
  std::mt19937 random(7);
  constexpr int64_t kSize = 133;  // not a multiple of any vector width
  for (int i = 0; i <= static_cast<int>(PointwiseOp::kFma); ++i) {
    auto op = static_cast<PointwiseOp>(i);
    if (!isFloatArithmetic(op)) continue;
    Launch launch{flatCluster(op), {kSize}, {}};
    for (int operand = 0; operand <= infoOf(op).arity; ++operand) {
      launch.integers.push_back(1);
      float shift = op == PointwiseOp::kAcosh ? 1.0f : 0.0f;
      launch.buffers.push_back(randomFloats(kSize, random, 0.1f + shift, 0.9f + shift));
    }
    expectSameAsReference(launch, {{0, 50}, {50, 51}, {51, kSize}});
  }
}

TEST_P(Conformance, ReducesRowsAndBroadcastsThem) {
  std::mt19937 random(11);
  Cluster softmax = parse(R"(cluster rank 1
    operand 0 f32 in contiguous
    operand 1 f32 out contiguous
    operand 2 f32 out broadcast row
    n0 = load 0 : f32
    n1 = reduce_max n0 : f32 row
    n2 = sub n0, n1 : f32
    n3 = exp n2 : f32
    n4 = reduce_sum n3 : f32 row
    n5 = div n3, n4 : f32
    store n5 -> 1
    store n4 -> 2
    end)");
  for (int64_t columns : {1, 3, 16, 17, 100}) {
    SCOPED_TRACE("columns " + std::to_string(columns));
    Launch launch{softmax, {5, columns, columns, 1, columns, 1, 1, 0}, {}};
    launch.buffers = {randomFloats(size_t(5 * columns), random, -4, 4), randomFloats(size_t(5 * columns), random),
                      randomFloats(5, random)};
    expectSameAsReference(launch, {{0, 2}, {2, 5}});
  }
}

TEST_P(Conformance, SumsRowsInBlocksBesideRowWork) {
  std::mt19937 random(12);
  // Per row: x minus its mean is stored. The rows of each block sum both x minus its mean and x itself.
  Cluster cluster = parse(R"(cluster rank 2
    operand 0 f32 in contiguous
    operand 1 f32 in broadcast row
    operand 2 f32 out contiguous
    operand 3 f32 out contiguous block
    operand 4 f32 out contiguous block
    n0 = load 0 : f32
    n1 = load 1 : f32 row
    n2 = reduce_sum n0 : f32 row
    n3 = mul n1, n2 : f32 row
    n4 = sub n0, n3 : f32
    n5 = sum_rows n4 : f32
    n6 = sum_rows n0 : f32
    store n4 -> 2
    store n5 -> 3
    store n6 -> 4
    end)");
  constexpr int64_t kRows = 3 * 5;
  for (int64_t columns : {1, 16, 39}) {
    for (int64_t blockRows : {1, 4, 15, 20}) {
      SCOPED_TRACE("columns " + std::to_string(columns) + ", rows per block " + std::to_string(blockRows));
      int64_t c = columns;
      int64_t blocks = (kRows + blockRows - 1) / blockRows;
      Launch launch{cluster, {3, 5, c, 5 * c, c, 1, 5, 1, 0, 5 * c, c, 1, c, 0, 1, c, 0, 1, blockRows}, {}};
      launch.buffers = {randomFloats(size_t(kRows * c), random, -1, 1), randomFloats(kRows, random),
                        randomFloats(size_t(kRows * c), random), randomFloats(size_t(blocks * c), random),
                        randomFloats(size_t(blocks * c), random)};
      if (blocks == 1) {
        expectSameAsReference(launch, {{0, 1}}, 1e-5);
      } else {
        expectSameAsReference(launch, {{0, 1}, {1, blocks}}, 1e-5);
      }
    }
  }
}

TEST_P(Conformance, WalksOuterDimensionsStridesAndBroadcasts) {
  std::mt19937 random(13);
  Cluster add = parse(R"(cluster rank 2
    operand 0 f32 in strided
    operand 1 f32 in broadcast row
    operand 2 f32 in contiguous
    operand 3 f32 out contiguous
    n0 = load 0 : f32
    n1 = load 1 : f32 row
    n2 = load 2 : f32
    n3 = add n0, n1 : f32
    n4 = mul n3, n2 : f32
    store n4 -> 3
    end)");
  // [3, 4, 9]: a transposed input, a value per second dimension, a vector, a dense output.
  Launch launch{add, {3, 4, 9, 36, 1, 4, 0, 1, 0, 0, 0, 1, 36, 9, 1}, {}};
  launch.buffers = {randomFloats(108, random), randomFloats(4, random), randomFloats(9, random),
                    randomFloats(108, random)};
  expectSameAsReference(launch, {{0, 5}, {5, 12}});
}

TEST_P(Conformance, SelectsAndCompares) {
  std::mt19937 random(17);
  Cluster threshold = parse(R"(cluster rank 0
    operand 0 f32 in contiguous
    operand 1 f32 out contiguous
    n0 = load 0 : f32
    n1 = constant 0.5 : f32 row
    n2 = constant 0 : f32 row
    n3 = gt n0, n1 : bool
    n4 = isnan n0 : bool
    n5 = logical_or n3, n4 : bool
    n6 = where n5, n0, n2 : f32
    store n6 -> 1
    end)");
  Launch launch{threshold, {37, 1, 1}, {randomFloats(37, random), randomFloats(37, random)}};
  launch.buffers[0][3] = NAN;
  launch.buffers[0][4] = INFINITY;
  expectSameAsReference(launch, {{0, 37}});
}

TEST_P(Conformance, RoundsSmallFloatsAtCasts) {
  Cluster roundTrip = parse(R"(cluster rank 0
    operand 0 f32 in contiguous
    operand 1 f32 out contiguous
    n0 = load 0 : f32
    n1 = cast n0 : bf16
    n2 = cast n1 : f32
    store n2 -> 1
    end)");
  std::mt19937 random(19);
  Launch launch{roundTrip, {45, 1, 1}, {randomFloats(45, random, -100, 100), randomFloats(45, random)}};
  expectSameAsReference(launch, {{0, 45}}, /*tolerance=*/0);
}

TEST_P(Conformance, LaunchesOverNothing) {
  Launch launch{flatCluster(PointwiseOp::kExp), {0, 1, 1}, {{}, {}}};
  expectSameAsReference(launch, {{0, 0}});
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, ::testing::ValuesIn(backends().begin(), backends().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Registry, NamesTheKnownTargetsWhenOneIsUnknown) {
  EXPECT_EQ(findBackend("tpu", Device{}).status().message(),
            "there is no target \"tpu\"; known are cpu, nvptx, null, reference");
}

}  // namespace
}  // namespace agspeed::backends
