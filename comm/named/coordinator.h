// SPDX-License-Identifier: Apache-2.0
// Coordinator: what all ranks of a group have ready, and in what order they run it. The group's lowest rank has one.
//
// Ranks submit in orders of their own; an operation is ready when the last of them did. Ready all-reduces and
// broadcasts of one kind are fused up to a number of bytes, in the order that a plan states; large ones run alone, as
// copies into a buffer and back cost more than an operation does. Ranks whose requests for a
// name differ all get the same error, which names two of them and both values; the next operation works. A rank that
// has joined counts as having submitted everything.
//
// Names that come again are cached: the response that runs one gives it an id, and a rank whose request has not changed
// since says the id alone, as does the response. Where all ids are taken, one that has long not been used is evicted: a
// response tells the ranks, and the id is free once each of them has said that it has forgotten it. Ids that all ranks
// say in the same lists are looked at as lists: the first costs a look at each id, the others' a comparison.
//
// A plain value: sends nothing, waits for nothing. Threading: one thread at a time.
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

/// In what order that which is ready runs, and how much of it as one.
enum class FusionOrder : uint8_t {
  kTime,      ///< as it became ready; what is ready leaves at once
  kSize,      ///< the same, but buffers wait until they are full, nothing else is awaited, or some milliseconds passed
  kPriority,  ///< by Request::priority, the highest first
  kModel,     ///< in the order in which the names became ready the first time
};

/// "time", "size", "priority", "model".
std::string_view toString(FusionOrder order);

/// No choice here changes a result: every element is reduced alike in any buffer. So the coordinator's plan is the only
/// one, and may change between any two responses.
struct FusionPlan {
  size_t fusionBytes = size_t{32} << 20;  ///< what is fused at most; 0: nothing
  FusionOrder order = FusionOrder::kTime;
  uint32_t version = 0;
};

class Coordinator {
 public:
  /// Of a group of `size` ranks, with so many cached names at most.
  Coordinator(int size, size_t cacheCapacity, FusionPlan plan = {});

  const FusionPlan& plan() const { return plan_; }
  /// Holds for what is not fused yet.
  void setPlan(FusionPlan plan);

  /// `rank` has this ready. Requires: not the same name twice before it ran.
  void add(int rank, Request request, Clock::time_point now);
  /// The same as under this id before; fails as data loss where there is none, or in a list that is ready.
  Status addCached(int rank, uint32_t id, Clock::time_point now);
  Status addCached(int rank, const std::vector<uint32_t>& ids, Clock::time_point now);
  /// What `rank` means by the id; null where it has never made such a request.
  const Request* cachedRequest(int rank, uint32_t id) const;
  /// `rank` does not use the evicted id any more; fails as data loss where it is not evicted.
  Status dropId(int rank, uint32_t id);

  /// What is ready, in bytes of all ready operations together; 0 where nothing is, at least 1 where something is.
  size_t readyBytes() const;
  /// Responses whose data moves: those of one large tensor, and others.
  struct Running {
    /// `first`: the request of the response's first operation.
    void began(const Request& first);
    void ended(const Request& first);

    size_t numOther = 0, numLarge = 0, largeBytes = 0;
  };
  /// Whether to respond now: what becomes ready while enough is running is fused, and by FusionOrder::kSize buffers are
  /// held until they are full.
  bool isResponseDue(const Running& running, Clock::time_point now);
  /// Until when at most the plan holds what is ready; max: it does not.
  Clock::time_point heldUntil() const { return heldUntil_; }
  /// The next response. Requires: readyBytes() > 0.
  Response next();
  /// Names that have an id.
  size_t numCached() const { return ids_.size(); }

  /// An operation that not all ranks have ready.
  struct Stalled {
    std::string name;
    std::vector<int> missing;  ///< ranks
    Clock::time_point since;   ///< when the first rank had it ready
  };
  /// Those from before `since`, oldest first.
  std::vector<Stalled> stalled(Clock::time_point since) const;
  /// Whether there are such, or ranks that have joined.
  bool isWaiting() const { return numWaiting_ > 0 || numJoined_ > 0; }
  /// The ranks that have not joined; none where no rank has.
  std::vector<int> unjoined() const;

 private:
  using Handle = std::shared_ptr<const Request>;

  /// Ids in one list, as long as the ranks that have said one of them have said the same list: an entry for each.
  struct Batch {
    std::vector<uint32_t> ids;
    std::vector<bool> hasSaid;  ///< by rank
    int numSaid = 0;            ///< of all ranks: it is ready
    size_t numBytes = 0;
    Clock::time_point since;
  };
  using BatchHandle = std::unique_ptr<Batch>;

