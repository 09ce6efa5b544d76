// SPDX-License-Identifier: Apache-2.0
// The executor over a tensor library of std::vector<float>: its requests to a backend, their order and their time.
#include "runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "tests/runtime/program_builder.h"

namespace agspeed::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeFrame final : public TensorFrame {
 public:
  int64_t inputSize(int32_t input, int32_t dim) const override {
    return static_cast<int64_t>(tensors.at(input).size());
  }
  Status begin(const ResolvedProgram& program, std::byte* arena) override {
    resolved = &program;
    log.push_back("begin");
    return {};
  }
  void* data(ValueId value) override { return tensors.at(value).data(); }
  Status allocate(ValueId value) override {
    log.push_back("allocate " + std::to_string(value));
    tensors[value].resize(resolved->layouts[value].bytes / sizeof(float));
    return {};
  }
  Status call(size_t index) override {
    log.push_back("call " + std::to_string(index));
    return failCalls ? invalidArgument("shapes do not match") : Status();
  }
  void view(ValueId value) override { log.push_back("view " + std::to_string(value)); }
  void release(ValueId value) override { log.push_back("release " + std::to_string(value)); }
  void end() override { log.clear(); }
  StatusOr<std::byte*> allocateArena(int64_t bytes) override {
    if (bytes > 1000) return resourceExhausted("out of memory");
    arena.resize(static_cast<size_t>(bytes));
    return arena.data();
  }
  void* stream() const override { return currentStream; }

  const ResolvedProgram* resolved = nullptr;
  std::map<ValueId, std::vector<float>> tensors;
  std::vector<std::string> log;
  bool failCalls = false;
  std::vector<std::byte> arena;  ///< the arena of a Program on a device
  void* currentStream = nullptr;
};

class FakeBackend final : public TensorBackend {
 public:
  std::unique_ptr<TensorFrame> newFrame() const override {
    ++frames;
    return std::make_unique<FakeFrame>();
  }
  StatusOr<std::unique_ptr<PreparedCalls>> prepare(const ResolvedProgram& resolved) const override {
    ++prepared;
    return std::make_unique<PreparedCalls>();
  }
  void parallelFor(int64_t extent, int64_t grain, const KernelLaunch& launch) const override {
    for (int64_t begin = 0; begin < extent; begin += grain) launch.run(begin, std::min(extent, begin + grain));
  }
  bool isProfiling() const override { return isRecording; }
  Status profiled(const std::string& name, const std::function<Status()>& work) const override {
    const Status status = work();
    events.push_back(name + (status.isOk() ? "" : ": " + std::string(status.message())));
    return status;
  }
  bool isRecording = false;
  mutable std::vector<std::string> events;
  mutable std::atomic<int> frames{0};
  mutable std::atomic<int> prepared{0};
};

// y[i] = integers[0] * x[i]
void scaleKernel(void* const* pointers, const int64_t* integers, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(pointers[0]);
  auto* y = static_cast<float*>(pointers[1]);
  for (int64_t i = begin; i < end; ++i) y[i] = static_cast<float>(integers[0]) * x[i];
}

struct Fixture {
  std::shared_ptr<FakeBackend> backend = std::make_shared<FakeBackend>();
  std::unique_ptr<Executor> executor;

  explicit Fixture(Program program) {
    auto executable = std::make_shared<Executable>();
    executable->entries["forward"] = std::move(program);
    executable->kernels = std::make_shared<FunctionLibrary>(std::vector<KernelFunction>{&scaleKernel});
    auto made = Executor::create(executable, "forward", backend, std::make_shared<ArenaPool>());
    EXPECT_TRUE(made.hasValue()) << made.status().message();
    executor = std::move(made).value();
  }
};

FakeFrame& frameOf(const Executor::Lease& lease) { return static_cast<FakeFrame&>(lease.frame()); }

// x -> arena (times 2) -> fresh y (times s0), for a symbolic length.
Program scaleTwice(bool symbolic) {
  ProgramBuilder b;
  const SymExpr n = symbolic ? SymExpr::symbol(0) : SymExpr(4);
  const ValueId x = b.input(contiguous(DType::kF32, {n}));
  const ValueId t = b.arena(contiguous(DType::kF32, {n}), SymExpr(64));
  const ValueId y = b.fresh(contiguous(DType::kF32, {n}));
  b.program.arenaBytes = SymExpr(64) + n * 4;
  b.kernel(0, {x, t}, {SymExpr(2)}, n, SymExpr(3));
  b.kernel(0, {t, y}, {n}, n);
  b.program.outputs = {y};
  if (symbolic) b.program.symbols = {{0, 0}};
  return b.program;
}

