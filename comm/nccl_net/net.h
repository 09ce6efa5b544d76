// SPDX-License-Identifier: Apache-2.0
// Net: what NCCL asks of a network plug-in, in the form of the newest table; tables.cpp gives it the form of each. A
// device stands for all interfaces or for some (devices.h): a connection is striped over them. Host memory only: NCCL
// stages what is on a GPU.
//
// All that the layers below log goes to NCCL's log. A failure is logged there as a sentence, then returned as a result
// code. Threading: any function from
// any thread. Connections and requests that NCCL holds are pointers to those of comm/channel.
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

/// Sizes come back as int.
constexpr size_t kMaxMessageBytes = INT_MAX;

class Net {
 public:
  /// The process's. It is never destroyed: a thread of NCCL may outlive main().
  static Net& get();

  /// Once per communicator, or once per process in old versions. Its first call opens the domain.
  Result init(Logger logger);
  /// Its last call closes it.
  Result finalize();

  Result devices(int* count);
  /// nullptr: there is no such device. NCCL may keep pointers into it.
  const Device* device(int index) const;

  Result listen(int device, void* handle, void** listenComm);
  Result connect(int device, void* handle, void** sendComm);
  Result accept(void* listenComm, void** recvComm);
  Result registerMemory(void* comm, void* data, int type, void** registration);
  Result send(void* sendComm, void* data, size_t size, int tag, void** request);
  /// `sizes` are those of the targets; `count` of all arrays.
  Result receive(void* recvComm, int count, void** data, const size_t* sizes, const int* tags, void** request);
  Result test(void* request, int* isDone, int* sizes);
  Result closeChannel(void* comm);
  Result closeListener(void* comm);
  /// Something that cannot happen has.
  Result failInternally(const char* what);

 private:
  Net() = default;
  /// Whether a set-up call makes sense.
  Result checkDevice(int device);
  void log(LogLevel level, unsigned long subsystems, const std::string& message) const;
  /// What each interface has carried.
  void logTraffic();
  /// In a process that was forked later its thread is missing: there it is left alone.
  void closeDomain();
  Result fail(const Status& failure);
  Result refuse(const std::string& why);

  std::mutex mutex_;                      ///< of the set-up; messages have the domain's
  std::atomic<Logger> logger_ = nullptr;  ///< NCCL's
  int numUsers_ = 0;
  std::unique_ptr<Domain> domain_;
  pid_t process_ = 0;  ///< that opened the domain
  std::vector<Device> devices_;
};

}  // namespace agspeed::comm::nccl
