// SPDX-License-Identifier: Apache-2.0
// A group of ranks: collective operations, messages between two ranks, abort.
//
// Every function starts an operation and returns at once with a handle (operation.h). Only waiting for a handle blocks.
// All ranks start the operations of a group in the same order, from one thread or from threads that agree on an order.
// Several groups are independent of each other, and so are messages and collectives.
//
// A failure of any kind (deadline, lost rank, calls that differ between ranks, abort) ends all operations of the group.
// The error names the rank, the operation and the reason. It reaches the other ranks, and the group is unusable
// afterwards: destroy it and create another. A call that is wrong in itself fails alone; the group stays usable.
//
// Thread-safety: all functions, from any thread but the engine's driver. Ownership: the engine outlives the group;
// destroying a group ends its operations.
#pragma once

#include <memory>
#include <string>

#include "comm/collective/group.h"

namespace agspeed::comm {

struct OperationOptions {
  /// The operation fails after this time; zero: the group's timeout.
  Clock::duration timeout = Clock::duration::zero();
  /// Operations with a lower number start first if several could start.
  int priority = 0;
  /// Set if the bytes to be read become valid only after the call: returns whether they are there. Meanwhile the
  /// operation keeps its place.
  Readiness readiness = nullptr;
  /// Called once on the driver when the operation has ended, or by start() itself if the call is wrong.
  Operation::Callback onEnd = nullptr;
};

class Communicator {
 public:
  /// Fails with invalid argument if the messenger's rank is not among the members or an option makes no sense.
  static StatusOr<std::unique_ptr<Communicator>> create(Engine& engine, GroupOptions options);
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& name() const { return name_; }

  /// Starts a collective; CollectiveCall describes its arguments. May also be called on the driver.
  OperationHandle start(CollectiveCall call, OperationOptions options = {});
  /// Starts to send to one rank. Messages of one tag between two ranks arrive in the order of their sends. A receive
  /// must have the size of its send. Tags are below 2^32 - 1.
  OperationHandle send(int rank, uint32_t tag, std::span<const std::byte> bytes, OperationOptions options = {});
  OperationHandle receive(int rank, uint32_t tag, std::span<std::byte> bytes, OperationOptions options = {});
  /// Receives the next message of the tag from the first rank that offers one. Operation::sourceRank() names that rank.
  /// It probes for messages once a millisecond.
  OperationHandle receiveFromAny(uint32_t tag, std::span<std::byte> bytes, OperationOptions options = {});

  /// Applies to operations started afterwards. Requires: all ranks call it between the same two operations.
  void setPlan(Plan plan);
  /// Ends all operations here, and at the other ranks if a collective is running. Requires: nothing is started
  /// afterwards, and the caller is not the driver. The destructor calls it too.
  void close();
  /// Ends all operations here and at the other ranks.
  void abort(const std::string& reason);
  /// Ok, or why the group is no longer usable.
  Status health();

 private:
  Communicator(Engine& engine, GroupOptions options, int rank);

  OperationHandle startMessage(bool isSend, int rank, uint32_t tag, std::span<std::byte> bytes,
                               OperationOptions options);
  Clock::time_point deadlineOf(Clock::time_point now, const OperationOptions& options) const;
  OperationHandle failed(Status status, Operation::Callback onEnd = nullptr);

  Engine& engine_;
  const int rank_;
  const std::string name_;
  const std::vector<int> members_;
  const Clock::duration timeout_;
  bool isClosed_ = false;         ///< used by the driver alone
  std::byte token_{};             ///< the input of barriers
  std::unique_ptr<Group> group_;  ///< used on the driver only
};

}  // namespace agspeed::comm
