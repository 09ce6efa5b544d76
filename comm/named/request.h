// SPDX-License-Identifier: Apache-2.0
// The messages between the ranks of a group and its coordinator: requests and responses.
//
// A request states what one rank has ready under a name. A response lists operations that all ranks have ready, in the
// order in which all ranks run them. coordinator.h turns requests into responses, and request_codec.h encodes both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"

namespace agspeed::comm::named {

enum class NamedKind : uint8_t {
#define AG_NAMED_KIND(kind, name, constant, rows, prepare) k##kind,
#include "comm/named/named_kinds.def"
};

/// How the numbers of rows differ between ranks, and between inputs and outputs. A row is the part of a tensor at one
/// index of its first dimension.
enum class NamedRows : uint8_t {
  kNone,       ///< there are no tensors
  kSame,       ///< all numbers are equal; an output may be its input, and operations may be fused
  kGathered,   ///< ranks may have different numbers of rows, and get the rows of all ranks
  kExchanged,  ///< one tensor; each rank states how many of its rows go to each rank
  kScattered,  ///< ranks get equal parts of the rows; remaining rows go to the first ranks, one each
};

/// All kinds, in the order of their numbers.
constexpr NamedKind kNamedKinds[] = {
#define AG_NAMED_KIND(kind, name, constant, rows, prepare) NamedKind::k##kind,
#include "comm/named/named_kinds.def"
};

/// Returns Horovod's name of the kind, such as "allreduce".
std::string_view toString(NamedKind kind);

NamedRows rowsOf(NamedKind kind);

/// Returns the text in upper case, such as "ALLREDUCE".
std::string upperCase(std::string_view text);

enum class NamedReduction : uint8_t { kAverage, kSum, kMin, kMax, kProduct };

std::string_view toString(NamedReduction reduction);

using Dimensions = std::vector<int64_t>;

/// Returns the dimensions as a text, such as "[2, 3]".
std::string toString(const Dimensions& dimensions);

/// One rank's request. The requests of all ranks under a name must be equal, or all ranks get an error. Only rows (as
/// NamedRows allows), splits, priority and isCacheable may differ.
struct Request {
  NamedKind kind = NamedKind::kBarrier;
  DType dtype = DType::kU8;
  NamedReduction reduction = NamedReduction::kSum;
  bool isOnDevice = false;   ///< the tensors are on a device
  bool isCacheable = false;  ///< the name will probably be used again, so it may get an id
  int32_t root = 0;          ///< for a broadcast: the root's rank in the group
  int32_t priority = 0;      ///< FusionOrder::kPriority runs the highest first; the lowest rank's value counts
  double prescale = 1, postscale = 1;
  std::string name;
  std::vector<Dimensions> shapes;  ///< one shape per tensor; a grouped operation has several tensors
  Dimensions splits;               ///< for an all-to-all: splits[r] is the number of rows for rank r

  bool operator==(const Request&) const = default;
};

/// numElements() returns the number of elements of a tensor with these dimensions. elementsPerRow() returns the number
/// in one of its rows.
int64_t numElements(const Dimensions& dimensions);
int64_t elementsPerRow(const Dimensions& dimensions);
/// Returns how many rows each rank gets from a reduce-scatter of `rows` rows.
Dimensions scatteredRows(int64_t rows, int numRanks);
/// Returns the number of bytes of all tensors of the request.
size_t bytesOf(const Request& request);

/// The requests of all ranks for one operation, after the check that they agree: the lowest rank's request, and the
/// values in which ranks may differ.
struct Agreement {
  Request request;
  /// All-gather: rows[tensor][rank]. All-to-all: rows[sender][receiver]. Else empty.
  std::vector<Dimensions> rows;

  bool operator==(const Agreement&) const = default;
};

using AgreementHandle = std::shared_ptr<const Agreement>;

/// The operations that all ranks run next. If there are several, they are fused.
struct Response {
  struct Item {
    uint32_t id = 0;  ///< 0: the name is not cached
    /// Whether `agreement` is sent with the item. If not, the agreement applies that was last sent with this id.
    bool isFull = true;
    AgreementHandle agreement;  ///< may be null if !isFull, except in the first item
  };

  NamedKind kind = NamedKind::kBarrier;
  std::vector<Item> items;
  std::vector<uint32_t> evicted;   ///< ids that ranks must drop; ranks confirm this by Forgotten
  std::string error;               ///< not empty: the operations fail with this error
  bool areKindsDifferent = false;  ///< `error` is set because ranks called different kinds of operations
  int32_t lastJoined = -1;
};

}  // namespace agspeed::comm::named