TEST(Executor, RunsKernelsThroughTheArenaIntoFreshMemory) {
  Fixture f(scaleTwice(false));
  Executor::Lease lease = f.executor->lease();
  frameOf(lease).tensors[0] = {1, 2, 3, 4};
  ASSERT_TRUE(f.executor->run(lease).isOk());
  EXPECT_THAT(frameOf(lease).tensors[2], ElementsAre(8, 16, 24, 32));
  EXPECT_THAT(frameOf(lease).log, ElementsAre("begin", "allocate 2"));
}

TEST(Executor, AKernelBeginsAtTheOffsetsOfItsOperands) {
  ProgramBuilder b;
  const ValueId x = b.input(contiguous(DType::kF32, {SymExpr(4)}));
  const ValueId y = b.fresh(contiguous(DType::kF32, {SymExpr(4)}));
  b.kernel(0, {x, y}, {SymExpr(2)}, SymExpr(2));
  b.kernel(0, {x, y}, {SymExpr(3)}, SymExpr(2));
  std::get<KernelCall>(b.program.instructions[0].op).offsets = {SymExpr(1), SymExpr(2)};
  b.program.outputs = {y};
  Fixture f(b.program);
  Executor::Lease lease = f.executor->lease();
  frameOf(lease).tensors[0] = {1, 2, 3, 4};
  ASSERT_TRUE(f.executor->run(lease).isOk());
  EXPECT_THAT(frameOf(lease).tensors[1], ElementsAre(3, 6, 4, 6));
}

TEST(Executor, AViewIsMadeWithoutACall) {
  ProgramBuilder b;
  const ValueId x = b.input(contiguous(DType::kF32, {SymExpr(4)}));
  const ValueId v = b.view(x, contiguous(DType::kF32, {SymExpr(2)}), SymExpr(1));
  b.release(v);
  Fixture f(b.program);
  Executor::Lease lease = f.executor->lease();
  frameOf(lease).tensors[0].resize(4);
  ASSERT_TRUE(f.executor->run(lease).isOk());
  EXPECT_THAT(frameOf(lease).log, ElementsAre("begin", "view 1", "release 1"));
}

TEST(Executor, StaticProgramsAreResolvedOnce) {
  Fixture f(scaleTwice(false));
  for (int i = 0; i < 10; ++i) {
    Executor::Lease lease = f.executor->lease();
    frameOf(lease).tensors[0] = {1, 2, 3, 4};
    ASSERT_TRUE(f.executor->run(lease).isOk());
  }
  EXPECT_EQ(f.backend->prepared, 1);
  EXPECT_EQ(f.backend->frames, 1) << "frames are reused";
}

TEST(Executor, DynamicProgramsAreResolvedOncePerSize) {
  Fixture f(scaleTwice(true));
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (size_t n : {1, 5, 9}) {
      Executor::Lease lease = f.executor->lease();
      frameOf(lease).tensors[0].assign(n, 1.0f);
      ASSERT_TRUE(f.executor->run(lease).isOk());
      EXPECT_EQ(frameOf(lease).tensors[2], std::vector<float>(n, 2.0f * static_cast<float>(n)));
    }
  }
  EXPECT_EQ(f.backend->prepared, 3);
}

TEST(Executor, AFailingOperatorIsNamedWithItsOrigin) {
  ProgramBuilder b;
  const ValueId x = b.input(contiguous(DType::kF32, {SymExpr(4)}));
  b.call("aten.mm.default", {tensorArg(x)}, {b.external(contiguous(DType::kF32, {SymExpr(4)}))});
  b.release(1);
  Fixture f(b.program);
  Executor::Lease lease = f.executor->lease();
  frameOf(lease).tensors[0].resize(4);
  ASSERT_TRUE(f.executor->run(lease).isOk());
  EXPECT_THAT(frameOf(lease).log, ElementsAre("begin", "call 0", "release 1"));
  frameOf(lease).failCalls = true;
  EXPECT_THAT(f.executor->run(lease).message(), HasSubstr("aten.mm.default (call0): shapes do not match"));
}

TEST(Executor, AProfilerSeesLaunchesByNameWhileItRecords) {
  Program program = scaleTwice(false);
  std::get<KernelCall>(program.instructions[0].op).name = "double";
  std::get<KernelCall>(program.instructions[1].op).name = "scale";
  Fixture f(std::move(program));
  const auto run = [&f] {
    Executor::Lease lease = f.executor->lease();
    frameOf(lease).tensors[0] = {1, 2, 3, 4};
    ASSERT_TRUE(f.executor->run(lease).isOk());
    EXPECT_THAT(frameOf(lease).tensors[2], ElementsAre(8, 16, 24, 32));
  };
  run();
  EXPECT_THAT(f.backend->events, ElementsAre());
  f.backend->isRecording = true;
  run();
  EXPECT_THAT(f.backend->events, ElementsAre("double", "scale"));
}

