// SPDX-License-Identifier: Apache-2.0
// Coordinator: decides which operations of a group run, and in what order. It lives at the group's lowest rank.
//
// Ranks submit operations in any order. An operation is ready when the last rank has submitted it. The coordinator
// fuses ready all-reduces and broadcasts of one kind up to a number of bytes, in the order that the plan states. A
// large tensor runs alone, because copies into a buffer and back would cost more than one more operation. If the
// requests of a name differ, all ranks get the same error, which names two ranks and both values; the next operation
// works. A rank that has joined counts as having submitted everything.
//
// Repeated names are cached. The first response that runs a name gives it an id. From then on a rank whose request has
// not changed sends only the id, and the response refers to it by the id. When all ids are taken, the coordinator
// evicts one that has not been used for long: a response announces this to the ranks, and the id is free once each rank
// has confirmed. If all ranks send the same list of ids, the list is matched as a whole: only the first rank's list
// costs a lookup per id, the lists of the others cost one comparison.
//
// A plain value: it sends nothing and waits for nothing. Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/io/clock.h"
#include "comm/named/request.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// The order in which ready operations run.
enum class FusionOrder : uint8_t {
  kTime,      ///< in the order in which they became ready; a ready operation leaves at once
  kSize,      ///< as kTime, but waits some ms for full buffers while other operations are awaited
  kPriority,  ///< by Request::priority, the highest first
  kModel,     ///< in the order in which the names became ready for the first time
};

/// "time", "size", "priority", "model".
std::string_view toString(FusionOrder order);

/// How operations are fused. No choice here changes a result, because every element is reduced alike in any buffer. So
/// only the coordinator has a plan, and it may change between any two responses.
struct FusionPlan {
  size_t fusionBytes = size_t{32} << 20;  ///< upper limit of a fused response; 0: nothing is fused
  FusionOrder order = FusionOrder::kTime;
  uint32_t version = 0;
};

class Coordinator {
 public:
  /// Coordinates a group of `size` ranks with at most `cacheCapacity` cached names.
  Coordinator(int size, size_t cacheCapacity, FusionPlan plan = {});

  const FusionPlan& plan() const { return plan_; }
  /// Applies to operations that are not fused yet.
  void setPlan(FusionPlan plan);

  /// `rank` has this request ready. Requires: the rank has no other request of this name that has not run yet.
  void add(int rank, Request request, Clock::time_point now);
  /// Repeats the rank's last request under this id. Fails with data loss if there is none, or if the id is part of a
  /// list that is ready.
  Status addCached(int rank, uint32_t id, Clock::time_point now);
  Status addCached(int rank, const std::vector<uint32_t>& ids, Clock::time_point now);
  /// The request that `rank` last made under the id; null if it has made none.
  const Request* cachedRequest(int rank, uint32_t id) const;
  /// `rank` no longer uses the evicted id. Fails with data loss if the id is not evicted.
  Status dropId(int rank, uint32_t id);

  /// Bytes of all ready operations together. Operations without bytes count as 1, so this is 0 only if nothing is
  /// ready.
  size_t readyBytes() const;
  /// Counts responses whose data is moving: responses of one large tensor, and all others.
  struct Running {
    /// `first`: the request of the response's first operation.
    void began(const Request& first);
    void ended(const Request& first);

    size_t numOther = 0, numLarge = 0, largeBytes = 0;
  };
  /// Whether to make a response now. It is not due while enough responses are running, so that more operations can be
  /// fused, or while FusionOrder::kSize waits for a full buffer.
  bool isResponseDue(const Running& running, Clock::time_point now);
  /// Until when the plan holds ready operations; max if it holds none.
  Clock::time_point heldUntil() const { return heldUntil_; }
  /// The next response. Requires: readyBytes() > 0.
  Response next();
  /// How many names have an id.
  size_t numCached() const { return ids_.size(); }

  /// An operation that not all ranks have ready.
  struct Stalled {
    std::string name;
    std::vector<int> missing;  ///< ranks
    Clock::time_point since;   ///< when the first rank had it ready
  };
  /// The operations that some rank submitted before `since`, oldest first.
  std::vector<Stalled> stalled(Clock::time_point since) const;
  /// Whether stalled() operations or joined ranks exist.
  bool isWaiting() const { return numWaiting_ > 0 || numJoined_ > 0; }
  /// The ranks that have not joined; empty if no rank has joined.
  std::vector<int> unjoined() const;

 private:
  using Handle = std::shared_ptr<const Request>;

  /// A list of ids that several ranks have sent alike. It replaces one entry per id until a rank sends something else.
  struct Batch {
    std::vector<uint32_t> ids;
    std::vector<bool> hasSaid;  ///< by rank
    int numSaid = 0;            ///< ranks that have sent the list; all: it is ready
    size_t numBytes = 0;
    Clock::time_point since;
  };
  using BatchHandle = std::unique_ptr<Batch>;

  struct Entry {
    std::vector<Handle> requests;  ///< per rank; null if it has none yet
    int numSubmitted = 0;
    uint32_t cachedId = 0;  ///< the id that all ranks used so far; 0 if one of them sent its request in full
    uint64_t order = 0;
    int64_t place = 0;    ///< position among ready entries: the lowest runs first
    size_t numBytes = 0;  ///< set once it is ready
    BatchHandle batch;    ///< the ready batch that this entry is; `requests` then holds its first one
    Clock::time_point since;
  };
  using EntryHandle = std::unique_ptr<Entry>;

