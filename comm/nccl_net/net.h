// SPDX-License-Identifier: Apache-2.0
// Net: implements NCCL's network plug-in with the functions of the newest function table; tables.cpp adapts them to the
// older tables. A device is one or more interfaces (devices.h), and a connection sends over all of them. Only host
// memory is supported: NCCL copies GPU memory to and from it.
//
// Log messages of comm go to NCCL's log. A failure is logged there as a sentence, and then returned as a result code.
// Threading: any function from any thread. The connections and requests that NCCL holds are pointers to objects of
// comm/channel.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/channel/domain.h"
#include "comm/nccl_net/abi/net.h"
#include "comm/nccl_net/devices.h"

namespace agspeed::comm::nccl {

/// The longest message that is accepted, because test() returns sizes as int.
constexpr size_t kMaxMessageBytes = INT_MAX;

class Net {
 public:
  /// Returns the one instance of the process. It is never destroyed, because a thread of NCCL may outlive main().
  static Net& get();

  /// The first call opens the process's Domain (comm/channel/domain.h), which owns the rails. NCCL calls
  /// init() once per communicator, and old versions call it once per process.
  Result init(Logger logger);
  /// Closes the domain if finalize() was called as often as init().
  Result finalize();

  Result devices(int* count);
  /// Returns the device, or nullptr if there is none with this index. NCCL may keep pointers into the device.
  const Device* device(int index) const;

  Result listen(int device, void* handle, void** listenComm);
  Result connect(int device, void* handle, void** sendComm);
  Result accept(void* listenComm, void** recvComm);
  Result registerMemory(void* comm, void* data, int type, void** registration);
  Result send(void* sendComm, void* data, size_t size, int tag, void** request);
  /// Starts to receive `count` messages. All arrays have `count` elements; `sizes` are the capacities of the targets.
  Result receive(void* recvComm, int count, void** data, const size_t* sizes, const int* tags, void** request);
  Result test(void* request, int* isDone, int* sizes);
  Result closeChannel(void* comm);
  Result closeListener(void* comm);
  /// Logs that `what` is a bug of the plug-in, and returns kInternalError.
  Result failInternally(const char* what);

 private:
  Net() = default;
  /// Checks that init() was called, that the process was not forked since, and that the device exists. If not, logs the
  /// reason and returns an error.
  Result checkDevice(int device);
  void log(LogLevel level, unsigned long subsystems, const std::string& message) const;
  /// Logs how many bytes each interface has carried.
  void logTraffic();
  /// Closes the domain. In a forked process, which has no copy of the domain's thread, leaks the domain instead.
  void closeDomain();
  /// fail() logs a failure, refuse() logs why a call is refused. Both return the result code.
  Result fail(const Status& failure);
  Result refuse(const std::string& why);

  std::mutex mutex_;                      ///< guards init() and finalize(); the domain has its own lock for messages
  std::atomic<Logger> logger_ = nullptr;  ///< NCCL's log function
  int numUsers_ = 0;
  std::unique_ptr<channel::Domain> domain_;
  pid_t process_ = 0;  ///< the process that opened the domain
  std::vector<Device> devices_;
};

}  // namespace agspeed::comm::nccl
