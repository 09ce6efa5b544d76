// SPDX-License-Identifier: Apache-2.0
// The loader of CUDA code on a fake driver: order of launches, waits, times, capture, and the result of each error.
#include "runtime/device/cuda/device.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/device/fake_cuda.h"

namespace agspeed::runtime::device::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kNumValues = 16;
constexpr const char* kPtx = R"(.version 8.0
.target sm_80
.visible .entry scale(
  .param .u64 target,
  .param .u64 source,
  .param .f32 factor,
  .param .u32 count
)
{ ret; }
)";

template <typename Function>
Function control(const char* name) {
  static void* const library = dlopen(FAKE_CUDA, RTLD_NOW);
  AG_CHECK(library != nullptr, "the fake driver is built beside this test");
  return reinterpret_cast<Function>(dlsym(library, name));
}

void reset(int numDevices = 1, int capability = 90, int computeMode = 0) {
  control<decltype(&fakeCudaReset)>("fakeCudaReset")(numDevices, capability, computeMode);
}
void fail(const char* symbol, int result, int after = 0) {
  control<decltype(&fakeCudaFail)>("fakeCudaFail")(symbol, result, after);
}
int64_t numAlive() { return control<decltype(&fakeCudaNumAlive)>("fakeCudaNumAlive")(); }
int64_t numRun() { return control<decltype(&fakeCudaNumRun)>("fakeCudaNumRun")(); }

// target = factor * source + 1
int runScale(const FakeCudaLaunch* launch, void*) {
  auto* target = *static_cast<float**>(launch->arguments[0]);
  const auto* source = *static_cast<const float**>(launch->arguments[1]);
  const float factor = *static_cast<float*>(launch->arguments[2]);
  const uint32_t count = *static_cast<uint32_t*>(launch->arguments[3]);
  for (uint32_t i = 0; i < count; ++i) target[i] = factor * source[i] + 1;
  return kSuccess;
}

struct Gpu {
  std::shared_ptr<const CudaDriver> driver;
  std::shared_ptr<const CudaDevice> device;
  std::shared_ptr<const CudaModule> module;
  CudaKernel scale;
};

Gpu open() {
  control<decltype(&fakeCudaSetHook)>("fakeCudaSetHook")(runScale, nullptr);
  Gpu gpu;
  gpu.driver = CudaDriver::open(FAKE_CUDA).value();
  gpu.device = CudaDevice::open(gpu.driver, 0).value();
  gpu.module = gpu.device->load(kPtx).value();
  gpu.scale = gpu.module->kernel("scale").value();
  return gpu;
}

Status scale(const Gpu& gpu, uint64_t target, uint64_t source, float factor, void* stream, uint32_t blocks = 1) {
  uint32_t count = kNumValues;
  void* const arguments[] = {&target, &source, &factor, &count};
  return gpu.module->launch(gpu.scale, {.grid = {blocks, 1, 1}, .block = {32, 1, 1}}, stream, arguments);
}

class Device : public ::testing::Test {
 protected:
  void SetUp() override { reset(); }
};

TEST_F(Device, LaunchesOnTheCallersStreamAndGivesEverythingBack) {
  {
    const Gpu gpu = open();
    const CudaDriver& cuda = *gpu.driver;
    void* stream = nullptr;
    uint64_t data = 0;
    ASSERT_EQ(cuda.cuStreamCreate(&stream, 0), kSuccess);
    ASSERT_EQ(cuda.cuMemAlloc_v2(&data, kNumValues * sizeof(float)), kSuccess);
    std::vector<float> values(kNumValues, 3);
    cuda.cuMemcpyHtoDAsync_v2(data, values.data(), kNumValues * sizeof(float), stream);
    ASSERT_TRUE(scale(gpu, data, data, 2, stream).isOk());
    cuda.cuMemcpyDtoHAsync_v2(values.data(), data, kNumValues * sizeof(float), stream);
    EXPECT_EQ(values[0], 3) << "nothing runs before a wait";
    ASSERT_EQ(cuda.cuStreamSynchronize(stream), kSuccess);
    EXPECT_EQ(values, std::vector<float>(kNumValues, 7));
    EXPECT_EQ(gpu.scale.spilledBytes, 0);
    cuda.cuMemFree_v2(data);
    cuda.cuStreamDestroy_v2(stream);
  }
  EXPECT_EQ(numAlive(), 0);
}

