// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/cpu_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "runtime/aten/memory_meter.h"

namespace agspeed::runtime::aten {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr BlockCache::Limits kPlenty = {.idleBytes = size_t{1} << 30, .slackBytes = size_t{1} << 30};

at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

/// Retains memory in each test. Skips the test if this process must not.
class CpuAllocatorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = whyNotRetained(); !reason.empty()) GTEST_SKIP() << reason;
    const Status status = startRetaining(kPlenty);
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  void TearDown() override { stopRetaining(); }
};

/// Torch's allocator, behind another name.
class ForeignAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override { return c10::GetDefaultCPUAllocator()->allocate(size); }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* destination, const void* source, size_t size) const override {
    default_copy_data(destination, source, size);
  }
};

TEST_F(CpuAllocatorTest, AFreedBlockServesTheNextTensor) {
  at::Tensor tensor = bytes(4 * kMib);
  const void* address = tensor.data_ptr();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 64, 0u);
  tensor.reset();
  EXPECT_EQ(bytes(4 * kMib).data_ptr(), address);
}

TEST_F(CpuAllocatorTest, SmallTensorsComeFromTorchsAllocator) {
  const size_t before = retainedMemory().counts.usedBytes;
  const at::Tensor tensor = bytes(kMib - 1);
  EXPECT_EQ(retainedMemory().counts.usedBytes, before);
}

TEST_F(CpuAllocatorTest, ATensorOutlivesRetaining) {
  at::Tensor tensor = bytes(4 * kMib).fill_(7);
  const size_t before = retainedMemory().counts.usedBytes;
  stopRetaining();
  EXPECT_EQ(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator());
  EXPECT_TRUE(tensor.eq(7).all().item<bool>());
  tensor.resize_({8 * kMib});
  EXPECT_EQ(tensor.slice(0, 0, 4 * kMib).eq(7).sum().item<int64_t>(), 4 * kMib);
  tensor.reset();
  EXPECT_EQ(retainedMemory().counts.usedBytes, before - 4 * kMib);
  EXPECT_EQ(retainedMemory().counts.idleBytes, 0u);
}

TEST_F(CpuAllocatorTest, ATensorFromBeforeIsFreedAsTorchDoes) {
  stopRetaining();
  at::Tensor tensor = bytes(4 * kMib);
  ASSERT_TRUE(startRetaining(kPlenty).isOk());
  const size_t idle = retainedMemory().counts.idleBytes;
  tensor.reset();
  EXPECT_EQ(retainedMemory().counts.idleBytes, idle);
}

TEST_F(CpuAllocatorTest, AnotherThreadMayFree) {
  at::Tensor tensor;
  std::thread([&] { tensor = bytes(4 * kMib); }).join();
  const void* address = tensor.data_ptr();
  std::thread([&] { tensor.reset(); }).join();
  EXPECT_EQ(bytes(4 * kMib).data_ptr(), address);
}

TEST_F(CpuAllocatorTest, RawBlocksOfAllSizesAreFreed) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  const size_t before = retainedMemory().counts.usedBytes;
  void* small = allocator->raw_allocate(100);
  void* large = allocator->raw_allocate(2 * kMib);
  allocator->raw_deallocate(large);
  allocator->raw_deallocate(small);
  EXPECT_EQ(retainedMemory().counts.usedBytes, before);
}

TEST_F(CpuAllocatorTest, TheMeterCountsRetainedBlocks) {
  at::Tensor earlier = bytes(4 * kMib);
  MemoryMeter meter;
  ASSERT_TRUE(meter.start().isOk());
  at::Tensor tensor = bytes(4 * kMib);
  EXPECT_EQ(meter.liveBytes(), 4 * kMib);
  earlier.reset();
  EXPECT_EQ(meter.liveBytes(), 4 * kMib) << "this block is older than the meter";
  tensor.reset();
  EXPECT_EQ(meter.liveBytes(), 0);
  EXPECT_EQ(meter.peakBytes(), 4 * kMib);
}

TEST(CpuByteCounterTest, RawBlocksAreCountedUntilTheyAreFreed) {
  c10::Allocator* torchs = c10::GetCPUAllocator();
  void* early = torchs->raw_allocate(kMib / 2);
  MemoryMeter meter;
  ASSERT_TRUE(meter.start().isOk());
  c10::Allocator* counting = c10::GetCPUAllocator();
  ASSERT_NE(counting, torchs);
  void* block = counting->raw_allocate(kMib / 2);
  void* late = counting->raw_allocate(kMib / 2);
  EXPECT_GE(meter.liveBytes(), kMib);
  counting->raw_deallocate(block);
  counting->raw_deallocate(early);
  EXPECT_NEAR(static_cast<double>(meter.liveBytes()), static_cast<double>(kMib / 2), 4096);
  meter.stop();
  counting->raw_deallocate(late);
  ASSERT_TRUE(meter.start().isOk());
  EXPECT_EQ(meter.liveBytes(), 0);
}

TEST_F(CpuAllocatorTest, TheMeterMayOutliveRetaining) {
  MemoryMeter meter;
  ASSERT_TRUE(meter.start().isOk());
  stopRetaining();
  EXPECT_NE(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator());
  const at::Tensor tensor = bytes(4 * kMib);
  EXPECT_GE(meter.liveBytes(), 4 * kMib);
  meter.stop();
  EXPECT_EQ(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator());
}

TEST_F(CpuAllocatorTest, AReplacementThatComesLaterStays) {
  static ForeignAllocator foreign;
  c10::Allocator* ours = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&foreign);
  EXPECT_TRUE(retainedMemory().isReplaced);
  stopRetaining();
  EXPECT_EQ(c10::GetCPUAllocator(), &foreign);
  EXPECT_EQ(startRetaining(kPlenty).message(), "this process replaced torch's CPU allocator");
  EXPECT_EQ(c10::GetCPUAllocator(), &foreign);
  c10::SetCPUAllocator(ours);
  stopRetaining();
  EXPECT_EQ(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator());
}

TEST_F(CpuAllocatorTest, TorchRaisesItsOwnErrorIfThereIsNoMemory) {
  at::Tensor tensor = bytes(4 * kMib);
  tensor.reset();
  EXPECT_GT(retainedMemory().counts.idleBytes, 0u);
  try {
    bytes(int64_t{1} << 60);
    FAIL() << "there cannot be that much memory";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("DefaultCPUAllocator"), std::string::npos) << error.what();
  }
  EXPECT_EQ(retainedMemory().counts.idleBytes, 0u);
}

TEST_F(CpuAllocatorTest, AForkedChildRetainsNothing) {
  at::Tensor tensor = bytes(4 * kMib).fill_(3);
  bytes(2 * kMib);
  const pid_t child = fork();
  if (child == 0) {
    const bool isIntact = tensor.data_ptr<uint8_t>()[kMib] == 3;
    tensor.reset();
    bytes(2 * kMib);
    const RetainedMemory memory = retainedMemory();
    _exit(isIntact && !memory.isOn && memory.counts.idleBytes == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tensor.eq(3).sum().item<int64_t>(), 4 * kMib);
  EXPECT_TRUE(retainedMemory().isOn);
}

}  // namespace
}  // namespace agspeed::runtime::aten
