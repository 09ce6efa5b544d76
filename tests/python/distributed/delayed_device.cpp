// SPDX-License-Identifier: Apache-2.0
// The torch device "delayed", for tests.
//
// Work on a stream runs later, in order, on the stream's own thread. Only events order work between streams. While
// streams are held (torch.ops.delayed_device.hold, release) nothing runs. Freed memory is overwritten once the streams
// on which it was recorded have got that far. So a missing event, or a buffer that is freed too early, shows as wrong
// numbers.
//
// It uses torch's mechanism for out-of-tree devices (PrivateUse1). There is one device. Operations other than copies
// fall back to the CPU.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr size_t kNumStreams = 8;
constexpr int kGarbage = 0xAB;

std::mutex holdMutex;
std::condition_variable released;
bool isHeld = false;

void hold() {
  const std::lock_guard lock(holdMutex);
  isHeld = true;
}

void release() {
  const std::lock_guard lock(holdMutex);
  isHeld = false;
  released.notify_all();
}

/// Runs its work in order on a thread that is never joined, because torch's devices live as long as the process.
class Queue {
 public:
  Queue() {
    std::thread([this] { run(); }).detach();
  }

  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    added_.notify_one();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      added_.wait(lock, [&] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      {
        std::unique_lock held(holdMutex);
        released.wait(held, [] { return !isHeld; });
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> tasks_;
};

Queue& queueOf(c10::StreamId stream) {
  static auto* queues = new std::array<Queue, kNumStreams>;
  return queues->at(static_cast<size_t>(stream));
}

/// A point in a stream.
class Mark {
 public:
  void pass() {
    const std::lock_guard lock(mutex_);
    isPassed_ = true;
    passedAt_ = std::chrono::steady_clock::now();
    passed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    passed_.wait(lock, [&] { return isPassed_; });
  }
  bool isPassed() {
    const std::lock_guard lock(mutex_);
    return isPassed_;
  }
  /// Requires: both marks have been passed.
  double millisecondsTo(const Mark& end) const {
    return std::chrono::duration<double, std::milli>(end.passedAt_ - passedAt_).count();
  }

 private:
  std::mutex mutex_;
  std::condition_variable passed_;
  bool isPassed_ = false;
  std::chrono::steady_clock::time_point passedAt_;
};

using MarkHandle = std::shared_ptr<Mark>;

MarkHandle markIn(c10::StreamId stream) {
  auto mark = std::make_shared<Mark>();
  queueOf(stream).add([mark] { mark->pass(); });
  return mark;
}

thread_local c10::StreamId currentStream = 0;
c10::Device theDevice() { return {kType, 0}; }
c10::Stream streamOf(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, theDevice(), id); }

// --- memory

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* data = std::malloc(std::max<size_t>(size, 1));
    std::memset(data, kGarbage, size);
    {
      const std::lock_guard lock(mutex_);
      blocks_[data] = {size, {currentStream}};
    }
    return {data, data, &Memory::freeBlock, theDevice()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Memory::freeBlock; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }

  void record(void* data, c10::StreamId stream) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    if (block != blocks_.end()) block->second.streams.insert(stream);
  }

  static Memory& get() {
    static auto* memory = new Memory;
    return *memory;
  }

 private:
  struct Block {
    size_t size = 0;
    std::set<c10::StreamId> streams;
  };

  static void freeBlock(void* data) {
    Memory& memory = get();
    std::unique_lock lock(memory.mutex_);
    const Block block = memory.blocks_.extract(data).mapped();
    lock.unlock();
    std::vector<MarkHandle> marks;
    for (const c10::StreamId stream : block.streams) marks.push_back(markIn(stream));
    std::thread([data, size = block.size, marks] {
      for (const MarkHandle& mark : marks) mark->wait();
      std::memset(data, kGarbage, size);
      std::free(data);
    }).detach();
  }

  std::mutex mutex_;
  std::map<void*, Block> blocks_;
};

/// Host memory that the device knows as pinned. Copies keep it alive.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* data = std::malloc(std::max<size_t>(size, 1));
    std::memset(data, kGarbage, size);
    const std::lock_guard lock(mutex_);
    blocks_.insert(data);
    return {data, data, &PinnedMemory::freeBlock, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
  bool has(const void* data) {
    const std::lock_guard lock(mutex_);
    return blocks_.contains(const_cast<void*>(data));
  }
  static PinnedMemory& get() {
    static auto* memory = new PinnedMemory;
    return *memory;
  }

 private:
  static void freeBlock(void* data) {
    const std::lock_guard lock(get().mutex_);
    get().blocks_.erase(data);
    std::free(data);
  }

  std::mutex mutex_;
  std::set<void*> blocks_;
};

// --- streams and events

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return theDevice(); }
  c10::Device getDevice() const override { return theDevice(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return streamOf(currentStream); }
  c10::Stream getDefaultStream(c10::Device) const override { return streamOf(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<size_t> next = 0;
    return streamOf(static_cast<c10::StreamId>(1 + next++ % (kNumStreams - 1)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return streamOf(std::exchange(currentStream, stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override { markIn(stream.id())->wait(); }
  void synchronizeDevice(c10::DeviceIndex) const override {
    for (size_t i = 0; i < kNumStreams; ++i) markIn(static_cast<c10::StreamId>(i))->wait();
  }

  // An event is a MarkHandle.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new MarkHandle;
    *static_cast<MarkHandle*>(*event) = markIn(stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    queueOf(stream.id()).add([mark = *static_cast<MarkHandle*>(event)] { mark->wait(); });
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || (*static_cast<MarkHandle*>(event))->isPassed();
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    return (*static_cast<MarkHandle*>(begin))->millisecondsTo(**static_cast<MarkHandle*>(end));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) (*static_cast<MarkHandle*>(event))->wait();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<MarkHandle*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Memory::get().record(data.get(), stream.id());
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::get().has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
};

const bool isRegistered = [] {
  c10::register_privateuse1_backend("delayed");
  c10::SetAllocator(kType, &Memory::get());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// --- operations

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &Memory::get(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor emptyStrided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &Memory::get(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

/// Returns the memory of `tensor` as a host tensor: without owning it on the device, with its storage on the host.
at::Tensor onHost(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor copyFrom(const at::Tensor& from, const at::Tensor& to, bool isAsynchronous) {
  const auto isPaged = [](const at::Tensor& tensor) {
    return tensor.is_cpu() && !PinnedMemory::get().has(tensor.storage().data());
  };
  queueOf(currentStream).add([source = onHost(from), target = onHost(to)]() mutable {
    const at::NoGradGuard noGrad;
    target.copy_(source);
  });
  if (!isAsynchronous || isPaged(from) || isPaged(to)) markIn(currentStream)->wait();
  return to;
}

at::Tensor copyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.storage().set_data_ptr_noswap(Memory::get().allocate(from.nbytes()));
    to.storage().set_nbytes(from.nbytes());
    to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
  }
  return copyFrom(from, to, /*isAsynchronous=*/false);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }

at::Tensor asStrided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor& setStorage(at::Tensor& self, c10::Storage storage, int64_t offset, at::IntArrayRef size,
                       at::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}

void fallBack(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &emptyStrided);
  m.impl("_copy_from", &copyFrom);
  m.impl("_copy_from_and_resize", &copyFromAndResize);
  m.impl("set_.source_Storage_storage_offset", &setStorage);
  m.impl("view", &view);
  m.impl("as_strided", &asStrided);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallBack>()); }

TORCH_LIBRARY(delayed_device, m) {
  m.def("hold() -> ()", &hold);
  m.def("release() -> ()", &release);
}

}  // namespace