// Runs queued work at once, and records the streams.
class DeviceLibrary final : public KernelLibrary {
 public:
  size_t numKernels() const override { return 1; }
  KernelFunction kernel(size_t) const override { return nullptr; }
  void launch(size_t, void* const*, const int64_t*, int64_t, int64_t) const override { ADD_FAILURE(); }
  Status enqueue(size_t, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end,
                 void* stream) const override {
    if (isLost) return internalError("the context is lost");
    scaleKernel(pointers, integers, begin, end);
    streams.push_back(stream);
    return {};
  }
  mutable std::vector<void*> streams;
  bool isLost = false;
};

struct DeviceFixture {
  std::shared_ptr<FakeBackend> backend = std::make_shared<FakeBackend>();
  std::shared_ptr<DeviceLibrary> library = std::make_shared<DeviceLibrary>();
  std::unique_ptr<Executor> executor;

  explicit DeviceFixture(Program program) {
    program.device = {Device::Kind::kCuda, 0};
    auto executable = std::make_shared<Executable>();
    executable->entries["forward"] = std::move(program);
    executable->kernels = library;
    executor = Executor::create(executable, "forward", backend, std::make_shared<ArenaPool>()).value();
  }
};

TEST(ExecutorOnDevice, KernelsAreQueuedWholeOnTheStreamOfTheCall) {
  DeviceFixture f(scaleTwice(true));
  int stream = 0;
  Executor::Lease lease = f.executor->lease();
  frameOf(lease).tensors[0] = {1, 2, 3, 4, 5, 6, 7};
  frameOf(lease).currentStream = &stream;
  ASSERT_TRUE(f.executor->run(lease).isOk());
  EXPECT_THAT(frameOf(lease).tensors[2], ElementsAre(14, 28, 42, 56, 70, 84, 98));
  EXPECT_THAT(f.library->streams, ElementsAre(&stream, &stream)) << "one launch for each kernel, whatever its grain";
}

TEST(ExecutorOnDevice, NoMemoryAndLostContextsAreErrorsOfTheCall) {
  DeviceFixture f(scaleTwice(true));
  Executor::Lease lease = f.executor->lease();
  frameOf(lease).tensors[0].resize(400);
  EXPECT_EQ(f.executor->run(lease).code(), StatusCode::kResourceExhausted);
  frameOf(lease).tensors[0].resize(4);
  f.library->isLost = true;
  const Status status = f.executor->run(lease);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("kernel0: the context is lost"));
}

TEST(ExecutorOnDevice, AStageOnAnotherStreamIsRefused) {
  ProgramBuilder b;
  const ValueId x = b.input(contiguous(DType::kF32, {4}));
  const ValueId first = b.fresh(contiguous(DType::kF32, {4})), second = b.fresh(contiguous(DType::kF32, {4}));
  b.kernel(0, {x, first}, {2}, 4);
  b.ready({first});
  b.kernel(0, {x, second}, {3}, 4);
  b.program.outputs = {first, second};
  DeviceFixture f(b.program);
  int other = 0;
  Executor::Lease lease = f.executor->lease();
  frameOf(lease).tensors[0] = {1, 2, 3, 4};
  ASSERT_TRUE(f.executor->run(lease).isOk());
  frameOf(lease).currentStream = &other;
  EXPECT_EQ(f.executor->resume(lease).code(), StatusCode::kUnsupported);
}

TEST(Executor, AnUnknownEntryIsNamed) {
  auto made = Executor::create(std::make_shared<Executable>(), "backward", std::make_shared<FakeBackend>(),
                               std::make_shared<ArenaPool>());
  EXPECT_THAT(made.status().message(), HasSubstr("no entry \"backward\""));
}

TEST(Executor, CallsOnSeveralThreadsDoNotMeet) {
  Fixture f(scaleTwice(true));
  const auto work = [&f](int thread) {
    const auto n = static_cast<size_t>(thread) + 1;
    for (int i = 0; i < 300; ++i) {
      Executor::Lease lease = f.executor->lease();
      frameOf(lease).tensors[0].assign(n, static_cast<float>(thread));
      ASSERT_TRUE(f.executor->run(lease).isOk());
      ASSERT_EQ(frameOf(lease).tensors[2], std::vector<float>(n, 2.0f * thread * static_cast<float>(n)));
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread <= 6; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace agspeed::runtime
