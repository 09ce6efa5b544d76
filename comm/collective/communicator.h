// SPDX-License-Identifier: Apache-2.0
// A group of ranks: collective operations, messages between two ranks, abort.
//
// Every function starts something and returns at once with a handle (operation.h); nothing blocks but waiting for one.
// Operations of a group are started in the same order at all ranks, by one thread or by threads that agree on an order.
// Several groups, and messages beside collectives, are independent of each other.
//
// A failure of any kind (deadline, lost rank, calls that differ between ranks, abort) ends all operations of the group
// with a sentence on who, what and why, tells the other ranks, and leaves the group unusable: destroy it and create
// another. Calls that are wrong by themselves fail alone and leave the group as it is.
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
  /// Operations of a lower number go first where several could.
  int priority = 0;
  /// Where the bytes to be read come after the call: says when they are there. The operation keeps its place meanwhile.
  Readiness readiness = nullptr;
  /// Called once on the driver when the operation has ended; by start() itself where the call is wrong.
  Operation::Callback onEnd = nullptr;
};

class Communicator {
 public:
  /// Fails as invalid argument when the messenger's rank is not among the members, or an option makes no sense.
  static StatusOr<std::unique_ptr<Communicator>> create(Engine& engine, GroupOptions options);
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& name() const { return name_; }

  /// Starts a collective; see CollectiveCall for what it takes. Also on the driver.
  OperationHandle start(CollectiveCall call, OperationOptions options = {});
  /// Starts to send to one rank. Messages of one tag between two ranks arrive in the order of their sends; sizes must
  /// be those of the receives. Tags below 2^32 - 1.
  OperationHandle send(int rank, uint32_t tag, std::span<const std::byte> bytes, OperationOptions options = {});
  OperationHandle receive(int rank, uint32_t tag, std::span<std::byte> bytes, OperationOptions options = {});
  /// Receives the next message of the tag from whichever rank offers one first; Operation::sourceRank() says who it
  /// was. Finds it by looking once a millisecond.
  OperationHandle receiveFromAny(uint32_t tag, std::span<std::byte> bytes, OperationOptions options = {});

  /// Holds for operations started afterwards. Requires: all ranks do it between the same two operations.
  void setPlan(Plan plan);
  /// Ends all operations here; also at the other ranks, if any is under way. Requires: nothing is started afterwards,
  /// and this is not the driver. The destructor does it too.
  void close();
  /// Ends all operations here and at the other ranks.
  void abort(const std::string& reason);
  /// Ok, or why the group is not usable any more.
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
  bool isClosed_ = false;         ///< of the driver
  std::byte token_{};             ///< what barriers send
  std::unique_ptr<Group> group_;  ///< used on the driver only
};

}  // namespace agspeed::comm
