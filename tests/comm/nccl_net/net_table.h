// SPDX-License-Identifier: Apache-2.0
// NetTable: one interface to any of NCCL's network tables, v6 to v12, so that one suite runs on all. All memory is host
// memory. Not thread-safe beyond the guarantees of the table itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "comm/nccl_net/abi/net.h"

namespace agspeed::comm::nccl {

/// Properties that exist only in some versions are left out, or have a default value for the versions without them.
struct DeviceProperties {
  std::string name;
  int ptrSupport = 0;
  int speed = 0;
  int maxComms = 0;
  int maxRecvs = 0;
  size_t maxP2pBytes = size_t{1} << 30;
};

using Handle = std::array<std::byte, kHandleBytes>;

class NetTable {
 public:
  virtual ~NetTable() = default;
  virtual std::string name() const = 0;
  virtual int version() const = 0;
  virtual Result init() = 0;
  virtual Result finalize() = 0;
  virtual Result devices(int& count) = 0;
  virtual Result properties(int device, DeviceProperties& properties) = 0;
  virtual Result listen(int device, Handle& handle, void*& listenComm) = 0;
  virtual Result connect(int device, Handle& handle, void*& sendComm) = 0;
  virtual Result accept(void* listenComm, void*& recvComm) = 0;
  virtual Result registerMemory(void* comm, std::span<std::byte> bytes, int type, void*& registration) = 0;
  virtual Result deregisterMemory(void* comm, void* registration) = 0;
  virtual Result send(void* comm, std::span<std::byte> bytes, int tag, void* registration, void*& request) = 0;
  /// Passes `request` to the table unchanged, because NCCL stores a hint in it before the call.
  virtual Result receive(void* comm, std::span<const std::span<std::byte>> targets, std::span<const int> tags,
                         std::span<void* const> registrations, void*& request) = 0;
  virtual Result test(void* request, bool& isDone, int* sizes) = 0;
  virtual Result closeSend(void* comm) = 0;
  virtual Result closeReceive(void* comm) = 0;
  virtual Result closeListen(void* comm) = 0;
  /// Returns the null pointers among the functions that NCCL calls without a check.
  virtual std::vector<std::string> missingFunctions() const = 0;
};

/// Returns the lines that the table has logged in this process, at any level.
std::vector<std::string> loggedLines();

/// Wraps `table`, which has that version. Returns nullptr if there is no such version.
std::unique_ptr<NetTable> wrapTable(int version, const void* table);

/// The source of a table: our library, or NCCL's own socket transport.
struct TableSource {
  std::string label;  ///< part of test names: "agspeed_v11", "nccl_socket"
  std::string library;
  int version = 0;  ///< 6 to 12; 0: NCCL's own socket transport
};
/// Used in the names of failed tests.
inline std::ostream& operator<<(std::ostream& out, const TableSource& source) { return out << source.label; }

/// A table loaded into this process, or a sentence that says why it cannot be loaded.
struct LoadedTable {
  std::unique_ptr<NetTable> table;
  std::string whyNot;
};
LoadedTable loadTable(const TableSource& source);

/// Returns the path of NCCL's library: $AG_TEST_NCCL_LIBRARY, the wheel in the repository's .venv, or the system's.
/// Empty: none.
std::string findNccl();

}  // namespace agspeed::comm::nccl
