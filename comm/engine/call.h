// SPDX-License-Identifier: Apache-2.0
// A call of a group: one collective operation on the caller's buffers, and the facts about it that all ranks must agree
// on.
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

namespace agspeed::comm {

/// Runs of bytes in memory; each a whole number of elements.
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
/// Unneeded chunks may be omitted. Input is only read. Input chunk i and output chunk i may be the same memory, except
/// in all_to_all; a single chunk counts as the chunk of the caller's own rank. Other chunks must not overlap.
struct CollectiveCall {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kU8;
  BufferList input = {};
  BufferList output = {};
  ReduceOp op = ReduceOp::kSum;  ///< of a reduction
  double factor = 1;             ///< of a premultiplied sum; each rank has its own
  int root = 0;                  ///< ignored if the collective has no root
  /// A promise that is equal at all ranks: each chunk of a list begins where the one before it ends.
  bool isContiguous = false;
};

/// Splits `whole` into `count` chunks of equal size. Requires: its size is a multiple of `count`.
BufferList splitEvenly(std::span<std::byte> whole, int count);

/// Whether the chunks are present, match each other's sizes and can be reduced. The failure is a sentence for the
/// caller.
Status validate(const CollectiveCall& call, int rank, int numRanks);

/// The number of bytes by which the algorithm is chosen, equal at all ranks; zero if not every rank knows it.
size_t agreedBytes(const CollectiveCall& call);

/// The facts about a call that ranks compare: fixed layout, no padding.
struct CallSignature {
  /// A planVersion with this value marks the exchange of host statistics that a group does before the call
  /// (host_stats.h).
  static constexpr uint32_t kHostStatsExchange = UINT32_MAX;

  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t isContiguous = 0;
  int32_t root = 0;
  uint32_t algorithm = 0;  ///< row of the catalog
  uint32_t planVersion = 0;
  uint64_t segmentBytes = 0;
  uint64_t numBytes = 0;  ///< agreedBytes()
  uint64_t layout = 0;    ///< hash of the sizes of all chunks that every rank knows
  bool operator==(const CallSignature&) const = default;
};

/// The signature without the plan's choices: algorithm, version, segments.
CallSignature signatureOf(const CollectiveCall& call);
/// "all_reduce(1024 x f32, sum)", "broadcast(12 x u8, root 1)".
std::string toString(const CallSignature& signature);
/// Extends `chain`, the hash of all operations before, by `signature`.
uint64_t extendChain(uint64_t chain, const CallSignature& signature);

}  // namespace agspeed::comm
