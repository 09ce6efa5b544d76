// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/device/fake_cuda.h"

#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100, kInvalidDevice = 101;
constexpr int kInvalidContext = 201, kInvalidPtx = 218, kNotFound = 500, kNotReady = 600, kIllegalAddress = 700;
constexpr int kDevicesUnavailable = 46, kOutOfResources = 701;
constexpr size_t kDeviceBytes = size_t{1} << 30;

struct Stream;

struct Event {
  Stream* stream = nullptr;  // the stream that recorded it last, and the position in it
  int64_t position = -1;
  double seconds = 0;  // valid once it is reached
};

struct Operation {
  std::function<int()> run = {};
  std::vector<std::pair<Stream*, int64_t>> after = {};  // operations that must have run before
  Event* marks = nullptr;
};

struct Stream {
  std::deque<Operation> waiting;
  int64_t numRun = 0;
  double seconds = 0;
  bool isCapturing = false;
  int64_t end() const { return numRun + static_cast<int64_t>(waiting.size()); }
};

struct Kernel {
  std::string name;
  std::vector<size_t> sizes;  // sizes of the arguments
  struct Module* module;
};

struct Module {
  std::string ptx;
  std::map<std::string, Kernel> kernels;
};

struct Failure {
  int result;
  int after;
};

struct Driver {
  int numDevices = 1, capability = 90, computeMode = 0;
  bool isInitialised = false;
  pid_t process = 0;  // the initialised process; its forks are not initialised and cannot be
  int lost = 0;       // the sticky error
  int numRetained = 0;
  double cost = 1e-3;
  int64_t numRun = 0;
  FakeCudaHook hook = nullptr;
  void* user = nullptr;
  std::map<std::string, Failure> failures;
  std::map<uint64_t, std::vector<char>> memory;
  size_t allocated = 0;
  std::set<Module*> modules;
  std::set<Stream*> streams;
  std::set<Event*> events;
  Stream legacy;
};

std::mutex mutex;
Driver driver;
thread_local void* currentContext = nullptr;
int contextMark;

// Returns the error with which a call ends before it does anything.
int refusal(const char* symbol, bool needsContext) {
  const auto planned = driver.failures.find(symbol);
  if (planned != driver.failures.end() && planned->second.after-- == 0) {
    const int result = planned->second.result;
    driver.failures.erase(planned);
    if (result >= kIllegalAddress && result < 800 && result != kOutOfResources) driver.lost = result;
    return result;
  }
  if (!driver.isInitialised || driver.process != getpid()) return kNotInitialized;
  if (driver.lost != 0) return driver.lost;
  return needsContext && (currentContext == nullptr || driver.numRetained == 0) ? kInvalidContext : 0;
}

Stream* streamOf(void* handle) {
  if (handle == nullptr) return &driver.legacy;
  auto* stream = static_cast<Stream*>(handle);
  return driver.streams.count(stream) != 0 ? stream : nullptr;
}

// Runs the operations of `stream` up to `position`. First runs the operations that they wait for.
void runUntil(Stream& stream, int64_t position) {
  while (stream.numRun < position && !stream.waiting.empty()) {
    Operation operation = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    for (const auto& [other, end] : operation.after) {
      runUntil(*other, end);
      stream.seconds = std::max(stream.seconds, other->seconds);
    }
    ++stream.numRun;
    if (operation.marks != nullptr) {
      operation.marks->seconds = stream.seconds;
      continue;
    }
    if (!operation.run) continue;
    stream.seconds += driver.cost;
    ++driver.numRun;
    if (const int result = driver.lost != 0 ? 0 : operation.run(); result != 0) driver.lost = result;
  }
}

int queue(void* handle, Operation operation) {
  Stream* stream = streamOf(handle);
  if (stream == nullptr) return kInvalidValue;
  if (stream->isCapturing) return 0;
  stream->waiting.push_back(std::move(operation));
  return 0;
}

bool isMapped(uint64_t address, size_t bytes) {
  auto block = driver.memory.upper_bound(address);
  if (block == driver.memory.begin()) return false;
  --block;
  return address + bytes <= block->first + block->second.size();
}

size_t parameterBytes(const std::string& line) {
  if (const size_t size = line.find('['); size != std::string::npos) return std::stoul(line.substr(size + 1));  // .b8
  if (line.find("64") != std::string::npos) return 8;
  if (line.find("16") != std::string::npos) return 2;
  return line.find("8 ") != std::string::npos ? 1 : 4;
}

