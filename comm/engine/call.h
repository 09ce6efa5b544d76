// SPDX-License-Identifier: Apache-2.0
// Calls of a group. CollectiveCall is one collective operation on the caller's buffers. CallSignature has the
// properties of a call that must be equal at all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/reduce/reduce_op.h"
#include "comm/schedule/schedule.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace agspeed::comm::engine {

/// A list of chunks of memory. Each chunk is contiguous and has a whole number of elements.
using BufferList = std::vector<std::span<std::byte>>;

/// One collective operation. The bytes belong to the caller and stay in place until the operation is done.
///
///   collective              input                       output
///   all_reduce              1 chunk                     1 chunk of the same size
///   broadcast               1 chunk at the root         1 chunk, also at the root
///   reduce                  1 chunk                     1 chunk at the root
///   all_gather, gather      1 chunk                     a chunk per rank (gather: at the root)
///   reduce_scatter, scatter a chunk per rank            1 chunk
///                           (scatter: at the root)
///   all_to_all              a chunk per receiver        a chunk per sender
///   barrier                 none                        none
///
/// A rank may omit chunks that it does not need, such as the input of a broadcast at other ranks than the root. The
/// input is only read. Collectives except all_to_all may be in place: input chunk i and output chunk i may be the same
/// memory. No other two chunks may overlap. If a list has one chunk and the table says "a chunk per rank" for it, this
/// chunk has the index of the caller's own rank.
struct CollectiveCall {
  schedule::Collective collective = schedule::Collective::kBarrier;
  DType dtype = DType::kU8;
  BufferList input = {};
  BufferList output = {};
  reduce::ReduceOp op = reduce::ReduceOp::kSum;  ///< the operator of a reduction
  double factor = 1;                             ///< for a premultiplied sum: the factor of this rank's input
  int root = 0;                                  ///< ignored if the collective has no root
  /// Promises that each chunk of a list begins where the chunk before it ends. Must be equal at all ranks.
  bool isContiguous = false;
};

/// Splits `whole` into `count` chunks of equal size. Requires: the size of `whole` is a multiple of `count`.
BufferList splitEvenly(std::span<std::byte> whole, int count);

/// Checks that a call is valid at `rank`: its root and its chunks exist, the sizes of its chunks match, and its
/// reduction is defined. A failure has a message for the caller.
Status validate(const CollectiveCall& call, int rank, int numRanks);

/// Returns the number of bytes from which the plan chooses the algorithm. It is equal at all ranks. It is 0 for
/// collectives whose sizes are not known to every rank: gather, scatter, all_to_all and barrier.
size_t agreedBytes(const CollectiveCall& call);

/// The properties of a call that ranks compare. The struct has a fixed layout without padding, because its bytes are
/// hashed and sent.
struct CallSignature {
  /// The `planVersion` of the signature of an exchange of host statistics (host_stats.h). In this signature, the
  /// collective, the root and the sizes have the values of the call after the exchange.
  static constexpr uint32_t kHostStatsExchange = UINT32_MAX;

  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t isContiguous = 0;
  int32_t root = 0;
  uint32_t algorithm = 0;    ///< index of the algorithm in the catalog
  uint32_t planVersion = 0;  ///< Plan::version
  uint64_t segmentBytes = 0;
  uint64_t numBytes = 0;  ///< the result of agreedBytes()
  uint64_t layout = 0;    ///< hash of the sizes of all chunks whose size every rank knows
  bool operator==(const CallSignature&) const = default;
};

/// Returns the signature of a call. The caller fills in the choices of the plan: `algorithm`, `planVersion` and
/// `segmentBytes`.
CallSignature signatureOf(const CollectiveCall& call);
/// Returns text for errors and logs: "all_reduce(1024 x f32, sum)", "broadcast(12 x u8, root 1)".
std::string toString(const CallSignature& signature);
/// Returns the hash of all calls up to the call with `signature`. `chain`: the hash of all calls before it.
uint64_t extendChain(uint64_t chain, const CallSignature& signature);

}  // namespace agspeed::comm::engine
