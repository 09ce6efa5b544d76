// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels on the SIMT runner: random clusters against the reference, equal bits for all slices, outputs that
// overwrite inputs, and mutants of the generated code that must be caught. AG_FUZZ_SEED reruns one seed, AG_FUZZ_COUNT
// sets the number of clusters.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "backends/nvptx/kernel_plan.h"
#include "backends/nvptx/ptx.h"
#include "backends/reference/backend.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "tests/backends/random_cluster.h"
#include "tests/backends/simt/host_module.h"
#include "tests/backends/simt/simt_backend.h"

namespace agspeed::backends {
namespace {

using compiler::Cluster;
using testing::Arithmetic;
using testing::RandomLaunch;

using Library = std::shared_ptr<const runtime::KernelLibrary>;

int64_t fromEnvironment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : fallback;
}

Library buildWith(const Backend& backend, const Cluster& cluster) {
  runtime::CompileStats stats;
  auto library = backend.build({cluster}, compiler::CompileOptions(), stats);
  EXPECT_TRUE(library.hasValue()) << library.status().toString() << "\n" << cluster.toString();
  return library.hasValue() ? *library : nullptr;
}

// Describes what is wrong with the kernels of a random cluster; empty if nothing is.
std::string wrongWith(uint64_t seed) {
  Cluster cluster = testing::randomCluster(seed, Arithmetic::kExact);
  if (Status status = cluster.verify(); !status.isOk()) return status.toString() + "\n" + cluster.toString();
  Library library = buildWith(simt::kBackend, cluster);
  Library oracle = buildWith(reference::kBackend, cluster);
  if (!library || !oracle) return "it does not compile\n" + cluster.toString();
  RandomLaunch actual(cluster, seed);
  RandomLaunch expected = actual;
  RandomLaunch sliced = actual;
  actual.run(*library);
  expected.run(*oracle);
  std::string difference = actual.differenceFrom(expected);
  if (!difference.empty()) return difference + "\n" + actual.describe();
  int64_t cut = actual.extent() / 3;
  sliced.run(*library, cut, actual.extent());
  sliced.run(*library, 0, cut);
  return sliced.hasSameBytes(actual) ? "" : "slices change bits\n" + actual.describe();
}

// Runs on every core, because compiling takes most of the time.
TEST(Simt, RandomClustersAgreeWithTheReference) {
  const int64_t first = fromEnvironment("AG_FUZZ_SEED", 1);
  const int64_t end = first + fromEnvironment("AG_FUZZ_COUNT", std::getenv("AG_FUZZ_SEED") ? 1 : 300);
  std::atomic<int64_t> next = first;
  const auto work = [&] {
    for (int64_t seed = next++; seed < end && !::testing::Test::HasFailure(); seed = next++) {
      EXPECT_EQ(wrongWith(static_cast<uint64_t>(seed)), "") << "AG_FUZZ_SEED=" << seed;
    }
  };
  std::vector<std::jthread> workers(std::max(1u, std::thread::hardware_concurrency()));
  for (std::jthread& worker : workers) worker = std::jthread(work);
}

Cluster parse(const char* text) {
  StatusOr<Cluster> cluster = Cluster::parse(text);
  EXPECT_TRUE(cluster.hasValue()) << cluster.status().toString();
  return cluster.hasValue() ? *cluster : Cluster{};
}

// x minus its row's mean, over its largest magnitude: two phases of reductions.
Cluster twoPhases() {
  return parse(R"(cluster rank 1
    operand 0 f32 in contiguous
    operand 1 f32 out contiguous
    n0 = load 0 : f32
    n1 = reduce_sum n0 : f32 row
    n2 = constant 0.000244140625 : f32 row
    n3 = mul n1, n2 : f32 row
    n4 = sub n0, n3 : f32
    n5 = abs n4 : f32
    n6 = reduce_max n5 : f32 row
    n7 = div n4, n6 : f32
    store n7 -> 1
    end)");
}

constexpr int64_t kRows = 3;
constexpr int64_t kColumns = 4096;

// One value of each row is the largest by far, so a thread that misses it computes wrong results.
std::vector<float> input(int64_t columns) {
  std::vector<float> values(static_cast<size_t>(kRows * columns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) - 31.0f;
  for (int64_t row = 0; row < kRows; ++row) values[static_cast<size_t>(row * columns + row * columns / 3)] = 1000;
  return values;
}

struct Outcome {
  Status status;
  std::vector<float> output;
};

// Runs twoPhases() over kRows rows after changing the kernel's code.
Outcome runMutant(const simt::Mutation& mutate, nvptx::Entry entry, int64_t columns, uint32_t threads) {
  auto module = simt::compileForHost(twoPhases(), "kernel", mutate);
  if (!module.hasValue()) return {module.status(), {}};
  std::vector<float> x = input(columns);
  std::vector<float> y(x.size());
  int64_t parameters[] = {reinterpret_cast<int64_t>(x.data()),
                          reinterpret_cast<int64_t>(y.data()),
                          kRows,
                          columns,
                          columns,
                          1,
                          columns,
                          1,
                          0,
                          kRows};
  Status status = (*module)->launch(nvptx::entryName("kernel", entry), {kRows, 1, 1}, {threads, 1, 1}, 0, parameters);
  return {status, y};
}

std::vector<float> expectedOutput(int64_t columns) {
  std::vector<float> x = input(columns);
  std::vector<float> y(x.size());
  void* pointers[] = {x.data(), y.data()};
  int64_t integers[] = {kRows, columns, columns, 1, columns, 1};
  buildWith(reference::kBackend, twoPhases())->launch(0, pointers, integers, 0, kRows);
  return y;
}

bool isRight(const Outcome& run, const std::vector<float>& expected) {
  if (!run.status.isOk()) return false;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!(std::abs(run.output[i] - expected[i]) <= 1e-5f * std::max(1.0f, std::abs(expected[i])))) return false;
  }
  return true;
}