  struct Entry {
    std::vector<Handle> requests;  ///< per rank; null where it has none yet
    int numSubmitted = 0;
    uint32_t cachedId = 0;  ///< under which all that have submitted it did so; 0: some said more
    uint64_t order = 0;
    int64_t place = 0;    ///< among what is ready: the lowest first
    size_t numBytes = 0;  ///< once it is ready
    BatchHandle batch;    ///< not null: the entry is ready and stands for all of it, the rest says what its first is
    Clock::time_point since;
  };
  using EntryHandle = std::unique_ptr<Entry>;

  struct Cached {
    EntryHandle waiting;     ///< what ranks have submitted under the name and is not ready; null where evicted
    Batch* batch = nullptr;  ///< in which it waits or is ready
    size_t numBytes = 0;     ///< of `agreement`
    uint32_t alike = 0;      ///< equal where agreements can be fused; 0: not to be in a batch
    bool isOfAll = false;    ///< whether the last response had requests of all ranks
    bool isEvicted = false;
    int numForgotten = 0;          ///< ranks; once evicted
    uint64_t lastUse = 0;          ///< as numItems_ was then
    AgreementHandle agreement;     ///< as told last
    std::vector<Handle> requests;  ///< per rank, as of the last response
    std::string name;

    bool isEvictable() const { return !isEvicted && batch == nullptr; }
    bool isBatchable() const { return isOfAll && alike != 0 && isEvictable() && waiting == nullptr; }
  };

  /// `cachedId`: 0 where the rank said it in full.
  void add(int rank, Handle request, uint32_t cachedId, Clock::time_point now);
  /// Whether what is so large together runs as one, and in its own order.
  bool runsWhole(size_t numBytes) const;
  /// Null where these are to be looked at one by one.
  BatchHandle newBatch(const std::vector<uint32_t>& ids, Clock::time_point now);
  void said(Batch& batch, int rank);
  /// Its entries wait one by one.
  void split(Batch& batch);
  BatchHandle takeBatch(const Batch& batch);
  EntryHandle entryOf(const Batch& batch, uint32_t id);
  void join(int rank);
  /// At which id an entry of this name waits; 0: in the table. `cachedId`: under which it was said.
  uint32_t idOf(const std::string& name, uint32_t cachedId) const;
  EntryHandle newEntry(uint32_t cachedId, Clock::time_point now);
  /// Its memory is used again.
  void recycle(EntryHandle entry);
  bool isReady(const Entry& entry) const;
  /// Whether the requests are those of the last response, which agreed.
  bool isKnownToAgree(const Entry& entry) const;
  void moveReady();
  void makeReady(EntryHandle entry);
  EntryHandle takeReady();
  int64_t placeOf(const Entry& entry) const;
  static bool standsAlone(const Entry& entry);
  Response responseFor(const Entry& entry);
  /// `numBytes`: of what is in the response.
  void fuse(Response& response, size_t numBytes);
  void addItems(const Entry& entry, Response& response);
  Response::Item itemFor(const Entry& entry);
  /// See Cached::alike.
  uint32_t alikeOf(const AgreementHandle& agreement, size_t numBytes);
  /// An id for a name that has none; 0 where there is none left.
  uint32_t newIdFor(const std::string& name);
  void evictOne();

  const int size_;
  const size_t cacheCapacity_;
  FusionPlan plan_;
  std::unordered_map<std::string, EntryHandle> table_;  ///< what waits, of names without an id
  std::vector<BatchHandle> batches_;                    ///< that wait
  size_t numWaiting_ = 0;                               ///< entries that wait, at ids, in the table or in batches
  std::deque<EntryHandle> ready_;
  std::vector<EntryHandle> spare_;
  size_t readyBytes_ = 0;
  uint64_t numEntries_ = 0;
  std::vector<bool> hasJoined_;
  int numJoined_ = 0, lastJoined_ = -1;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Cached> cache_;  ///< by id - 1
  std::vector<uint32_t> freeIds_;
  /// An example of those that can be fused, with their number.
  std::vector<std::pair<AgreementHandle, uint32_t>> examples_;
  uint32_t numExamples_ = 0;       ///< so far
  size_t numWithoutId_ = 0;        ///< names of the response under way for which ids are to be free later
  std::vector<uint32_t> evicted_;  ///< to be told with the next response
  Clock::time_point heldUntil_ = Clock::time_point::max();
  uint64_t numItems_ = 0;  ///< operations in all responses so far
};

/// The first that is not null. Requires: there is one.
const Request& firstOf(const std::vector<std::shared_ptr<const Request>>& requests);
/// Whether both may be parts of one operation; whether the request is to be one of its own, by its size.
bool canFuse(const Request& left, const Request& right);
bool runsAlone(const Request& request, size_t numBytes);
/// Why the requests cannot run together: a sentence that names two ranks and both values; nothing where they can.
/// Requires: at least one is not null.
std::optional<std::string> findMismatch(const std::vector<std::shared_ptr<const Request>>& requests);
/// What those that can run together come to: the first of them, with the rows of all. Requires the same.
AgreementHandle agreementOf(const std::vector<std::shared_ptr<const Request>>& requests);

}  // namespace agspeed::comm
