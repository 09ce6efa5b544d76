// SPDX-License-Identifier: Apache-2.0
// The messages between the ranks of a group and its coordinator: requests and responses.
//
// A request states what one rank has ready under a name. A response lists operations that all ranks have ready, in the
// order in which all ranks run them. Both are values without references. coordinator.h turns requests into responses,
// request_codec.h encodes both.
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
  kAllToAll,       ///< each rank states how many rows go to each rank
  kReduceScatter,  ///< equal shares of the rows; if they cannot be equal, the first are one row larger
  kBarrier,
  kJoin,  ///< until all ranks have joined, ranks that have joined contribute zeros to all-reduces
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

/// One rank's request. All ranks get an error if they differ in anything but rows, splits and priority.
struct Request {
  NamedKind kind = NamedKind::kBarrier;
  DType dtype = DType::kU8;
  NamedReduction reduction = NamedReduction::kSum;
  bool isOnDevice = false;   ///< whether the tensors are on a device
  bool isCacheable = false;  ///< whether the name is likely to be used again
  int32_t root = 0;          ///< for a broadcast: rank of the group
  int32_t priority = 0;      ///< a higher one runs sooner if the plan is kPriority; the lowest rank's value counts
  double prescale = 1, postscale = 1;
  std::string name;
  std::vector<Dimensions> shapes;  ///< of the tensors; more than one for a grouped operation
  Dimensions splits;               ///< for an all-to-all: rows for each rank

  bool operator==(const Request&) const = default;
};

/// Number of elements of a tensor of these dimensions, or of one of its rows.
int64_t numElements(const Dimensions& dimensions);
int64_t elementsPerRow(const Dimensions& dimensions);
/// The rows that each rank gets from a reduce-scatter of `rows` rows.
Dimensions scatteredRows(int64_t rows, int numRanks);
/// Bytes of all tensors of the request.
size_t bytesOf(const Request& request);

/// An operation that all ranks have ready: the lowest rank's request, and what differs by rank.
struct Agreement {
  Request request;
  /// All-gather: rows[tensor][rank]. All-to-all: rows[sender][receiver]. Else empty.
  std::vector<Dimensions> rows;

  bool operator==(const Agreement&) const = default;
};

using AgreementHandle = std::shared_ptr<const Agreement>;

/// The operations that all ranks run next. Several operations of one kind run as one.
struct Response {
  struct Item {
    uint32_t cacheId = 0;  ///< 0: the name is not cached
    /// Whether `agreement` is sent; else it is the one of the last response with this id.
    bool isFull = true;
    AgreementHandle agreement;  ///< not null if isFull, and for the first item
  };

  NamedKind kind = NamedKind::kBarrier;
  std::vector<Item> items;
  std::vector<uint32_t> evicted;   ///< ids that ranks drop and confirm
  std::string error;               ///< not empty: the operations fail with it
  bool areKindsDifferent = false;  ///< whether `error` is that ranks call operations of different kinds under one name
  int32_t lastJoined = -1;
};

}  // namespace agspeed::comm
