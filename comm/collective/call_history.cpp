// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/call_history.h"

#include "comm/schedule/catalog.h"
#include "runtime/base/format.h"

namespace agspeed::comm::collective {
namespace {

std::string planOf(const engine::CallSignature& signature) {
  return formatText(" with plan {}, algorithm {}, segments of {} bytes, sizes {}", signature.planVersion,
                    schedule::algorithms()[signature.algorithm % schedule::algorithms().size()].name,
                    signature.segmentBytes, signature.layout % 10000);
}

}  // namespace

const HistoryEntry& CallHistory::add(const engine::CallSignature& signature) {
  chain_ = extendChain(chain_, signature);
  ++sequence_;
  return entries_[sequence_ % kNumEntries] = {sequence_, chain_, signature};
}

RecentCalls CallHistory::recent(uint64_t sequence) const {
  RecentCalls calls = {};
  for (size_t i = 0; i < calls.size() && i < sequence; ++i) {
    const HistoryEntry& entry = at(sequence - i);
    if (entry.sequence == sequence - i) calls[i] = entry;
  }
  return calls;
}

std::optional<std::string> CallHistory::check(int rank, const RecentCalls& calls) {
  if (auto mismatch = findMismatch(rank, calls)) return mismatch;
  if (calls[0].sequence > sequence_) ranksAhead_[rank] = calls;
  return std::nullopt;
}

std::optional<std::string> CallHistory::checkRanksAhead() {
  for (const auto& [rank, calls] : ranksAhead_) {
    if (auto mismatch = findMismatch(rank, calls)) return mismatch;
  }
  std::erase_if(ranksAhead_, [&](const auto& ahead) { return ahead.second[0].sequence <= sequence_; });
  return std::nullopt;
}

std::optional<std::string> CallHistory::findMismatch(int rank, const RecentCalls& calls) const {
  const HistoryEntry* theirs = nullptr;
  for (const HistoryEntry& entry : calls) {
    const HistoryEntry& own = at(entry.sequence);
    const bool differs = entry.sequence != 0 && own.sequence == entry.sequence && own.chain != entry.chain;
    if (differs && (!theirs || entry.sequence < theirs->sequence)) theirs = &entry;
  }
  if (!theirs) return std::nullopt;
  const engine::CallSignature& own = at(theirs->sequence).signature;
  std::string ownText = toString(own), theirText = toString(theirs->signature);
  if (own == theirs->signature) {
    ownText = theirText = "calls that differ before it";
  } else if (ownText == theirText) {
    ownText += planOf(own);
    theirText += planOf(theirs->signature);
  }
  return formatText(
      "the ranks' calls differ: as operation {} of group '{}' rank {} called {} and rank {} called {}; all ranks must "
      "make the same calls in the same order",
      theirs->sequence, group_, rank_, ownText, rank, theirText);
}

}  // namespace agspeed::comm::collective
