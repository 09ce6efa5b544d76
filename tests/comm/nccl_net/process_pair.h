// SPDX-License-Identifier: Apache-2.0
// Two processes that load a network table and talk through it, as two ranks of NCCL do: each runs a function with a
// Side, which has the table and a way to tell the other process things outside of it, as NCCL's bootstrap does.
// A side fails by throwing; the test then fails with its sentence.
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
/// The same for a call of the table; the lines that it logged are added.
void requireOk(Result result, const std::string& call);
/// Throws, with what was logged, unless one line that the table has logged has all these texts.
void requireLogged(const std::vector<std::string>& texts);

/// A send or receive under way. The memory is the caller's.
struct Pending {
  void* comm = nullptr;
  void* request = nullptr;
  std::vector<int> sizes;  ///< once it is done: of each message, as the table says
  bool isDone = false;
};

class Side {
 public:
  Side(NetTable& table, int socket) : table_(table), socket_(socket) {}

  NetTable& table() { return table_; }

  // What the other side is told, and says, outside of the table.
  void tell(std::span<const std::byte> bytes) const;
  void hear(std::span<std::byte> bytes) const;
  /// Returns when the other side has called it as often.
  void meet() const;
  /// "process 1234 on host", of the other side, which calls it, too.
  std::string exchangeNames() const;

  void* listen(Handle& handle, int device = 0);
  /// Connects to where the other side listens; calls connect until it has a connection.
  void* connect(Handle handle, int device = 0);
  void* accept(void* listenComm);
  /// One connection from the side that sends to the one that receives: listens, tells, accepts or connects.
  void* openSend(int device = 0);
  void* openReceive(void** listenComm = nullptr, int device = 0);

  /// Calls isend until it gives a request.
  Pending send(void* comm, std::span<std::byte> bytes, int tag = 0);
  Pending receive(void* comm, std::vector<std::span<std::byte>> targets, std::vector<int> tags = {0},
                  void* hint = nullptr);
  /// Tests until all are done, as NCCL does: of a connection the oldest that is not done. Its socket transport relies
  /// on that order.
  void wait(std::span<Pending> pending);
  void wait(Pending& pending) { wait(std::span(&pending, 1)); }
  /// Tests it until it fails; throws when it is done or nothing happens.
  Result waitForFailure(Pending& pending);
  /// The first call's result that is not Ok, or Ok when none was within that time.
  Result testFor(Pending& pending, std::chrono::milliseconds time);

 private:
  void* memory(void* comm, std::span<std::byte> bytes);

  NetTable& table_;
  int socket_;
};

using SideBody = std::function<void(Side&)>;

/// Loads the table in two new processes and runs a body in each, after init; finalize follows. A body that ends by
/// killing its process is as good as one that returns. Returns: what failed, or "" ; "skip: ..." where the table cannot
/// be loaded here.
std::string runTwo(const TableSource& source, const SideBody& first, const SideBody& second);
/// The same with one process.
std::string runOne(const TableSource& source, const std::function<void(NetTable&)>& body);

/// Several processes, each with a Side for every other.
class Group {
 public:
  Group(NetTable& table, size_t rank, const std::vector<int>& sockets);

  size_t rank() const { return rank_; }
  size_t size() const { return sides_.size(); }
  /// Requires: another rank.
  Side& side(size_t peer) { return sides_[peer]; }
  /// Returns when all have called it as often.
  void meet();

 private:
  size_t rank_;
  std::vector<Side> sides_;  ///< by rank; the own one is of no use
};
std::string runGroup(const TableSource& source, size_t size, const std::function<void(Group&)>& body);

/// Bytes that depend on `seed` and the position.
std::vector<std::byte> patternOf(uint64_t seed, size_t size);

}  // namespace agspeed::comm::nccl