std::vector<llvm::CallInst*> callsOf(llvm::Module& module, const std::string& function, const char* intrinsic) {
  std::vector<llvm::CallInst*> calls;
  for (llvm::BasicBlock& block : *module.getFunction(function)) {
    for (llvm::Instruction& instruction : block) {
      auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      bool isWanted = call && call->getCalledFunction() && call->getCalledFunction()->getName() == intrinsic;
      if (isWanted) calls.push_back(call);
    }
  }
  return calls;
}

constexpr const char* kBarrier = "llvm.nvvm.barrier.cta.sync.aligned.all";
constexpr const char* kShuffle = "llvm.nvvm.shfl.sync.bfly.i32";

class Mutants : public ::testing::TestWithParam<nvptx::Entry> {
 protected:
  std::string function() const { return nvptx::entryName("kernel", GetParam()); }
  int64_t columns() const { return GetParam() == nvptx::Entry::kLoop ? 5 * kColumns : kColumns; }
  Outcome run(const simt::Mutation& mutate) const {
    return runMutant(mutate, GetParam(), columns(), nvptx::kMaxGroupThreads);
  }

  size_t count(const char* intrinsic) const {
    size_t calls = 0;
    run([&](llvm::Module& module) { calls = callsOf(module, function(), intrinsic).size(); });
    return calls;
  }
};

TEST_P(Mutants, TheKernelItselfIsRight) { EXPECT_TRUE(isRight(run(nullptr), expectedOutput(columns()))); }

TEST_P(Mutants, EveryMissingBarrierIsCaught) {
  std::vector<float> expected = expectedOutput(columns());
  size_t numBarriers = count(kBarrier);
  ASSERT_EQ(numBarriers, 4u) << "two a phase";
  // The barrier after the last reads of shared memory protects nothing, because no phase follows.
  for (size_t i = 0; i + 1 < numBarriers; ++i) {
    Outcome mutant = run([&](llvm::Module& module) { callsOf(module, function(), kBarrier)[i]->eraseFromParent(); });
    EXPECT_FALSE(isRight(mutant, expected)) << "barrier " << i;
  }
}

TEST_P(Mutants, EveryWrongLaneIsCaught) {
  std::vector<float> expected = expectedOutput(columns());
  size_t numShuffles = count(kShuffle);
  ASSERT_GE(numShuffles, 10u);
  for (size_t i = 0; i < numShuffles; ++i) {
    Outcome mutant = run([&](llvm::Module& module) {
      llvm::CallInst* call = callsOf(module, function(), kShuffle)[i];
      call->setArgOperand(2, llvm::ConstantInt::get(call->getArgOperand(2)->getType(), 0));
    });
    EXPECT_FALSE(isRight(mutant, expected)) << "shuffle " << i;
  }
}

TEST_P(Mutants, ABarrierThatSomeThreadsMissIsAnError) {
  Outcome mutant = run([&](llvm::Module& module) {
    // Only thread 0 reaches the first barrier.
    llvm::CallInst* barrier = callsOf(module, function(), kBarrier)[0];
    llvm::IRBuilder<> builder(barrier);
    llvm::Value* thread = builder.CreateCall(module.getFunction("llvm.nvvm.read.ptx.sreg.tid.x"));
    llvm::Value* isFirst = builder.CreateICmpEQ(thread, builder.getInt32(0));
    llvm::Instruction* end = llvm::SplitBlockAndInsertIfThen(isFirst, barrier, /*Unreachable=*/false);
    barrier->moveBefore(end->getIterator());
  });
  EXPECT_NE(mutant.status.message().find("waits at"), std::string::npos) << mutant.status.toString();
}

INSTANTIATE_TEST_SUITE_P(Entries, Mutants, ::testing::Values(nvptx::Entry::kResident, nvptx::Entry::kLoop),
                         [](const auto& info) {
                           return info.param == nvptx::Entry::kLoop ? std::string("Loop") : std::string("Resident");
                         });

TEST(Simt, AnOutputMayBeAnInput) {
  Library library = buildWith(simt::kBackend, twoPhases());
  for (int64_t columns : {int64_t{1}, int64_t{16}, int64_t{100}, kColumns, 3 * kColumns}) {
    std::vector<float> x = input(columns);
    std::vector<float> apart(x.size());
    std::vector<float> shared = x;
    int64_t integers[] = {kRows, columns, columns, 1, columns, 1};
    void* first[] = {x.data(), apart.data()};
    void* second[] = {shared.data(), shared.data()};
    library->launch(0, first, integers, 0, kRows);
    library->launch(0, second, integers, 0, kRows);
    EXPECT_EQ(apart, shared) << "columns " << columns;
  }
}

TEST(Simt, PtxIsLoadedByTheClusterItNames) {
  auto ptx = nvptx::emitPtx(twoPhases(), "ag_kernel_1", {9, 0}, compiler::CompileOptions());
  if (!nvptx::hasPtxTarget()) GTEST_SKIP() << ptx.status().message();
  ASSERT_TRUE(ptx.hasValue()) << ptx.status().toString();
  auto module = simt::loadModule(*ptx);
  ASSERT_TRUE(module.hasValue()) << module.status().toString();
  EXPECT_EQ((*module)->functions(), (std::vector<std::string>{"ag_kernel_1_resident", "ag_kernel_1_loop"}));
  EXPECT_EQ((*module)->parameterBytes("ag_kernel_1_loop"), 80u);
  EXPECT_FALSE(simt::loadModule(".version 7.0").hasValue());
}

}  // namespace
}  // namespace agspeed::backends
