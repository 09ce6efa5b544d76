// SPDX-License-Identifier: Apache-2.0
// PTX of many kernels, assembled for each generation of GPUs if an assembler is available. The assembler must accept
// it, and no kernel may spill registers to memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>

#include "backends/nvptx/kernel_plan.h"
#include "compiler/import/importer.h"
#include "passes/pipeline.h"
#include "tests/backends/ptxas.h"
#include "tests/backends/random_cluster.h"
#include "tests/compiler/import/typical_call.h"

namespace agspeed::backends::nvptx {
namespace {

using compiler::Cluster;

constexpr Capability kCapabilities[] = {{8, 0}, {9, 0}, {10, 0}};
constexpr size_t kKernelsOfModule = 40;
constexpr int64_t kRandomClusters = 30;

std::string nameOf(Capability capability) { return formatText("sm_{}{}", capability.major, capability.minor); }

// Expects kernels named k<number>_<entry>, made from clusters[number], without spills.
void expectNoSpills(const std::vector<std::string>& texts, const std::vector<Cluster>& clusters, size_t numKernels,
                    Capability capability) {
  auto kernels = assemble(joinPtx(texts), capability);
  ASSERT_TRUE(kernels.hasValue()) << kernels.status().message();
  EXPECT_EQ(kernels->size(), numKernels);
  for (const AssembledKernel& kernel : *kernels) {
    bool isGood = kernel.spillBytes == 0 && kernel.stackBytes == 0 && kernel.registers <= kMaxRegisters;
    EXPECT_TRUE(isGood) << kernel.name << ": " << kernel.registers << " registers, " << kernel.spillBytes
                        << " bytes spilled, " << kernel.stackBytes << " bytes of stack\n"
                        << clusters[std::stoul(kernel.name.substr(1))].toString();
  }
}

void expectAllAssemble(const std::vector<Cluster>& clusters, Capability capability) {
  std::vector<std::string> texts;
  size_t numKernels = 0;
  for (size_t i = 0; i < clusters.size(); ++i) {
    auto ptx = emitPtx(clusters[i], formatText("k{}", i), capability, compiler::CompileOptions());
    ASSERT_TRUE(ptx.hasValue()) << ptx.status().toString() << "\n" << clusters[i].toString();
    texts.push_back(*ptx);
    numKernels += planKernel(clusters[i])->entries().size();
    bool isFull = texts.size() == kKernelsOfModule || i + 1 == clusters.size();
    if (!isFull) continue;
    expectNoSpills(texts, clusters, numKernels, capability);
    texts.clear();
    numKernels = 0;
  }
}

class Ptx : public ::testing::TestWithParam<Capability> {
 protected:
  void SetUp() override {
    if (!hasPtxTarget()) GTEST_SKIP() << "this build's LLVM has no NVPTX target";
    if (ptxasPath().empty()) GTEST_SKIP() << "there is no ptxas: install a CUDA toolkit or Triton's wheel";
  }
};

std::vector<Cluster> clustersOf(const std::string& graphSpec, Device device = {}) {
  auto graph = compiler::importGraphSpec(graphSpec, device);
  EXPECT_TRUE(graph.hasValue()) << graph.status().toString();
  if (!graph.hasValue()) return {};
  auto planned = passes::runPipeline(std::move(*graph), compiler::CompileOptions());
  EXPECT_TRUE(planned.hasValue()) << planned.status().toString();
  return planned.hasValue() ? planned->graph.clusters : std::vector<Cluster>{};
}

std::vector<Cluster> distinct(const std::vector<Cluster>& clusters) {
  std::set<std::string> seen;
  std::vector<Cluster> result;
  for (const Cluster& cluster : clusters) {
    if (seen.insert(cluster.toString()).second) result.push_back(cluster);
  }
  return result;
}

TEST_P(Ptx, EveryRowOfTheOperatorTableAssembles) {
  std::vector<Cluster> clusters;
  for (const compiler::OpRow& row : compiler::opTable()) {
    std::vector<Cluster> ofRow = clustersOf(compiler::testing::TypicalCall(row).spec(/*isRead=*/true).dump());
    clusters.insert(clusters.end(), ofRow.begin(), ofRow.end());
  }
  std::erase_if(clusters, [](const Cluster& cluster) { return cluster.window.has_value(); });  // not for GPUs
  ASSERT_GT(clusters.size(), 100u);
  expectAllAssemble(distinct(clusters), GetParam());
}

TEST_P(Ptx, RandomClustersAssemble) {
  const char* wanted = std::getenv("AG_FUZZ_COUNT");
  int64_t count = wanted ? std::strtoll(wanted, nullptr, 10) : kRandomClusters;
  std::vector<Cluster> clusters;
  for (int64_t seed = 1; seed <= count; ++seed) {
    clusters.push_back(testing::randomCluster(static_cast<uint64_t>(seed), testing::Arithmetic::kAny));
  }
  expectAllAssemble(clusters, GetParam());
}

// Another test captures the graphs and passes their folder.
TEST_P(Ptx, GraphsOfAFolderAssemble) {
  const char* folder = std::getenv("AG_GRAPH_SPECS");
  if (folder == nullptr) GTEST_SKIP() << "AG_GRAPH_SPECS names no folder: tests/python/native/test_ptx.py makes one";
  std::vector<Cluster> clusters;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(file.path().string());
    std::ifstream stream(file.path());
    const std::string spec((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    std::vector<Cluster> ofGraph = clustersOf(spec, {Device::Kind::kCuda, 0});
    clusters.insert(clusters.end(), ofGraph.begin(), ofGraph.end());
  }
  ASSERT_FALSE(clusters.empty());
  clusters = distinct(clusters);
  std::cout << clusters.size() << " distinct clusters\n";
  expectAllAssemble(clusters, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Capabilities, Ptx, ::testing::ValuesIn(kCapabilities),
                         [](const auto& info) { return nameOf(info.param); });

TEST(PtxText, RoundsEveryOperationByItself) {
  auto cluster = Cluster::parse(R"(cluster rank 0
    operand 0 f32 in contiguous
    operand 1 f32 out contiguous
    n0 = load 0 : f32
    n1 = mul n0, n0 : f32
    n2 = add n1, n0 : f32
    n3 = div n2, n0 : f32
    store n3 -> 1
    end)");
  ASSERT_TRUE(cluster.hasValue());
  auto ptx = emitPtx(*cluster, "k", {8, 0}, compiler::CompileOptions());
  if (!hasPtxTarget()) GTEST_SKIP() << ptx.status().message();
  ASSERT_TRUE(ptx.hasValue()) << ptx.status().toString();
  for (const char* wanted : {"ld.global.v4", "st.global.v4", "mul.rn.f32", "add.rn.f32", "div.rn.f32", ".maxntid 256",
                             ".maxnreg 128", "// cluster rank 0"}) {
    EXPECT_NE(ptx->find(wanted), std::string::npos) << wanted << " in\n" << *ptx;
  }
  for (const char* unwanted : {"fma", ".ftz", ".approx", "ld.b32", "ld.local"}) {
    EXPECT_EQ(ptx->find(unwanted), std::string::npos) << unwanted << " in\n" << *ptx;
  }
}

TEST(PtxText, GpusThatLlvmDoesNotKnowYetGetTheCodeOfEarlierOnes) {
  auto cluster = Cluster::parse(
      "cluster rank 0\noperand 0 f32 in contiguous\noperand 1 f32 out contiguous\n"
      "n0 = load 0 : f32\nn1 = neg n0 : f32\nstore n1 -> 1\nend\n");
  ASSERT_TRUE(cluster.hasValue());
  if (!hasPtxTarget()) GTEST_SKIP() << "this build's LLVM has no NVPTX target";
  auto ptx = emitPtx(*cluster, "k", {9, 9}, compiler::CompileOptions());
  ASSERT_TRUE(ptx.hasValue()) << ptx.status().toString();
  EXPECT_NE(ptx->find(".target sm_90"), std::string::npos) << *ptx;
}

TEST(PtxText, OldGpusAndUnknownFunctionsAreRefusedByName) {
  auto cluster = Cluster::parse(R"(cluster rank 0
    operand 0 f64 in contiguous
    operand 1 f64 out contiguous
    n0 = load 0 : f64
    n1 = acos n0 : f64
    store n1 -> 1
    end)");
  ASSERT_TRUE(cluster.hasValue());
  if (!hasPtxTarget()) GTEST_SKIP() << "this build's LLVM has no NVPTX target";
  EXPECT_EQ(emitPtx(*cluster, "k", {9, 0}, compiler::CompileOptions()).status().message(),
            "GPU kernels have no code for math.acos on f64");
  EXPECT_EQ(emitPtx(*cluster, "k", {7, 0}, compiler::CompileOptions()).status().message(),
            "GPU kernels need compute capability 7.5 or newer, not 7.0");
}

}  // namespace
}  // namespace agspeed::backends::nvptx