// Returns kernels and the sizes of their arguments; empty if the text is no PTX.
std::map<std::string, Kernel> readKernels(const std::string& ptx, Module* module) {
  std::map<std::string, Kernel> kernels;
  for (size_t at = ptx.find(".entry "); at != std::string::npos; at = ptx.find(".entry ", at + 1)) {
    const size_t open = ptx.find('(', at), close = ptx.find(')', at);
    if (open == std::string::npos || close == std::string::npos) return {};
    std::string name = ptx.substr(at + 7, open - at - 7);
    name.erase(name.find_last_not_of(" \n\r\t") + 1);
    Kernel kernel{name, {}, module};
    const std::string parameters = ptx.substr(open, close - open);
    for (size_t p = parameters.find(".param"); p != std::string::npos; p = parameters.find(".param", p + 1)) {
      kernel.sizes.push_back(parameterBytes(parameters.substr(p, parameters.find(',', p) - p)));
    }
    kernels.emplace(name, std::move(kernel));
  }
  return kernels;
}

// A launch with copies of its arguments.
struct PendingLaunch {
  Kernel kernel;
  std::string ptx;
  FakeCudaLaunch shape;
  std::vector<std::vector<char>> values;

  int run() {
    std::vector<void*> arguments;
    for (std::vector<char>& value : values) arguments.push_back(value.data());
    FakeCudaLaunch launch = shape;
    launch.kernel = kernel.name.c_str();
    launch.ptx = ptx.c_str();
    launch.arguments = arguments.data();
    return driver.hook != nullptr ? driver.hook(&launch, driver.user) : 0;
  }
};

}  // namespace

