// SPDX-License-Identifier: Apache-2.0
// FlightRecorder: records the latest operations of each process group of torch, for the diagnosis of failures. It also
// sums over all operations of these groups. Only comm/c10d adds groups: operations of comm/horovod and comm/c_api are
// not recorded.
//
// Each group has a ring of its latest operations (FlightRing). The ring records the start of an operation. It records
// the outcome of an operation later, when further operations start or when the record is read. It keeps the operation's
// handle until then. To record an operation takes a lock and, once the ring is full, no allocation.
//
// When an operation fails, the record of all groups is written as JSON to the folder AGSPEED_FLIGHT_RECORD_DIR, if set,
// as flight-record-rank<R>.json. Times are seconds since 1970. Thread-safety: any thread may call all functions.
// Ownership: shared. Rings keep their recorder alive; a recorder does not keep rings alive.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/engine/call.h"
#include "comm/engine/operation.h"

namespace agspeed::comm::world {

/// The facts about an operation that are known when it starts.
struct FlightFacts {
  std::string_view name;  ///< such as "all_reduce"; the text has static lifetime
  uint64_t sequence = 0;  ///< number of the operation in its group
  DType dtype = DType::kU8;
  int rank = -1;     ///< rank of the root, or of a message's peer; -1: none
  int64_t tag = -1;  ///< tag of a message; -1: none
  io::Clock::time_point started;
  io::Clock::duration timeout{};
};

/// Sums over the operations of one name.
struct OperationTotals {
  uint64_t numStarted = 0;
  uint64_t numEnded = 0;  ///< includes numFailed operations
  uint64_t numFailed = 0;
  uint64_t numBytes = 0;  ///< bytes of input or output, whichever is larger at this rank
  double seconds = 0;     ///< sum of the times from start to end of the operations that have ended
};

/// The operation that ended last.
struct FinishedOperation {
  std::string group;
  std::string_view name;  ///< name of the operation, of static lifetime
  uint64_t sequence = 0;
  io::Clock::time_point ended;
};

class FlightRing;

class FlightRecorder : public std::enable_shared_from_this<FlightRecorder> {
 public:
  static constexpr size_t kEntries = 512;  ///< number of operations kept for each group

  FlightRecorder(int rank, int size) : rank_(rank), size_(size) {}

  /// Makes the ring of a new group. `ranks` are the numbers of its members in the world. The recorder includes the ring
  /// in its records as long as the caller keeps the ring.
  std::shared_ptr<FlightRing> addGroup(std::string name, std::vector<int> ranks);
  /// Returns the sums, by name of the operation.
  std::map<std::string, OperationTotals> totals();
  /// Returns the operation that ended last; nullopt if none has ended.
  std::optional<FinishedOperation> lastFinished();
  /// Returns the record of all rings as JSON. `reason` says why the record is made.
  std::string toJson(const std::string& reason);
  /// Writes toJson() to a file in AGSPEED_FLIGHT_RECORD_DIR, if that is set. If writing fails, logs the reason.
  void write(const std::string& reason);

 private:
  friend class FlightRing;

  /// Returns the rings that still exist.
  std::vector<std::shared_ptr<FlightRing>> rings();

  const int rank_;
  const int size_;
  std::mutex mutex_;  ///< locked after a ring's own mutex; guards the members below
  std::vector<std::weak_ptr<FlightRing>> rings_;
  std::map<std::string, OperationTotals, std::less<>> totals_;
};

/// The ring of one group's latest operations.
class FlightRing {
 public:
  FlightRing(std::shared_ptr<FlightRecorder> recorder, std::string name, std::vector<int> ranks);

  /// Records that `operation` has started, with these chunks as input and output.
  void add(const FlightFacts& facts, const engine::BufferList& input, const engine::BufferList& output,
           engine::OperationHandle operation);
  /// Writes the record of all groups at the first call. Call it when an operation of the group has failed, or when a
  /// caller has given up waiting.
  void failed(const std::string& reason);

 private:
  friend class FlightRecorder;

  struct Entry {
    FlightFacts facts;
    std::vector<uint64_t> inputSizes, outputSizes;  ///< sizes of the chunks, in elements
    double startedAt = 0;                           ///< seconds since 1970
    engine::OperationHandle operation;              ///< null once the ring has recorded the outcome
    io::Clock::time_point ended;
    std::string error;
  };

  // The next three functions require mutex_.
  /// Records the outcome of the entry's operation if it has completed. Returns false if it has not completed.
  bool settle(Entry& entry);
  /// Calls settle() for the oldest open entries, up to the first that has not completed.
  void settleFirst();
  /// Calls settle() for all open entries.
  void settleAll();

  const std::shared_ptr<FlightRecorder> recorder_;
  const std::string name_;
  const std::vector<int> ranks_;
  std::mutex mutex_;
  std::vector<Entry> entries_;  ///< entry number n is at index n modulo kEntries
  uint64_t numAdded_ = 0;
  uint64_t firstOpen_ = 0;  ///< number of the first entry whose outcome may not be recorded yet
  bool hasFailed_ = false;
};

}  // namespace agspeed::comm::world
