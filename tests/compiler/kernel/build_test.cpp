// SPDX-License-Identifier: Apache-2.0
// buildKernels(): sharing, errors, options and threads; and the pass funnel behind it.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kernel_test_support.h"

namespace agspeed::compiler::testing {
namespace {

namespace fs = std::filesystem;
using Op = PointwiseOp;
constexpr DType kF32 = DType::kF32;

Cluster makeUnary(Op op, DType dtype) {
  ClusterBuilder builder(0);
  builder.store(builder.node(op, dtype, {builder.load(dtype)}));
  return builder.cluster();
}

float apply(runtime::KernelFunction kernel, float x) {
  float y = 0;
  void* pointers[] = {&x, &y};
  int64_t integers[] = {1, 1, 1};
  kernel(pointers, integers, 0, 1);
  return y;
}

auto build(const std::vector<Cluster>& clusters, const CompileOptions& options = {}) {
  runtime::CompileStats stats;
  return buildKernels(clusters, options, stats);
}

TEST(BuildKernels, EqualClustersShareOneCompilation) {
  auto library = build({makeUnary(Op::kNeg, kF32), makeUnary(Op::kExp, kF32), makeUnary(Op::kNeg, kF32)});
  ASSERT_TRUE(library.hasValue()) << library.status().toString();
  EXPECT_EQ(library.value()->numKernels(), 3u);
  EXPECT_EQ(library.value()->kernel(0), library.value()->kernel(2));
}

TEST(BuildKernels, NoClustersGiveAnEmptyLibrary) {
  auto library = build({});
  ASSERT_TRUE(library.hasValue()) << library.status().toString();
  EXPECT_EQ(library.value()->numKernels(), 0u);
}

TEST(BuildKernels, UnsupportedPairsAreNamed) {
  auto library = build({makeUnary(Op::kExp, DType::kI32)});
  ASSERT_FALSE(library.hasValue());
  EXPECT_EQ(library.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(library.status().message().find("exp on i32"), std::string::npos) << library.status().toString();
}

TEST(BuildKernels, InvalidClustersAreRejected) {
  auto library = build({Cluster()});
  ASSERT_FALSE(library.hasValue());
  EXPECT_EQ(library.status().code(), StatusCode::kInvalidArgument);
}

TEST(BuildKernels, WorksFromSeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::vector<float> results(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      auto library = build({makeUnary(i % 2 ? Op::kExp : Op::kSqrt, kF32)});
      if (library.hasValue()) results[i] = apply(library.value()->kernel(0), 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(results[i], i % 2 ? std::exp(4.0f) : 2.0f, 1e-4f);
}

TEST(PassFunnel, ADisabledFormulaPassLeavesLibm) {
  CompileOptions options;
  options.disabledPasses = {"expand-math"};
  auto library = build({makeUnary(Op::kTanh, kF32)}, options);
  ASSERT_TRUE(library.hasValue()) << library.status().toString();
  EXPECT_EQ(apply(library.value()->kernel(0), 0.5f), std::tanh(0.5f));
}

class DumpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "agspeed-dump-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    options_.dumpDir = pattern;
  }
  void TearDown() override { fs::remove_all(options_.dumpDir); }

  // The text of the one file whose name ends with the suffix.
  std::string fileEndingWith(const std::string& suffix) const {
    for (const auto& file : fs::directory_iterator(options_.dumpDir)) {
      if (!file.path().string().ends_with(suffix)) continue;
      std::ifstream stream(file.path());
      return std::string(std::istreambuf_iterator<char>(stream), {});
    }
    return "(no file)";
  }

  CompileOptions options_;
};

TEST_F(DumpTest, ShowsEachPassAndWhichDidNothing) {
  ASSERT_TRUE(build({makeUnary(Op::kExp, kF32)}, options_).hasValue());
  EXPECT_NE(fileEndingWith(".0-emit.mlir").find("math.exp"), std::string::npos);
  EXPECT_EQ(fileEndingWith(".1-expand-math.mlir").find("math.exp "), std::string::npos);
  EXPECT_EQ(fileEndingWith(".2-math-to-libm.mlir"), "(unchanged)\n");
  EXPECT_NE(fileEndingWith(".3-lower-to-llvm.mlir").find("llvm.func"), std::string::npos);
  EXPECT_NE(fileEndingWith(".timings.txt").find("math-to-libm "), std::string::npos);
}

TEST_F(DumpTest, ShowsLlvmIrAssemblyAndObject) {
  ASSERT_TRUE(build({makeUnary(Op::kExp, kF32)}, options_).hasValue());
  EXPECT_NE(fileEndingWith(".ll").find("define void @ag_kernel_exp_"), std::string::npos);
  EXPECT_NE(fileEndingWith(".s").find("ag_kernel_exp_"), std::string::npos);
  EXPECT_EQ(fileEndingWith(".o").substr(1, 3), "ELF");
}

TEST_F(DumpTest, ShowsAllStagesOfAKernelInTheCache) {
  options_.cacheDir = options_.dumpDir + "/cache";
  CompileOptions withoutDump = options_;
  withoutDump.dumpDir.clear();
  ASSERT_TRUE(build({makeUnary(Op::kExp, kF32)}, withoutDump).hasValue());
  ASSERT_TRUE(build({makeUnary(Op::kExp, kF32)}, options_).hasValue());
  EXPECT_NE(fileEndingWith(".ll").find("define"), std::string::npos);
}

TEST(KernelLibrary, KnowsTheSizeOfItsMachineCode) {
  auto library = build({makeUnary(Op::kNeg, kF32), makeUnary(Op::kExp, kF32)}, CompileOptions());
  ASSERT_TRUE(library.hasValue()) << library.status().toString();
  EXPECT_GT(library.value()->codeBytes(0), 0u);
  EXPECT_GT(library.value()->codeBytes(1), library.value()->codeBytes(0)) << "an exponential is longer than a sign";
}

TEST_F(DumpTest, AFailingPassNamesAReproducer) {
  options_.disabledPasses = {"expand-math", "math-to-libm"};
  auto library = build({makeUnary(Op::kErf, kF32)}, options_);
  ASSERT_FALSE(library.hasValue());
  EXPECT_EQ(library.status().code(), StatusCode::kInternal);
  EXPECT_NE(library.status().message().find("lower-to-llvm"), std::string::npos) << library.status().toString();
  EXPECT_NE(fileEndingWith(".reproducer.ag-cluster").find("erf n0"), std::string::npos);
}

}  // namespace
}  // namespace agspeed::compiler::testing
