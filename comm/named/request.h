// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other about named operations: a rank's request, and the coordinator's response.
//
// A request says what one rank has ready under a name; a response lists what all ranks have ready, in the order in
// which all of them run it. Both are values without references; coordinator.h makes responses of requests,
// request_codec.h makes bytes of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"

namespace agspeed::comm {

enum class NamedKind : uint8_t {
  kAllReduce,
  kAllGather,  ///< ranks may differ in their first dimension
  kBroadcast,
  kAllToAll,       ///< each rank says how many rows go to whom
  kReduceScatter,  ///< rows in shares as equal as can be, the larger ones first
  kBarrier,
  kJoin,  ///< until all ranks have joined, those that have contribute zeros to all-reduces
};

/// "allreduce", "allgather", ...: Horovod's names.
std::string_view toString(NamedKind kind);

/// "ALLREDUCE".
std::string upperCase(std::string_view text);

enum class NamedReduction : uint8_t { kAverage, kSum, kMin, kMax, kProduct };

std::string_view toString(NamedReduction reduction);

using Dimensions = std::vector<int64_t>;

/// "[2, 3]".
std::string toString(const Dimensions& dimensions);

/// What one rank has ready. Ranks agree on everything but rows, splits and priority, or all of them get an error.
struct Request {
  NamedKind kind = NamedKind::kBarrier;
  DType dtype = DType::kU8;
  NamedReduction reduction = NamedReduction::kSum;
  bool isOnDevice = false;   ///< whether the tensors are on a device
  bool isCacheable = false;  ///< whether the name is expected to come again
  int32_t root = 0;          ///< of a broadcast: rank of the group
  int32_t priority = 0;      ///< the higher, the sooner it runs, where the plan goes by it; the lowest rank's counts
  double prescale = 1, postscale = 1;
  std::string name;
  std::vector<Dimensions> shapes;  ///< of the tensors, one unless the operation is a grouped one
  Dimensions splits;               ///< of an all-to-all: rows for each rank

  bool operator==(const Request&) const = default;
};

/// Elements of a tensor of these dimensions, or of each of its rows.
int64_t numElements(const Dimensions& dimensions);
int64_t elementsPerRow(const Dimensions& dimensions);
/// The rows that each rank has of a reduce-scatter of so many.
Dimensions scatteredRows(int64_t rows, int numRanks);
/// Bytes of all tensors of the request.
size_t bytesOf(const Request& request);

/// An operation that all ranks have ready: the request of the lowest of them, and what differs by rank.
struct Agreement {
  Request request;
  /// All-gather: rows[tensor][rank]. All-to-all: rows[sender][receiver]. Else empty.
  std::vector<Dimensions> rows;

  bool operator==(const Agreement&) const = default;
};

using AgreementHandle = std::shared_ptr<const Agreement>;

/// What every rank of the group does next. Several operations of one kind run as one.
struct Response {
  struct Item {
    uint32_t cacheId = 0;  ///< 0: the name is not cached
    /// Whether `agreement` travels; else it is what the last response with this id said.
    bool isFull = true;
    AgreementHandle agreement;  ///< not null where isFull, and of the first
  };

  NamedKind kind = NamedKind::kBarrier;
  std::vector<Item> items;
  std::vector<uint32_t> evicted;   ///< ids that ranks drop, and say so
  std::string error;               ///< not empty: the operations fail with it
  bool areKindsDifferent = false;  ///< of the error: ranks call operations of different kinds by its name
  int32_t lastJoined = -1;
};

}  // namespace agspeed::comm
