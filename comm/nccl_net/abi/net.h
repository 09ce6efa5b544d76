// SPDX-License-Identifier: Apache-2.0
// The binary interface between NCCL and a network plug-in: function tables v6 to v12, the properties of a device,
// result codes. These are our own declarations, written from the documented layout. Every size and offset that NCCL
// relies on is checked below.
//
//   table   NCCL        what it added
//   v6      2.13        the oldest table that is served here
//   v7      2.19        device handles
//   v8      2.20        registrations of size_t bytes, regIsGlobal
//   v9      2.24        messages of size_t bytes, virtual devices
//   v10     2.26, 2.27  traffic classes, a profiler's callback
//   v11     2.28, 2.29  a context per communicator
//   v12     2.30 on     rails and planes
//
// A plug-in exports `ncclNetPlugin_v<N>`, one table each; NCCL uses the newest one that it knows. Plain data; no code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agspeed::comm::nccl {

/// The result code of all functions.
enum class Result : int {
  kOk = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

enum class LogLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kAbort = 4, kTrace = 5 };
constexpr unsigned long kSubsystemInit = 0x1, kSubsystemNet = 0x10;
using Logger = void (*)(LogLevel level, unsigned long subsystems, const char* file, int line, const char* format, ...);
using ProfilerCallback = Result (*)(void** event, int type, void* parent, int64_t pluginId, void* data);

constexpr size_t kHandleBytes = 128;
/// The maximum number of requests that NCCL has in flight on one connection. On the sending side, each of them has up
/// to maxRecvs messages.
constexpr int kMaxRequests = 32;
constexpr int kPointerHost = 1, kPointerCuda = 2;
/// NCCL sets *request to this value before it calls irecv if the plug-in may report completion early.
inline void* const kOptionalCompletion = reinterpret_cast<void*>(1);

struct CommConfig {
  int trafficClass;
};
/// A handle for offloads to the network device, which this plug-in does not support.
struct DeviceHandle;
/// Hints from NCCL about later operations.
struct NetAttributes;

template <int kMaxDevices>
struct VirtualDevice {
  int numDevices;
  int devices[kMaxDevices];
};

// --- Properties -----------------------------------------------------------------------------------------------------

struct PropertiesV6 {
  char* name;     ///< unique among the devices
  char* pciPath;  ///< null: the device is attached to the first CPU
  uint64_t guid;
  int ptrSupport;
  int speed;  ///< in Mbit/s
  int port;
  float latency;  ///< in microseconds
  int maxComms;
  int maxRecvs;
};
struct PropertiesV7 {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
};
struct PropertiesV8 {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
};
struct PropertiesV9 {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  VirtualDevice<4> virtualDevice;
  size_t maxP2pBytes;
  size_t maxCollBytes;
};
using PropertiesV10 = PropertiesV9;
struct PropertiesV11 {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  VirtualDevice<4> virtualDevice;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
};
struct PropertiesV12 {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  VirtualDevice<8> virtualDevice;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
  int16_t railId;
  int16_t planeId;
};

static_assert(sizeof(PropertiesV6) == 48 && offsetof(PropertiesV6, speed) == 28);
static_assert(sizeof(PropertiesV7) == 56 && offsetof(PropertiesV7, netDeviceType) == 48);
static_assert(sizeof(PropertiesV8) == 64 && offsetof(PropertiesV8, speed) == 32);
static_assert(sizeof(PropertiesV9) == 104 && offsetof(PropertiesV9, maxP2pBytes) == 88);
static_assert(sizeof(PropertiesV11) == 112 && offsetof(PropertiesV11, maxMultiRequestSize) == 104);
static_assert(sizeof(PropertiesV12) == 128 && offsetof(PropertiesV12, guid) == 16);
static_assert(offsetof(PropertiesV12, ptrSupport) == 24 && offsetof(PropertiesV12, regIsGlobal) == 28);
static_assert(offsetof(PropertiesV12, forceFlush) == 32 && offsetof(PropertiesV12, speed) == 36);
static_assert(offsetof(PropertiesV12, port) == 40 && offsetof(PropertiesV12, latency) == 44);
static_assert(offsetof(PropertiesV12, maxComms) == 48 && offsetof(PropertiesV12, maxRecvs) == 52);
static_assert(offsetof(PropertiesV12, netDeviceType) == 56 && offsetof(PropertiesV12, netDeviceVersion) == 60);
static_assert(offsetof(PropertiesV12, virtualDevice) == 64 && offsetof(PropertiesV12, maxP2pBytes) == 104);
static_assert(offsetof(PropertiesV12, maxCollBytes) == 112 && offsetof(PropertiesV12, maxMultiRequestSize) == 120);
static_assert(offsetof(PropertiesV12, railId) == 124 && offsetof(PropertiesV12, planeId) == 126);

