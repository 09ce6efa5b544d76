// SPDX-License-Identifier: Apache-2.0
// Communicator: a group of ranks, with collective operations and messages between two ranks.
//
// start(), send(), receive() and receiveFromAny() start an operation, and return at once with a handle (operation.h).
// Only Operation::wait() and waitUntil() wait for other ranks. All ranks start the operations of a group in the same
// order, from one thread or from threads that agree on an order. Groups are independent of each other. Within a group,
// messages are independent of collectives.
//
// A failure of any kind (deadline, lost rank, calls that differ between ranks, abort) fails all operations of the
// group. The error names the rank, the operation and the reason, and is sent to the other ranks. The group is unusable
// afterwards: destroy it and create another. A call with invalid arguments fails alone; the group stays usable.
//
// Thread-safety: any thread except the engine's driver may call all functions. The driver may call start(), too.
// Ownership: the engine outlives the group. The destructor of a group fails its unfinished operations.
#pragma once

#include <memory>
#include <string>

#include "comm/collective/group.h"

namespace agspeed::comm::collective {

struct OperationOptions {
  /// The operation fails after this time; zero: the group's timeout.
  io::Clock::duration timeout = io::Clock::duration::zero();
  /// Collectives with a lower number start first if several could start. Sends and receives ignore it.
  int priority = 0;
  /// Returns whether the bytes that the operation reads are valid. Set this function if the bytes become valid only
  /// after the call. Until then the operation waits, and later operations may start.
  engine::Readiness readiness = nullptr;
  /// Only for collectives; sends and receives ignore it. The driver calls it once when the operation is done. If the
  /// arguments are invalid, start() calls it before it returns.
  engine::Operation::Callback onEnd = nullptr;
};

class Communicator {
 public:
  /// Creates this rank's end of a group. Invalid argument: the messenger's rank is not among the members, or an option
  /// is invalid.
  static StatusOr<std::unique_ptr<Communicator>> create(engine::Engine& engine, GroupOptions options);
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& name() const { return name_; }

  /// Starts a collective operation; CollectiveCall describes its arguments.
  engine::OperationHandle start(engine::CollectiveCall call, OperationOptions options = {});
  /// Starts to send to one rank. Messages of one tag between two ranks match in order: the n-th receive gets the n-th
  /// message. A receive must have the size of its send. Tags are below 2^32 - 1.
  engine::OperationHandle send(int rank, uint32_t tag, std::span<const std::byte> bytes, OperationOptions options = {});
  engine::OperationHandle receive(int rank, uint32_t tag, std::span<std::byte> bytes, OperationOptions options = {});
  /// Starts to receive a message with this tag from the first rank that sends one. Operation::sourceRank() then names
  /// that rank. The driver probes for messages once a millisecond.
  engine::OperationHandle receiveFromAny(uint32_t tag, std::span<std::byte> bytes, OperationOptions options = {});

  /// Sets the plan of operations that are started afterwards. Requires: all ranks call it between the same two
  /// operations.
  void setPlan(plan::Plan plan);
  /// Closes the group: fails all unfinished operations here, and also at the other ranks if a collective is running.
  /// The destructor calls it, too. Requires: no operation is started afterwards, and the caller is not the driver.
  void close();
  /// Fails the group here and at the other ranks: all unfinished and later operations fail with `reason`.
  void abort(const std::string& reason);
  /// Returns Ok, or the reason why the group is unusable.
  Status health();

 private:
  Communicator(engine::Engine& engine, GroupOptions options, int rank);

  engine::OperationHandle startMessage(bool isSend, int rank, uint32_t tag, std::span<std::byte> bytes,
                                       OperationOptions options);
  io::Clock::time_point deadlineOf(io::Clock::time_point now, const OperationOptions& options) const;
  engine::OperationHandle failed(Status status, engine::Operation::Callback onEnd = nullptr);

  engine::Engine& engine_;
  const int rank_;
  const std::string name_;
  const std::vector<int> members_;
  const io::Clock::duration timeout_;
  bool isClosed_ = false;         ///< only the driver uses it
  std::byte token_{};             ///< the input of barriers
  std::unique_ptr<Group> group_;  ///< only the driver uses it
};

}  // namespace agspeed::comm::collective