TEST_F(Device, TimesAreKnownOnceTheWorkIsDone) {
  const Gpu gpu = open();
  const CudaDriver& cuda = *gpu.driver;
  control<decltype(&fakeCudaSetCost)>("fakeCudaSetCost")(0.004);
  void *begin = nullptr, *end = nullptr;
  uint64_t data = 0;
  cuda.cuEventCreate(&begin, 0);
  cuda.cuEventCreate(&end, 0);
  cuda.cuMemAlloc_v2(&data, kNumValues * sizeof(float));
  cuda.cuEventRecord(begin, nullptr);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(scale(gpu, data, data, 1, nullptr).isOk());
  cuda.cuEventRecord(end, nullptr);
  float milliseconds = 0;
  EXPECT_EQ(cuda.cuEventQuery(end), kNotReady);
  EXPECT_EQ(cuda.cuEventElapsedTime(&milliseconds, begin, end), kNotReady);
  cuda.cuStreamSynchronize(nullptr);
  EXPECT_EQ(cuda.cuEventQuery(end), kSuccess);
  ASSERT_EQ(cuda.cuEventElapsedTime(&milliseconds, begin, end), kSuccess);
  EXPECT_FLOAT_EQ(milliseconds, 12);
}

TEST_F(Device, AnEmptyGridLaunchesNothing) {
  const Gpu gpu = open();
  EXPECT_TRUE(scale(gpu, 0, 0, 1, nullptr, /*blocks=*/0).isOk());
  gpu.driver->cuStreamSynchronize(nullptr);
  EXPECT_EQ(numRun(), 0);
}

TEST_F(Device, ALaunchIntoACaptureRunsNothingNow) {
  const Gpu gpu = open();
  void* stream = nullptr;
  gpu.driver->cuStreamCreate(&stream, 0);
  control<decltype(&fakeCudaCapture)>("fakeCudaCapture")(stream, 1);
  int isCapturing = 0;
  gpu.driver->cuStreamIsCapturing(stream, &isCapturing);
  EXPECT_EQ(isCapturing, 1);
  EXPECT_TRUE(scale(gpu, 0, 0, 1, stream).isOk());
  EXPECT_EQ(gpu.driver->cuStreamSynchronize(stream), kSuccess);
  EXPECT_EQ(numRun(), 0);
}