  struct Cached {
    EntryHandle waiting;     ///< requests under this name while not all ranks have submitted; null if none or evicted
    Batch* batch = nullptr;  ///< the batch in which the id waits or is ready
    size_t numBytes = 0;     ///< of `agreement`
    uint32_t alike = 0;      ///< equal ids can be fused; 0: the id cannot join a batch
    bool isOfAll = false;    ///< whether all ranks had a request in the last response
    bool isEvicted = false;
    int numForgotten = 0;          ///< ranks that have confirmed the eviction
    uint64_t lastUse = 0;          ///< value of numItems_ at the last use
    AgreementHandle agreement;     ///< as sent last
    std::vector<Handle> requests;  ///< per rank: its request in the last response with this id
    std::string name;

    bool isEvictable() const { return !isEvicted && batch == nullptr; }
    bool isBatchable() const { return isOfAll && alike != 0 && isEvictable() && waiting == nullptr; }
  };

  /// `cachedId`: 0 if the rank sent the request in full.
  void add(int rank, Handle request, uint32_t cachedId, Clock::time_point now);
  /// Whether a batch of this size runs as one operation at one place in the order.
  bool runsWhole(size_t numBytes) const;
  /// Null if the ids cannot form a batch and have to be handled one by one.
  BatchHandle newBatch(const std::vector<uint32_t>& ids, Clock::time_point now);
  void said(Batch& batch, int rank);
  /// Replaces the batch by one waiting entry per id.
  void split(Batch& batch);
  BatchHandle takeBatch(const Batch& batch);
  EntryHandle entryOf(const Batch& batch, uint32_t id);
  void join(int rank);
  /// The id at which an entry of this name waits; 0: it waits in `table_`. `cachedId`: the id that the rank sent, or 0.
  uint32_t idOf(const std::string& name, uint32_t cachedId) const;
  EntryHandle newEntry(uint32_t cachedId, Clock::time_point now);
  /// Keeps the entry's memory for the next one.
  void recycle(EntryHandle entry);
  bool isReady(const Entry& entry) const;
  /// Whether the requests are the same as in the last response, in which they agreed.
  bool isKnownToAgree(const Entry& entry) const;
  void moveReady();
  void makeReady(EntryHandle entry);
  EntryHandle takeReady();
  int64_t placeOf(const Entry& entry) const;
  static bool standsAlone(const Entry& entry);
  Response responseFor(const Entry& entry);
  /// `numBytes`: size of the operations that are already in the response.
  void fuse(Response& response, size_t numBytes);
  void addItems(const Entry& entry, Response& response);
  Response::Item itemFor(const Entry& entry);
  /// See Cached::alike.
  uint32_t alikeOf(const AgreementHandle& agreement, size_t numBytes);
  /// Gives an id to a name that has none; 0 if all are taken.
  uint32_t newIdFor(const std::string& name);
  void evictOne();

  const int size_;
  const size_t cacheCapacity_;
  FusionPlan plan_;
  std::unordered_map<std::string, EntryHandle> table_;  ///< waiting entries of names without an id
  std::vector<BatchHandle> batches_;                    ///< waiting batches
  size_t numWaiting_ = 0;                               ///< waiting entries, in `cache_`, `table_` and `batches_`
  std::deque<EntryHandle> ready_;
  std::vector<EntryHandle> spare_;
  size_t readyBytes_ = 0;
  uint64_t numEntries_ = 0;
  std::vector<bool> hasJoined_;
  int numJoined_ = 0, lastJoined_ = -1;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Cached> cache_;  ///< by id - 1
  std::vector<uint32_t> freeIds_;
  /// For every set of operations that can be fused with each other: one example, and the number in Cached::alike.
  std::vector<std::pair<AgreementHandle, uint32_t>> examples_;
  uint32_t numExamples_ = 0;       ///< highest number so far
  size_t numWithoutId_ = 0;        ///< names that got no id in the response being built; each evicts an id
  std::vector<uint32_t> evicted_;  ///< announced in the next response
  Clock::time_point heldUntil_ = Clock::time_point::max();
  uint64_t numItems_ = 0;  ///< operations in all responses so far
};

/// The first request that is not null. Requires: there is one.
const Request& firstOf(const std::vector<std::shared_ptr<const Request>>& requests);
/// canFuse(): whether both may be parts of one operation. runsAlone(): whether a request of this size is not fused.
bool canFuse(const Request& left, const Request& right);
bool runsAlone(const Request& request, size_t numBytes);
/// A sentence that names two ranks and both values if the requests cannot run together; nothing if they can. Requires:
/// at least one is not null.
std::optional<std::string> findMismatch(const std::vector<std::shared_ptr<const Request>>& requests);
/// The agreement of requests that can run together: the first of them, with the rows of all. Requires: at least one is
/// not null.
AgreementHandle agreementOf(const std::vector<std::shared_ptr<const Request>>& requests);

}  // namespace agspeed::comm