#define CALL(symbol, needsContext)   \
  const std::lock_guard lock(mutex); \
  if (const int result = refusal(#symbol, needsContext); result != 0) return result

EXPORT void fakeCudaReset(int numDevices, int capability, int computeMode) {
  const std::lock_guard lock(mutex);
  for (Module* module : driver.modules) delete module;
  for (Stream* stream : driver.streams) delete stream;
  for (Event* event : driver.events) delete event;
  driver = Driver();
  driver.numDevices = numDevices;
  driver.capability = capability;
  driver.computeMode = computeMode;
  currentContext = nullptr;
}
EXPORT void fakeCudaSetHook(FakeCudaHook hook, void* user) {
  driver.hook = hook;
  driver.user = user;
}
EXPORT void fakeCudaSetCost(double seconds) { driver.cost = seconds; }
EXPORT void fakeCudaFail(const char* symbol, int result, int after) { driver.failures[symbol] = {result, after}; }
EXPORT int64_t fakeCudaNumRun() { return driver.numRun; }
EXPORT int64_t fakeCudaNumAlive() {
  return static_cast<int64_t>(driver.memory.size() + driver.modules.size() + driver.streams.size() +
                              driver.events.size()) +
         driver.numRetained;
}
EXPORT void fakeCudaCapture(void* stream, int isCapturing) { streamOf(stream)->isCapturing = isCapturing != 0; }

EXPORT int cuInit(unsigned) {
  const std::lock_guard lock(mutex);
  if (!driver.isInitialised) driver.process = getpid();
  driver.isInitialised = true;
  if (const int result = refusal("cuInit", false); result != 0) return result;
  return driver.numDevices == 0 ? kNoDevice : 0;
}
EXPORT int cuDriverGetVersion(int* version) {
  CALL(cuDriverGetVersion, false);
  *version = 13000;
  return 0;
}
EXPORT int cuGetErrorString(int result, const char** text) {
  static const std::map<int, const char*> known = {{kInvalidValue, "invalid argument"},
                                                   {kOutOfMemory, "out of memory"},
                                                   {kNoDevice, "no CUDA-capable device is detected"},
                                                   {kDevicesUnavailable, "device is busy or unavailable"},
                                                   {kInvalidPtx, "a PTX JIT compilation failed"},
                                                   {kNotFound, "named symbol not found"},
                                                   {kIllegalAddress, "an illegal memory access was encountered"}};
  const auto found = known.find(result);
  if (found == known.end()) return kInvalidValue;
  *text = found->second;
  return 0;
}
EXPORT int cuDeviceGetCount(int* count) {
  CALL(cuDeviceGetCount, false);
  *count = driver.numDevices;
  return 0;
}
EXPORT int cuDeviceGet(int* device, int index) {
  CALL(cuDeviceGet, false);
  if (index < 0 || index >= driver.numDevices) return kInvalidDevice;
  *device = index;
  return 0;
}
EXPORT int cuDeviceGetName(char* name, int size, int) {
  CALL(cuDeviceGetName, false);
  strncpy(name, "Fake GPU", static_cast<size_t>(size));
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
  CALL(cuDeviceTotalMem_v2, false);
  *bytes = kDeviceBytes;
  return 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  CALL(cuDeviceGetAttribute, false);
  const std::map<int, int> known = {
      {20, driver.computeMode}, {75, driver.capability / 10}, {76, driver.capability % 10}};
  const auto found = known.find(attribute);
  if (found == known.end()) return kInvalidValue;
  *value = found->second;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
  CALL(cuDevicePrimaryCtxRetain, false);
  ++driver.numRetained;
  *context = &contextMark;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  const std::lock_guard lock(mutex);
  --driver.numRetained;
  return 0;
}
EXPORT int cuCtxGetCurrent(void** context) {
  CALL(cuCtxGetCurrent, false);
  *context = currentContext;
  return 0;
}
EXPORT int cuCtxSetCurrent(void* context) {
  CALL(cuCtxSetCurrent, false);
  currentContext = context;
  return 0;
}

EXPORT int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  CALL(cuModuleLoadDataEx, true);
  auto made = std::make_unique<Module>();
  made->ptx = static_cast<const char*>(image);
  made->kernels = readKernels(made->ptx, made.get());
  if (made->kernels.empty() || made->ptx.find(".version") == std::string::npos) return kInvalidPtx;
  *module = made.get();
  driver.modules.insert(made.release());
  return 0;
}
EXPORT int cuModuleUnload(void* handle) {
  const std::lock_guard lock(mutex);  // a lost context frees its modules as well
  auto* module = static_cast<Module*>(handle);
  if (driver.modules.erase(module) == 0) return kInvalidValue;
  delete module;
  return driver.lost;
}
EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  CALL(cuModuleGetFunction, true);
  auto& kernels = static_cast<Module*>(module)->kernels;
  const auto found = kernels.find(name);
  if (found == kernels.end()) return kNotFound;
  *function = &found->second;
  return 0;
}
EXPORT int cuFuncGetAttribute(int* value, int attribute, void*) {
  CALL(cuFuncGetAttribute, true);
  *value = attribute == 4 ? 32 : 0;
  return 0;
}
EXPORT int cuFuncSetAttribute(void*, int, int) {
  CALL(cuFuncSetAttribute, true);
  return 0;
}
EXPORT int cuLaunchKernel(void* function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                          unsigned blockY, unsigned blockZ, unsigned sharedBytes, void* stream, void** arguments,
                          void**) {
  CALL(cuLaunchKernel, true);
  if (gridX * gridY * gridZ == 0 || blockX * blockY * blockZ == 0 || blockX * blockY * blockZ > 1024) {
    return kInvalidValue;
  }
  const auto& kernel = *static_cast<Kernel*>(function);
  auto launch = std::make_shared<PendingLaunch>();
  launch->kernel = kernel;
  launch->ptx = kernel.module->ptx;
  launch->shape = {nullptr, nullptr, {gridX, gridY, gridZ}, {blockX, blockY, blockZ}, sharedBytes, nullptr};
  for (size_t i = 0; i < kernel.sizes.size(); ++i) {
    const auto* value = static_cast<const char*>(arguments[i]);
    launch->values.emplace_back(value, value + kernel.sizes[i]);
  }
  return queue(stream, {.run = [launch] { return launch->run(); }});
}