TEST_F(Device, NoDriverNoGpuAndOldGpusAreSentences) {
  EXPECT_THAT(CudaDriver::open("libno_such_driver.so.1").status().message(), HasSubstr("no NVIDIA driver"));
  EXPECT_EQ(CudaDriver::open("libm.so.6").status().code(), StatusCode::kUnsupported);
  reset(/*numDevices=*/0);
  const Status none = CudaDriver::open(FAKE_CUDA).status();
  EXPECT_EQ(none.code(), StatusCode::kUnavailable) << none.message();
  reset(1, /*capability=*/70);
  const Status old = CudaDevice::open(CudaDriver::open(FAKE_CUDA).value(), 0).status();
  EXPECT_EQ(old.code(), StatusCode::kUnsupported);
  EXPECT_THAT(old.message(), HasSubstr("sm_70"));
  reset();
  const auto driver = CudaDriver::open(FAKE_CUDA).value();
  EXPECT_EQ(CudaDevice::open(driver, 1).status().code(), StatusCode::kUnavailable);
  fail("cuDevicePrimaryCtxRetain", kDevicesUnavailable);  // as in exclusive compute mode
  EXPECT_EQ(CudaDevice::open(driver, 0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(numAlive(), 0);
}

TEST_F(Device, EachErrorBecomesWhatCallersActOn) {
  struct Case {
    const char* symbol;
    int result;
    StatusCode code;
  };
  const Case cases[] = {{"cuModuleLoadDataEx", kInvalidPtx, StatusCode::kUnsupported},
                        {"cuModuleLoadDataEx", kUnsupportedPtxVersion, StatusCode::kUnsupported},
                        {"cuModuleLoadDataEx", kNoBinaryForGpu, StatusCode::kUnsupported},
                        {"cuModuleLoadDataEx", kOutOfMemory, StatusCode::kResourceExhausted},
                        {"cuModuleGetFunction", kNotFound, StatusCode::kUnsupported},
                        {"cuLaunchKernel", kLaunchOutOfResources, StatusCode::kResourceExhausted},
                        {"cuLaunchKernel", kIllegalAddress, StatusCode::kInternal},
                        {"cuLaunchKernel", kStreamCaptureInvalidated, StatusCode::kInternal},
                        {"cuCtxGetCurrent", kInvalidContext, StatusCode::kInternal}};
  for (const Case& each : cases) {
    reset();
    {
      const Gpu gpu = open();
      fail(each.symbol, each.result);
      Status status = gpu.device->load(kPtx).status();
      if (status.isOk()) status = gpu.module->kernel("scale").status();
      if (status.isOk()) status = scale(gpu, 0, 0, 1, nullptr);
      EXPECT_EQ(status.code(), each.code) << each.symbol << " " << each.result << ": " << status.message();
      EXPECT_THAT(status.message(), HasSubstr("failed: "));
      EXPECT_EQ(status.message().find("the context is lost") != std::string::npos, isSticky(each.result));
    }
    EXPECT_EQ(numAlive(), 0) << each.symbol << " " << each.result;
  }
}

TEST_F(Device, InvalidPtxAndUnknownKernelsAreNamed) {
  const Gpu gpu = open();
  EXPECT_EQ(gpu.device->load("no code").status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(gpu.module->kernel("other").status().message(), HasSubstr("finding kernel other failed"));
}

TEST_F(Device, AnIllegalAddressShowsAtTheNextCall) {
  const Gpu gpu = open();
  std::vector<float> values(kNumValues);
  gpu.driver->cuMemcpyDtoHAsync_v2(values.data(), 12345, kNumValues * sizeof(float), nullptr);
  EXPECT_EQ(gpu.driver->cuStreamSynchronize(nullptr), kIllegalAddress);
  const Status status = scale(gpu, 0, 0, 1, nullptr);
  EXPECT_THAT(status.message(), HasSubstr("the context is lost"));
}

TEST_F(Device, AProcessForkedAfterCudaHasStartedGetsAnErrorThatSaysSo) {
  const Gpu gpu = open();
  const auto saysSo = [](const Status& status) {
    return status.code() == StatusCode::kUnavailable && status.message().find("forked") != std::string::npos;
  };
  const pid_t child = fork();
  if (child == 0) _exit(saysSo(CudaDriver::open(FAKE_CUDA).status()) && saysSo(scale(gpu, 0, 0, 1, nullptr)) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(scale(gpu, 0, 0, 1, nullptr).isOk()) << "the one that was forked goes on";
}

// --- random programs ------------------------------------------------------------------------------------------------

// Launches on streams over buffers, ordered only by events, compared with the same launches in order on the host.
class RandomProgram {
 public:
  RandomProgram(const Gpu& gpu, uint64_t seed, bool forgetsWaits)
      : gpu_(gpu), cuda_(*gpu.driver), random_(seed), forgetsWaits_(forgetsWaits) {
    for (int i = 0; i < 1 + pick(3); ++i) {
      void* stream = nullptr;
      cuda_.cuStreamCreate(&stream, 0);
      streams_.push_back(stream);
    }
    for (int i = 0; i < 2 + pick(4); ++i) {
      uint64_t address = 0;
      cuda_.cuMemAlloc_v2(&address, kNumValues * sizeof(float));
      void* event = nullptr;
      cuda_.cuEventCreate(&event, 0);
      buffers_.push_back({address, event, streams_[0], std::vector<float>(kNumValues, static_cast<float>(i))});
      cuda_.cuMemcpyHtoDAsync_v2(address, buffers_.back().expected.data(), kNumValues * sizeof(float), streams_[0]);
      cuda_.cuEventRecord(event, streams_[0]);
    }
  }

  /// Returns true if all buffers equal the host's results.
  bool run() {
    for (int i = 0, steps = 1 + pick(12); i < steps; ++i) launch();
    bool isRight = true;
    for (Buffer& buffer : buffers_) {
      std::vector<float> found(kNumValues);
      void* stream = streams_[static_cast<size_t>(pick(static_cast<int>(streams_.size())))];
      await(stream, buffer);
      cuda_.cuMemcpyDtoHAsync_v2(found.data(), buffer.address, kNumValues * sizeof(float), stream);
      cuda_.cuStreamSynchronize(stream);
      isRight &= found == buffer.expected;
    }
    return isRight;
  }

  ~RandomProgram() {
    for (Buffer& buffer : buffers_) {
      cuda_.cuMemFree_v2(buffer.address);
      cuda_.cuEventDestroy_v2(buffer.event);
    }
    for (void* stream : streams_) cuda_.cuStreamDestroy_v2(stream);
  }

 private:
  struct Buffer {
    uint64_t address;
    void* event;   // the latest access
    void* stream;  // the stream of that access
    std::vector<float> expected;
  };
  int pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }

  void await(void* stream, Buffer& buffer) {
    if (buffer.stream != stream && !(forgetsWaits_ && pick(2) == 0)) cuda_.cuStreamWaitEvent(stream, buffer.event, 0);
  }

  void launch() {
    void* stream = streams_[static_cast<size_t>(pick(static_cast<int>(streams_.size())))];
    Buffer& source = buffers_[static_cast<size_t>(pick(static_cast<int>(buffers_.size())))];
    Buffer& target = buffers_[static_cast<size_t>(pick(static_cast<int>(buffers_.size())))];
    const auto factor = static_cast<float>(pick(3));
    await(stream, source);
    await(stream, target);
    AG_CHECK(scale(gpu_, target.address, source.address, factor, stream).isOk(), "a launch");
    for (int i = 0; i < kNumValues; ++i) target.expected[i] = factor * source.expected[i] + 1;
    for (Buffer* buffer : {&source, &target}) {
      buffer->stream = stream;
      cuda_.cuEventRecord(buffer->event, stream);
    }
  }

  const Gpu& gpu_;
  const CudaDriver& cuda_;
  std::mt19937_64 random_;
  bool forgetsWaits_;
  std::vector<void*> streams_;
  std::vector<Buffer> buffers_;
};

TEST_F(Device, RandomProgramsKeepTheirOrderAndReleaseTheirMemory) {
  const auto seed = std::random_device{}();
  {
    const Gpu gpu = open();
    const int64_t before = numAlive();
    for (uint64_t i = 0; i < 10000; ++i) {
      ASSERT_TRUE(RandomProgram(gpu, seed + i, /*forgetsWaits=*/false).run()) << "seed " << seed + i;
      ASSERT_EQ(numAlive(), before) << "seed " << seed + i;
    }
  }
  EXPECT_EQ(numAlive(), 0);
}

TEST_F(Device, AForgottenWaitShowsInRandomPrograms) {
  const Gpu gpu = open();
  int numWrong = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed)
    numWrong += RandomProgram(gpu, seed, /*forgetsWaits=*/true).run() ? 0 : 1;
  EXPECT_GT(numWrong, 10) << "seeds 1 to 500";
}

}  // namespace
}  // namespace agspeed::runtime::device::cuda
