// SPDX-License-Identifier: Apache-2.0
// Net: what NCCL asks of a network plug-in, in the form of the newest table; tables.cpp gives it the form of each. One
// device stands for all interfaces: a connection is striped over them. Host memory only: NCCL stages what is on a
// device.
//
// A failure is logged as a sentence through NCCL's logger, then returned as a result code. Threading: any function from
// any thread. Connections and requests that NCCL holds are pointers to those of comm/channel.
#pragma once

#include <sys/types.h>

#include <climits>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/channel/domain.h"
#include "comm/nccl_net/abi/net.h"

namespace agspeed::comm::nccl {

/// Sizes come back as int.
constexpr size_t kMaxMessageBytes = INT_MAX;

/// What all versions of the properties are made of.
struct DeviceFacts {
  std::string name;
  std::string pciPath;  ///< empty: no PCI device, or several
  uint64_t guid = 0;
  int speed = 0;  ///< Mbit/s, of all interfaces together
};

class Net {
 public:
  /// The process's. It is never destroyed: a thread of NCCL may outlive main().
  static Net& get();

  /// Once per communicator, or once per process in old versions. Its first call opens the domain.
  Result init(Logger logger);
  /// Its last call closes it.
  Result finalize();

  Result devices(int* count);
  /// Requires: init() was Ok.
  const DeviceFacts& facts() const { return facts_; }

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
  /// In a process that was forked later its thread is missing: there it is left alone.
  void closeDomain();
  Result fail(const Status& failure);
  Result refuse(const std::string& why);

  std::mutex mutex_;  ///< of the set-up; messages have the domain's
  Logger logger_ = nullptr;
  int numUsers_ = 0;
  std::unique_ptr<Domain> domain_;
  pid_t process_ = 0;  ///< that opened the domain
  DeviceFacts facts_;
};

}  // namespace agspeed::comm::nccl
