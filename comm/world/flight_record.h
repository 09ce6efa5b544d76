// SPDX-License-Identifier: Apache-2.0
// FlightRecorder: the latest operations of each group of a process, to explain a failure, and sums over all operations.
//
// Each group has a ring of its latest operations (FlightRing). The ring records an operation when it starts and looks
// up how it ended when the record is read. Recording costs a lock and, once the ring is full, no allocation. A ring
// holds an operation's handle only until it sees that the operation has ended.
//
// When an operation fails, the record of all groups is written as JSON to the folder AGSPEED_FLIGHT_RECORD_DIR, if set,
// as flight-record-rank<R>.json. Times are seconds since 1970. Thread-safety: all functions, from any thread.
// Ownership: shared. Rings keep their recorder alive; a recorder does not keep rings alive.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/engine/call.h"
#include "comm/engine/operation.h"

namespace agspeed::comm {

/// The facts about an operation that are known when it starts.
struct FlightFacts {
  std::string_view name;  ///< "all_reduce", of static lifetime
  uint64_t sequence = 0;  ///< of the group
  DType dtype = DType::kU8;
  int rank = -1;     ///< of the root, or of a message's peer; -1: none
  int64_t tag = -1;  ///< of a message; -1: none
  Clock::time_point started;
  Clock::duration timeout{};
};

/// Sums over the operations of one name.
struct OperationTotals {
  uint64_t numStarted = 0;
  uint64_t numEnded = 0;  ///< includes numFailed
  uint64_t numFailed = 0;
  uint64_t numBytes = 0;  ///< of input or output, whichever is larger at this rank
  double seconds = 0;     ///< from start to end, of the operations that ended
};

class FlightRing;

class FlightRecorder : public std::enable_shared_from_this<FlightRecorder> {
 public:
  static constexpr size_t kEntries = 512;  ///< per group

  FlightRecorder(int rank, int size) : rank_(rank), size_(size) {}

  /// A ring for a new group whose members are `ranks` of the world.
  std::shared_ptr<FlightRing> addGroup(std::string name, std::vector<int> ranks);
  std::map<std::string, OperationTotals> totals();
  /// All rings as JSON; `reason` says why the record is made.
  std::string toJson(const std::string& reason);
  /// Writes toJson() to AGSPEED_FLIGHT_RECORD_DIR, if set. A failure to write is logged.
  void write(const std::string& reason);

 private:
  friend class FlightRing;

  std::vector<std::shared_ptr<FlightRing>> rings();

  const int rank_;
  const int size_;
  std::mutex mutex_;  ///< locked after a ring's own mutex; guards the members below
  std::vector<std::weak_ptr<FlightRing>> rings_;
  std::map<std::string, OperationTotals, std::less<>> totals_;
};

class FlightRing {
 public:
  FlightRing(std::shared_ptr<FlightRecorder> recorder, std::string name, std::vector<int> ranks);

  /// Records that `operation` has started on these chunks.
  void add(const FlightFacts& facts, const BufferList& input, const BufferList& output, OperationHandle operation);
  /// Call this when an operation of the group has failed or a caller has given up waiting. The first call writes the
  /// record.
  void failed(const std::string& reason);

 private:
  friend class FlightRecorder;

  struct Entry {
    FlightFacts facts;
    std::vector<uint64_t> inputSizes, outputSizes;  ///< elements
    double startedAt = 0;
    OperationHandle operation;  ///< null once the ring has recorded how it ended
    Clock::time_point ended;
    std::string error;
  };

  /// Records how the entry's operation ended. Returns: whether it has ended. These three require the lock.
  bool settle(Entry& entry);
  void settleFirst();
  void settleAll();

  const std::shared_ptr<FlightRecorder> recorder_;
  const std::string name_;
  const std::vector<int> ranks_;
  std::mutex mutex_;
  std::vector<Entry> entries_;  ///< entry number n is at index n modulo kEntries
  uint64_t numAdded_ = 0;
  uint64_t firstOpen_ = 0;  ///< all earlier entries are settled
  bool hasFailed_ = false;
};

}  // namespace agspeed::comm