EXPORT int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  CALL(cuMemAlloc_v2, true);
  if (bytes == 0) return kInvalidValue;
  if (driver.allocated + bytes > kDeviceBytes) return kOutOfMemory;
  std::vector<char> block(bytes, static_cast<char>(0xA5));
  *address = reinterpret_cast<uint64_t>(block.data());
  driver.allocated += bytes;
  driver.memory.emplace(*address, std::move(block));
  return 0;
}
EXPORT int cuMemFree_v2(uint64_t address) {
  CALL(cuMemFree_v2, true);
  const auto found = driver.memory.find(address);
  if (found == driver.memory.end()) return kInvalidValue;
  for (Stream* stream : driver.streams) runUntil(*stream, stream->end());  // a free waits for the device
  runUntil(driver.legacy, driver.legacy.end());
  driver.allocated -= found->second.size();
  driver.memory.erase(found);
  return driver.lost;
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t bytes, void* stream) {
  CALL(cuMemcpyHtoDAsync_v2, true);
  const auto* begin = static_cast<const char*>(source);
  auto copy = std::make_shared<std::vector<char>>(begin, begin + bytes);
  return queue(stream, {.run = [=] {
                 if (!isMapped(target, copy->size())) return kIllegalAddress;
                 memcpy(reinterpret_cast<void*>(target), copy->data(), copy->size());
                 return 0;
               }});
}
EXPORT int cuMemcpyDtoHAsync_v2(void* target, uint64_t source, size_t bytes, void* stream) {
  CALL(cuMemcpyDtoHAsync_v2, true);
  return queue(stream, {.run = [=] {
                 if (!isMapped(source, bytes)) return kIllegalAddress;
                 memcpy(target, reinterpret_cast<const void*>(source), bytes);
                 return 0;
               }});
}

EXPORT int cuStreamCreate(void** stream, unsigned) {
  CALL(cuStreamCreate, true);
  *stream = *driver.streams.insert(new Stream).first;
  return 0;
}
EXPORT int cuStreamDestroy_v2(void* handle) {
  CALL(cuStreamDestroy_v2, true);
  Stream* stream = streamOf(handle);
  if (stream == nullptr || stream == &driver.legacy) return kInvalidValue;
  runUntil(*stream, stream->end());
  driver.streams.erase(stream);
  delete stream;
  return driver.lost;
}
EXPORT int cuStreamIsCapturing(void* stream, int* status) {
  CALL(cuStreamIsCapturing, true);
  *status = streamOf(stream)->isCapturing ? 1 : 0;
  return 0;
}
EXPORT int cuStreamSynchronize(void* handle) {
  CALL(cuStreamSynchronize, true);
  Stream* stream = streamOf(handle);
  if (stream == nullptr) return kInvalidValue;
  runUntil(*stream, stream->end());
  return driver.lost;
}
EXPORT int cuStreamWaitEvent(void* stream, void* handle, unsigned) {
  CALL(cuStreamWaitEvent, true);
  const auto* event = static_cast<Event*>(handle);
  if (event->stream == nullptr) return 0;
  return queue(stream, {.after = {{event->stream, event->position}}});
}

EXPORT int cuEventCreate(void** event, unsigned) {
  CALL(cuEventCreate, true);
  *event = *driver.events.insert(new Event).first;
  return 0;
}
EXPORT int cuEventDestroy_v2(void* handle) {
  CALL(cuEventDestroy_v2, true);
  auto* event = static_cast<Event*>(handle);
  if (event->stream != nullptr) runUntil(*event->stream, event->position);
  return driver.events.erase(event) == 1 ? (delete event, 0) : kInvalidValue;
}
EXPORT int cuEventRecord(void* handle, void* streamHandle) {
  CALL(cuEventRecord, true);
  auto* event = static_cast<Event*>(handle);
  Stream* stream = streamOf(streamHandle);
  if (stream == nullptr) return kInvalidValue;
  if (event->stream != nullptr) runUntil(*event->stream, event->position);
  const int result = queue(streamHandle, {.marks = event});
  event->stream = stream;
  event->position = stream->end();
  return result;
}
EXPORT int cuEventQuery(void* handle) {
  CALL(cuEventQuery, true);
  const auto* event = static_cast<Event*>(handle);
  return event->stream == nullptr || event->stream->numRun >= event->position ? 0 : kNotReady;
}
EXPORT int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  CALL(cuEventElapsedTime, true);
  for (void* handle : {begin, end}) {
    const auto* event = static_cast<Event*>(handle);
    if (event->stream == nullptr) return kInvalidValue;
    if (event->stream->numRun < event->position) return kNotReady;
  }
  *milliseconds = static_cast<float>(1e3 * (static_cast<Event*>(end)->seconds - static_cast<Event*>(begin)->seconds));
  return 0;
}
