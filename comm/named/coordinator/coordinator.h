// SPDX-License-Identifier: Apache-2.0
// Coordinator: decides which operations of a group run, and in what order. It lives at the group's lowest rank.
//
//   id_cache.h        short numbers for names that repeat
//   batches.h         lists of ids that ranks send as a whole
//   waiting_table.h   operations that some ranks have submitted
//   ready_queue.h     operations that all ranks have submitted
//
// Ranks submit operations in any order. An operation is ready when the last rank has submitted it. The coordinator
// fuses ready operations of one kind (all-reduces or broadcasts) up to a number of bytes, in the order that the plan
// states. If the requests of a name differ, all ranks get the same error, which names two ranks and both values. Other
// operations are not affected. Operations do not wait for ranks that have joined. Ranks may send lists of ids. If these
// lists differ, their operations are matched id by id.
//
// This class neither sends messages nor blocks; NamedGroup does the communication. Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/io/clock.h"
#include "comm/named/coordinator/batches.h"
#include "comm/named/coordinator/entry.h"
#include "comm/named/coordinator/fusion.h"
#include "comm/named/coordinator/id_cache.h"
#include "comm/named/coordinator/ready_queue.h"
#include "comm/named/coordinator/waiting_table.h"
#include "comm/named/request.h"
#include "runtime/base/status.h"

namespace agspeed::comm::coordinator {

class Coordinator {
 public:
  /// Coordinates a group of `size` ranks with at most `cacheCapacity` cached names.
  Coordinator(int size, size_t cacheCapacity, FusionPlan plan = {});

  /// Replaces the plan, for all operations that are not part of a response yet.
  void setPlan(FusionPlan plan);

  /// Submits a request of `rank`. Requires: no other request of this rank and name is waiting for its response.
  void add(int rank, named::Request request, io::Clock::time_point now);
  /// addCached(id) submits the rank's last request under this id again. addCached(ids) does so for a list of ids. Fails
  /// with data loss if the rank has made no request under an id, or if an id is part of a batch that is ready.
  Status addCached(int rank, uint32_t id, io::Clock::time_point now);
  Status addCached(int rank, const std::vector<uint32_t>& ids, io::Clock::time_point now);
  /// Records that `rank` no longer uses an evicted id; see IdCache::drop().
  Status dropId(int rank, uint32_t id) { return ids_.drop(rank, id); }

  /// Decides whether next() should be called now; see ReadyQueue::isResponseDue().
  bool isResponseDue(const RunningResponses& running, io::Clock::time_point now);
  /// Takes the ready operations that run next, and returns them as a response. Requires: an operation is ready.
  named::Response next();

  const IdCache& ids() const { return ids_; }
  const ReadyQueue& ready() const { return ready_; }

  /// An operation that some ranks have submitted and others have not.
  struct Stalled {
    std::string name;
    std::vector<int> missing;     ///< the ranks that have not submitted the operation
    io::Clock::time_point since;  ///< when the first rank submitted the operation
  };
  /// Returns the waiting operations that a rank has submitted before `since`, oldest first.
  std::vector<Stalled> stalled(io::Clock::time_point since) const;
  /// Whether an operation waits for a rank, or joined ranks wait for the other ranks to join.
  bool isWaiting() const { return areAwaited() || numJoined_ > 0; }
  /// Returns the ranks that have not joined, or none if no rank has joined.
  std::vector<int> unjoined() const;

 private:
  /// Whether an operation waits for a rank that has not submitted it.
  bool areAwaited() const { return waiting_.size() + batches_.numWaitingIds() > 0; }
  /// Adds a request to the entry of its name. Makes the entry ready if no other rank's request is missing. `sentId`:
  /// the id that the rank has sent, or 0 if it has sent the request in full.
  void add(int rank, RequestHandle request, uint32_t sentId, io::Clock::time_point now);
  /// Makes a waiting batch of these ids. Returns null if they cannot form a batch; the caller then handles them one by
  /// one.
  Batch* newBatch(const std::vector<uint32_t>& ids, io::Clock::time_point now);
  /// Records that the rank has sent the batch's list. Makes the batch ready if all other ranks have sent the list, too.
  void addSubmission(Batch& batch, int rank);
  /// Replaces the waiting batch by one waiting entry per id.
  void split(Batch& batch);
  /// Makes an entry for each id of a batch, with the requests of the ranks that have sent the batch's list.
  std::vector<EntryHandle> entriesOf(const Batch& batch);
  /// Records that the rank has joined. When all ranks have joined, makes the join ready as an operation.
  void join(int rank);
  bool isReady(const Entry& entry) const;
  /// Whether each rank has repeated, by id, its request of the last response. The requests then agree, as they did for
  /// that response, and need no comparison.
  bool isKnownToAgree(const Entry& entry) const;
  /// Makes the response for an entry: its operations, or the error if the requests differ.
  named::Response responseFor(const Entry& entry);
  /// Adds ready operations to the response that can be fused with it, up to the plan's limit. `numBytes`: size of the
  /// operations that are already in the response.
  void fuse(named::Response& response, size_t numBytes);
  /// Adds the entry's operation, or all operations of its batch, to the response.
  void addItems(const Entry& entry, named::Response& response);

  int size_;
  IdCache ids_;
  Batches batches_;
  WaitingTable waiting_;
  ReadyQueue ready_;
  EntryPool pool_;
  std::vector<bool> hasJoined_;  ///< hasJoined_[rank]
  int numJoined_ = 0, lastJoined_ = -1;
};

}  // namespace agspeed::comm::coordinator
