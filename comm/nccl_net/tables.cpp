// SPDX-License-Identifier: Apache-2.0
// The tables that the library exports, v6 to v12. Their functions adapt the functions of Net to each version.
#include <array>
#include <cstdint>
#include <exception>

#include "comm/nccl_net/abi/net.h"
#include "comm/nccl_net/net.h"

namespace agspeed::comm::nccl {
namespace {

constexpr const char* kName = "agspeed";
constexpr int kMaxComms = 65536;
constexpr int kMaxReceives = static_cast<int>(channel::ChannelRequest::kMaxParts);

template <typename Properties>
Result getProperties(int device, Properties* properties) {
  const Device* facts = Net::get().device(device);
  if (facts == nullptr) return Result::kInvalidArgument;
  *properties = {};
  properties->name = const_cast<char*>(facts->name.c_str());
  properties->pciPath = facts->pciPath.empty() ? nullptr : const_cast<char*>(facts->pciPath.c_str());
  properties->guid = facts->guid;
  properties->ptrSupport = kPointerHost;
  properties->speed = facts->speed;
  properties->maxComms = kMaxComms;
  properties->maxRecvs = kMaxReceives;
  if constexpr (requires { properties->maxP2pBytes; }) {
    properties->virtualDevice.numDevices = 1;
    properties->virtualDevice.devices[0] = device;
    properties->maxP2pBytes = kMaxMessageBytes;
    properties->maxCollBytes = kMaxMessageBytes;
  }
  if constexpr (requires { properties->maxMultiRequestSize; }) properties->maxMultiRequestSize = 1;
  if constexpr (requires { properties->railId; }) properties->railId = properties->planeId = -1;
  return Result::kOk;
}

// --- Set-up ---------------------------------------------------------------------------------------------------------

Result init(Logger logger) { return Net::get().init(logger); }
Result initV10(Logger logger, ProfilerCallback) { return Net::get().init(logger); }
Result initWithContext(void** context, uint64_t, CommConfig*, Logger logger, ProfilerCallback) {
  *context = &Net::get();
  return Net::get().init(logger);
}
Result finalize(void*) { return Net::get().finalize(); }
Result devices(int* count) { return Net::get().devices(count); }

Result listen(int device, void* handle, void** comm) { return Net::get().listen(device, handle, comm); }
Result listenWithContext(void*, int device, void* handle, void** comm) {
  return Net::get().listen(device, handle, comm);
}

Result connectV6(int device, void* handle, void** comm) { return Net::get().connect(device, handle, comm); }
Result connect(int device, void* handle, void** comm, DeviceHandle** offload) {
  if (offload != nullptr) *offload = nullptr;
  return Net::get().connect(device, handle, comm);
}
Result connectV10(int device, CommConfig*, void* handle, void** comm, DeviceHandle** offload) {
  return connect(device, handle, comm, offload);
}
Result connectWithContext(void*, int device, void* handle, void** comm, DeviceHandle** offload) {
  return connect(device, handle, comm, offload);
}

Result acceptV6(void* listener, void** comm) { return Net::get().accept(listener, comm); }
Result accept(void* listener, void** comm, DeviceHandle** offload) {
  if (offload != nullptr) *offload = nullptr;
  return Net::get().accept(listener, comm);
}

template <typename Size>
Result registerMemory(void* comm, void* data, Size, int type, void** registration) {
  return Net::get().registerMemory(comm, data, type, registration);
}
Result deregisterMemory(void*, void*) { return Result::kOk; }

// --- Messages -------------------------------------------------------------------------------------------------------

template <typename Size>
Result send(void* comm, void* data, Size size, int tag, void*, void** request) {
  return Net::get().send(comm, data, static_cast<size_t>(size), tag, request);
}
Result sendProfiled(void* comm, void* data, size_t size, int tag, void*, void*, void** request) {
  return Net::get().send(comm, data, size, tag, request);
}

template <typename Size>
Result receive(void* comm, int count, void** data, Size* sizes, int* tags, void**, void** request) {
  std::array<size_t, kMaxReceives> wide{};
  for (int i = 0; i < count && i < kMaxReceives; ++i) wide[static_cast<size_t>(i)] = static_cast<size_t>(sizes[i]);
  return Net::get().receive(comm, count, data, wide.data(), tags, request);
}
Result receiveProfiled(void* comm, int count, void** data, size_t* sizes, int* tags, void**, void**, void** request) {
  return Net::get().receive(comm, count, data, sizes, tags, request);
}

/// Does nothing. A flush makes received data visible to a GPU, and this plug-in receives into host memory only.
Result flush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return Result::kOk;
}
Result test(void* request, int* isDone, int* sizes) { return Net::get().test(request, isDone, sizes); }

Result closeChannel(void* comm) { return Net::get().closeChannel(comm); }
Result closeListener(void* comm) { return Net::get().closeListener(comm); }

// --- Tables ---------------------------------------------------------------------------------------------------------

/// Wraps a function and catches its exceptions, which NCCL does not handle. An exception means a bug of the plug-in.
template <auto kFunction>
struct Guarded;
template <typename... Arguments, Result (*kFunction)(Arguments...)>
struct Guarded<kFunction> {
  static Result call(Arguments... arguments) {
    try {
      return kFunction(arguments...);
    } catch (const std::exception& failure) {
      return Net::get().failInternally(failure.what());
    }
  }
};
template <auto kFunction>
constexpr auto guarded = &Guarded<kFunction>::call;

/// Makes one of the tables v7 to v10, which differ in the types of sizes and in additional arguments.
template <typename Table, typename MemorySize, typename MessageSize>
constexpr Table tableWithoutContext() {
  Table table = {};
  table.name = kName;
  table.devices = guarded<devices>;
  table.getProperties = guarded<getProperties<typename Table::Properties>>;
  table.listen = guarded<listen>;
  table.accept = guarded<accept>;
  table.regMr = guarded<registerMemory<MemorySize>>;
  table.deregMr = guarded<deregisterMemory>;
  table.iflush = guarded<flush>;
  table.test = guarded<test>;
  table.closeSend = guarded<closeChannel>;
  table.closeRecv = guarded<closeChannel>;
  table.closeListen = guarded<closeListener>;
  if constexpr (requires { table.init = initV10; }) {
    table.init = guarded<initV10>;
    table.connect = guarded<connectV10>;
    table.isend = guarded<sendProfiled>;
    table.irecv = guarded<receiveProfiled>;
  } else {
    table.init = guarded<init>;
    table.connect = guarded<connect>;
    table.isend = guarded<send<MessageSize>>;
    table.irecv = guarded<receive<MessageSize>>;
  }
  return table;
}

constexpr TableV6 tableV6() {
  TableV6 table = {};
  table.name = kName;
  table.init = guarded<init>;
  table.devices = guarded<devices>;
  table.getProperties = guarded<getProperties<PropertiesV6>>;
  table.listen = guarded<listen>;
  table.connect = guarded<connectV6>;
  table.accept = guarded<acceptV6>;
  table.regMr = guarded<registerMemory<int>>;
  table.deregMr = guarded<deregisterMemory>;
  table.isend = guarded<send<int>>;
  table.irecv = guarded<receive<int>>;
  table.iflush = guarded<flush>;
  table.test = guarded<test>;
  table.closeSend = guarded<closeChannel>;
  table.closeRecv = guarded<closeChannel>;
  table.closeListen = guarded<closeListener>;
  return table;
}

template <typename Table>
constexpr Table tableWithContext() {
  Table table = {};
  table.name = kName;
  table.init = guarded<initWithContext>;
  table.devices = guarded<devices>;
  table.getProperties = guarded<getProperties<typename Table::Properties>>;
  table.listen = guarded<listenWithContext>;
  table.connect = guarded<connectWithContext>;
  table.accept = guarded<accept>;
  table.regMr = guarded<registerMemory<size_t>>;
  table.deregMr = guarded<deregisterMemory>;
  table.isend = guarded<sendProfiled>;
  table.irecv = guarded<receiveProfiled>;
  table.iflush = guarded<flush>;
  table.test = guarded<test>;
  table.closeSend = guarded<closeChannel>;
  table.closeRecv = guarded<closeChannel>;
  table.closeListen = guarded<closeListener>;
  table.finalize = guarded<finalize>;
  return table;
}

}  // namespace
}  // namespace agspeed::comm::nccl

#define AG_EXPORT extern "C" __attribute__((visibility("default"), used))

namespace nccl = agspeed::comm::nccl;
AG_EXPORT const nccl::TableV6 ncclNetPlugin_v6 = nccl::tableV6();
AG_EXPORT const nccl::TableV7 ncclNetPlugin_v7 = nccl::tableWithoutContext<nccl::TableV7, int, int>();
AG_EXPORT const nccl::TableV8 ncclNetPlugin_v8 = nccl::tableWithoutContext<nccl::TableV8, size_t, int>();
AG_EXPORT const nccl::TableV9 ncclNetPlugin_v9 = nccl::tableWithoutContext<nccl::TableV9, size_t, size_t>();
AG_EXPORT const nccl::TableV10 ncclNetPlugin_v10 = nccl::tableWithoutContext<nccl::TableV10, size_t, size_t>();
AG_EXPORT const nccl::TableV11 ncclNetPlugin_v11 = nccl::tableWithContext<nccl::TableV11>();
AG_EXPORT const nccl::TableV12 ncclNetPlugin_v12 = nccl::tableWithContext<nccl::TableV12>();
