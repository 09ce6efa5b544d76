// SPDX-License-Identifier: Apache-2.0
// Two processes that load a network table and communicate through it, as two ranks of NCCL do. Each runs a function
// with a Side. The Side has the table, and a way to send data to the other process outside of it, as NCCL's bootstrap
// has. A side fails by throwing. The test then fails with the text of the exception.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/comm/nccl_net/net_table.h"

namespace agspeed::comm::nccl {

struct SideFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Throws unless `isTrue`.
void require(bool isTrue, const std::string& what);
/// Throws unless the call of the table succeeded. The exception's text includes the lines that the table logged.
void requireOk(Result result, const std::string& call);
/// Throws unless one of the table's log lines has all these texts. The exception's text includes the log.
void requireLogged(const std::vector<std::string>& texts);

/// A send or receive in flight. Requires: the memory lives until it is done.
struct Pending {
  void* comm = nullptr;
  void* request = nullptr;
  std::vector<int> sizes;  ///< valid once it is done: the size of each message, as the table reports it
  bool isDone = false;
};

class Side {
 public:
  Side(NetTable& table, int socket) : table_(table), socket_(socket) {}

  NetTable& table() { return table_; }

  // Send and receive data through a socket, not through the table.
  void tell(std::span<const std::byte> bytes) const;
  void hear(std::span<std::byte> bytes) const;
  /// Waits until the other side has called barrier() as often as this side.
  void barrier() const;
  /// Returns the other side's name, "process 1234 on host". Both sides must call it.
  std::string exchangeNames() const;

  void* listen(Handle& handle, int device = 0);
  /// Connects to the other side's listener. Repeats the table's connect until it returns a connection.
  void* connect(Handle handle, int device = 0);
  void* accept(void* listenComm);
  /// Opens one connection from the sending side to the receiving one, which includes listen, connect and accept.
  void* openSend(int device = 0);
  void* openReceive(void** listenComm = nullptr, int device = 0);

  /// Repeats isend until it returns a request.
  Pending send(void* comm, std::span<std::byte> bytes, int tag = 0);
  Pending receive(void* comm, std::vector<std::span<std::byte>> targets, std::vector<int> tags = {0},
                  void* hint = nullptr);
  /// Tests until all are done. Like NCCL it tests the oldest request of each connection that is not done. NCCL's socket
  /// transport relies on that order.
  void wait(std::span<Pending> pending);
  void wait(Pending& pending) { wait(std::span(&pending, 1)); }
  /// Tests the request until it fails. Throws if it succeeds or does not end.
  Result waitForFailure(Pending& pending);
  /// Tests the request repeatedly for `time`. Returns the first result that is not kOk, or kOk if there was none.
  Result testFor(Pending& pending, std::chrono::milliseconds time);

 private:
  void* memory(void* comm, std::span<std::byte> bytes);

  NetTable& table_;
  int socket_;
};

using SideBody = std::function<void(Side&)>;

/// Loads the table in two new processes, and runs init, a body and finalize in each. A body may end by killing its
/// process. Returns "" or the failure, and "skip: ..." if the table cannot be loaded here.
std::string runTwo(const TableSource& source, const SideBody& first, const SideBody& second);
/// Like runTwo(), but with one process.
std::string runOne(const TableSource& source, const std::function<void(NetTable&)>& body);

/// Several processes, each with a Side for every other.
class Group {
 public:
  Group(NetTable& table, size_t rank, const std::vector<int>& sockets);

  size_t rank() const { return rank_; }
  size_t size() const { return sides_.size(); }
  /// Requires: `peer` is not this rank.
  Side& side(size_t peer) { return sides_[peer]; }
  /// Waits until all processes have called barrier() as often as this one.
  void barrier();

 private:
  size_t rank_;
  std::vector<Side> sides_;  ///< by rank; the entry of this rank is not used
};
std::string runGroup(const TableSource& source, size_t size, const std::function<void(Group&)>& body);

/// Returns bytes that depend on `seed` and the position.
std::vector<std::byte> patternOf(uint64_t seed, size_t size);

}  // namespace agspeed::comm::nccl