// --- Tables ---------------------------------------------------------------------------------------------------------

struct TableV6 {
  using Properties = PropertiesV6;
  const char* name;
  Result (*init)(Logger logger);
  Result (*devices)(int* count);
  Result (*getProperties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listenComm);
  Result (*connect)(int device, void* handle, void** sendComm);
  Result (*accept)(void* listenComm, void** recvComm);
  Result (*regMr)(void* comm, void* data, int size, int type, void** registration);
  Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** registration);
  Result (*deregMr)(void* comm, void* registration);
  Result (*isend)(void* sendComm, void* data, int size, int tag, void* registration, void** request);
  Result (*irecv)(void* recvComm, int count, void** data, int* sizes, int* tags, void** registrations, void** request);
  Result (*iflush)(void* recvComm, int count, void** data, int* sizes, void** registrations, void** request);
  Result (*test)(void* request, int* isDone, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
};
struct TableV7 {
  using Properties = PropertiesV7;
  const char* name;
  Result (*init)(Logger logger);
  Result (*devices)(int* count);
  Result (*getProperties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listenComm);
  Result (*connect)(int device, void* handle, void** sendComm, DeviceHandle** sendDevice);
  Result (*accept)(void* listenComm, void** recvComm, DeviceHandle** recvDevice);
  Result (*regMr)(void* comm, void* data, int size, int type, void** registration);
  Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** registration);
  Result (*deregMr)(void* comm, void* registration);
  Result (*isend)(void* sendComm, void* data, int size, int tag, void* registration, void** request);
  Result (*irecv)(void* recvComm, int count, void** data, int* sizes, int* tags, void** registrations, void** request);
  Result (*iflush)(void* recvComm, int count, void** data, int* sizes, void** registrations, void** request);
  Result (*test)(void* request, int* isDone, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* registration, void** deviceRegistration);
  Result (*irecvConsumed)(void* recvComm, int count, void* request);
};
struct TableV8 {
  using Properties = PropertiesV8;
  const char* name;
  Result (*init)(Logger logger);
  Result (*devices)(int* count);
  Result (*getProperties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listenComm);
  Result (*connect)(int device, void* handle, void** sendComm, DeviceHandle** sendDevice);
  Result (*accept)(void* listenComm, void** recvComm, DeviceHandle** recvDevice);
  Result (*regMr)(void* comm, void* data, size_t size, int type, void** registration);
  Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** registration);
  Result (*deregMr)(void* comm, void* registration);
  Result (*isend)(void* sendComm, void* data, int size, int tag, void* registration, void** request);
  Result (*irecv)(void* recvComm, int count, void** data, int* sizes, int* tags, void** registrations, void** request);
  Result (*iflush)(void* recvComm, int count, void** data, int* sizes, void** registrations, void** request);
  Result (*test)(void* request, int* isDone, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* registration, void** deviceRegistration);
  Result (*irecvConsumed)(void* recvComm, int count, void* request);
};
struct TableV9 {
  using Properties = PropertiesV9;
  const char* name;
  Result (*init)(Logger logger);
  Result (*devices)(int* count);
  Result (*getProperties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listenComm);
  Result (*connect)(int device, void* handle, void** sendComm, DeviceHandle** sendDevice);
  Result (*accept)(void* listenComm, void** recvComm, DeviceHandle** recvDevice);
  Result (*regMr)(void* comm, void* data, size_t size, int type, void** registration);
  Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** registration);
  Result (*deregMr)(void* comm, void* registration);
  Result (*isend)(void* sendComm, void* data, size_t size, int tag, void* registration, void** request);
  Result (*irecv)(void* recvComm, int count, void** data, size_t* sizes, int* tags, void** registrations,
                  void** request);
  Result (*iflush)(void* recvComm, int count, void** data, int* sizes, void** registrations, void** request);
  Result (*test)(void* request, int* isDone, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* registration, void** deviceRegistration);
  Result (*irecvConsumed)(void* recvComm, int count, void* request);
  Result (*makeVDevice)(int* device, VirtualDevice<4>* properties);
};
struct TableV10 {
  using Properties = PropertiesV10;
  const char* name;
  Result (*init)(Logger logger, ProfilerCallback profiler);
  Result (*devices)(int* count);
  Result (*getProperties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listenComm);
  Result (*connect)(int device, CommConfig* config, void* handle, void** sendComm, DeviceHandle** sendDevice);
  Result (*accept)(void* listenComm, void** recvComm, DeviceHandle** recvDevice);
  Result (*regMr)(void* comm, void* data, size_t size, int type, void** registration);
  Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** registration);
  Result (*deregMr)(void* comm, void* registration);
  Result (*isend)(void* sendComm, void* data, size_t size, int tag, void* registration, void* profiled, void** request);
  Result (*irecv)(void* recvComm, int count, void** data, size_t* sizes, int* tags, void** registrations,
                  void** profiled, void** request);
  Result (*iflush)(void* recvComm, int count, void** data, int* sizes, void** registrations, void** request);
  Result (*test)(void* request, int* isDone, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* registration, void** deviceRegistration);
  Result (*irecvConsumed)(void* recvComm, int count, void* request);
  Result (*makeVDevice)(int* device, VirtualDevice<4>* properties);
};
template <typename AnyProperties, int kMaxDevices>
struct TableWithContext {
  using Properties = AnyProperties;
  const char* name;
  Result (*init)(void** context, uint64_t commId, CommConfig* config, Logger logger, ProfilerCallback profiler);
  Result (*devices)(int* count);
  Result (*getProperties)(int device, Properties* properties);
  Result (*listen)(void* context, int device, void* handle, void** listenComm);
  Result (*connect)(void* context, int device, void* handle, void** sendComm, DeviceHandle** sendDevice);
  Result (*accept)(void* listenComm, void** recvComm, DeviceHandle** recvDevice);
  Result (*regMr)(void* comm, void* data, size_t size, int type, void** registration);
  Result (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** registration);
  Result (*deregMr)(void* comm, void* registration);
  Result (*isend)(void* sendComm, void* data, size_t size, int tag, void* registration, void* profiled, void** request);
  Result (*irecv)(void* recvComm, int count, void** data, size_t* sizes, int* tags, void** registrations,
                  void** profiled, void** request);
  Result (*iflush)(void* recvComm, int count, void** data, int* sizes, void** registrations, void** request);
  Result (*test)(void* request, int* isDone, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* registration, void** deviceRegistration);
  Result (*irecvConsumed)(void* recvComm, int count, void* request);
  Result (*makeVDevice)(int* device, VirtualDevice<kMaxDevices>* properties);
  Result (*finalize)(void* context);
  Result (*setNetAttr)(void* context, NetAttributes* attributes);
};
using TableV11 = TableWithContext<PropertiesV11, 4>;
using TableV12 = TableWithContext<PropertiesV12, 8>;

static_assert(sizeof(TableV6) == 17 * 8 && offsetof(TableV6, closeListen) == 16 * 8);
static_assert(sizeof(TableV7) == 19 * 8 && offsetof(TableV7, irecvConsumed) == 18 * 8);
static_assert(sizeof(TableV8) == 19 * 8 && offsetof(TableV8, test) == 13 * 8);
static_assert(sizeof(TableV9) == 20 * 8 && offsetof(TableV9, makeVDevice) == 19 * 8);
static_assert(sizeof(TableV10) == 20 * 8 && offsetof(TableV10, isend) == 10 * 8);
static_assert(sizeof(TableV11) == 22 * 8 && offsetof(TableV11, finalize) == 20 * 8);
static_assert(sizeof(TableV12) == 22 * 8 && offsetof(TableV12, test) == 13 * 8);
static_assert(offsetof(TableV12, init) == 1 * 8 && offsetof(TableV12, setNetAttr) == 21 * 8);

}  // namespace agspeed::comm::nccl
