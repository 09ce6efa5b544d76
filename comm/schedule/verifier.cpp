// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/verifier.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "comm/reduce/reduce_op.h"
#include "comm/schedule/symbols.h"
#include "runtime/base/format.h"

namespace agspeed::comm::schedule {

namespace {

std::string describe(const ChunkRange& range) {
  constexpr const char* kNames[] = {"input", "output", "scratch "};
  std::string text = kNames[static_cast<int>(range.buffer)];
  if (range.buffer == BufferKind::kScratch) text += std::to_string(range.scratch);
  return formatText("{}[{}, {})", text, range.first, range.first + range.count);
}

/// The promises of a collective: which input and output chunks each rank has, and the expected value of each output
/// chunk.
class Contract {
 public:
  Contract(Collective collective, int numRanks, int root) : collective_(collective), numRanks_(numRanks), root_(root) {}

  bool hasInput(int rank, uint32_t chunk) const {
    switch (collective_) {
      case Collective::kBroadcast:
      case Collective::kScatter: return rank == root_;
      case Collective::kAllGather:
      case Collective::kGather: return static_cast<int>(chunk) == rank;
      default: return true;
    }
  }
  bool hasOutput(int rank, uint32_t chunk) const {
    switch (collective_) {
      case Collective::kGather:
      case Collective::kReduce: return rank == root_;
      case Collective::kReduceScatter:
      case Collective::kScatter: return static_cast<int>(chunk) == rank;
      case Collective::kBarrier: return false;
      default: return true;
    }
  }
  /// Returns the value that an output chunk must have.
  Symbol expected(SymbolTable& symbols, int rank, uint32_t chunk) const {
    const int other = static_cast<int>(chunk);
    switch (collective_) {
      case Collective::kAllGather:
      case Collective::kGather: return symbols.leaf(other, chunk);
      case Collective::kAllToAll: return symbols.leaf(other, static_cast<uint32_t>(rank));
      case Collective::kBroadcast:
      case Collective::kScatter: return symbols.leaf(root_, chunk);
      default: break;
    }
    return symbols.result(reduce::foldCanonically(
        numRanks_, [&](int leaf) { return symbols.leaf(leaf, chunk); },
        [&](Symbol left, Symbol right) { return symbols.merge(left, right); }));
  }
  /// Returns a number that represents the size of a chunk. Two chunks have equal numbers exactly if the collective
  /// requires that their sizes are equal.
  uint64_t size(int rank, BufferKind buffer, uint32_t chunk) const {
    uint64_t key = chunk;
    if (collective_ == Collective::kAllToAll) {
      const auto own = static_cast<uint64_t>(rank);
      key = buffer == BufferKind::kInput ? own * 1000 + chunk : chunk * uint64_t{1000} + own;
    }
    return (key + 1) * (key + 1) * 1000003 + key;
  }

 private:
  const Collective collective_;
  const int numRanks_, root_;
};

/// One rank while it executes: the symbols in its memory and the state of its steps.
class Rank {
 public:
  Rank(const Schedule& schedule, const Contract& contract, SymbolTable& symbols)
      : schedule(schedule), isDone(schedule.steps.size(), false), round(schedule.steps.size(), 0) {
    memory_[{BufferKind::kInput, 0}].resize(schedule.numChunks);
    memory_[{BufferKind::kOutput, 0}].resize(schedule.numChunks);
    for (uint32_t chunk = 0; chunk < schedule.numChunks; ++chunk) {
      if (contract.hasInput(schedule.rank, chunk))
        memory_[{BufferKind::kInput, 0}][chunk] = symbols.leaf(schedule.rank, chunk);
    }
    for (uint32_t i = 0; i < schedule.scratch.size(); ++i) {
      memory_[{BufferKind::kScratch, i}].resize(schedule.numChunks);
    }
  }

  std::vector<Symbol> read(const ChunkRange& range) {
    const auto& values = memory_[{range.buffer, range.scratch}];
    return {values.begin() + range.first, values.begin() + range.first + range.count};
  }
  void write(const ChunkRange& range, const std::vector<Symbol>& values) {
    std::copy(values.begin(), values.end(), memory_[{range.buffer, range.scratch}].begin() + range.first);
  }
  bool isReady(size_t step) const {
    const auto& before = schedule.steps[step].dependencies;
    return !isDone[step] && std::all_of(before.begin(), before.end(), [&](uint32_t i) { return isDone[i]; });
  }
  /// Returns the round in which the last dependency of `step` has finished.
  int readyRound(size_t step) const {
    int latest = 0;
    for (const uint32_t i : schedule.steps[step].dependencies) latest = std::max(latest, round[i]);
    return latest;
  }
  /// Returns for each rank r whether `step` can start only after rank r has entered the collective.
  std::vector<bool> knownBefore(size_t step) const {
    std::vector<bool> known(static_cast<size_t>(schedule.numRanks), false);
    known[static_cast<size_t>(schedule.rank)] = true;
    for (const uint32_t i : schedule.steps[step].dependencies) unite(known, knows.at(i));
    return known;
  }
  static void unite(std::vector<bool>& target, const std::vector<bool>& other) {
    for (size_t i = 0; i < other.size(); ++i) target[i] = target[i] || other[i];
  }

  const Schedule& schedule;
  std::vector<bool> isDone;
  std::vector<int> round;  ///< by step: the number of messages on the longest path to the step's end
  /// For each finished step: the result of knownBefore(). For a receive, the union with the result of its send.
  std::map<uint32_t, std::vector<bool>> knows;

 private:
  std::map<std::pair<BufferKind, uint32_t>, std::vector<Symbol>> memory_;
};

class Verification {
 public:
  Verification(Collective collective, Order order, int root, const std::vector<Schedule>& schedules)
      : collective_(collective), order_(order), contract_(collective, static_cast<int>(schedules.size()), root) {
    for (const Schedule& schedule : schedules) ranks_.emplace_back(schedule, contract_, symbols_);
  }

  StatusOr<ScheduleCounts> run() {
    for (const Rank& rank : ranks_) AG_RETURN_IF_ERROR(checkAccesses(rank));
    AG_RETURN_IF_ERROR(pairMessages());
    AG_RETURN_IF_ERROR(execute());
    for (Rank& rank : ranks_) AG_RETURN_IF_ERROR(checkResult(rank));
    return counts();
  }

 private:
  using MessageKey = std::tuple<int, int, uint32_t>;  ///< sender, receiver, tag

  Status wrong(const Rank& rank, size_t step, const std::string& what) const {
    return internalError("{} of {} ranks: rank {}, step {} ({}) {}", toString(collective_), ranks_.size(),
                         rank.schedule.rank, step, describe(rank.schedule.steps[step].range), what);
  }

  /// Checks that dependencies point backwards, that only output and scratch are written, and that steps that could run
  /// at the same time do not conflict.
  Status checkAccesses(const Rank& rank) const {
    const auto& steps = rank.schedule.steps;
    std::vector<std::vector<bool>> before(steps.size(), std::vector<bool>(steps.size(), false));
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const uint32_t dependency : steps[i].dependencies) {
        if (dependency >= i) return wrong(rank, i, "waits for a later step");
        before[i][dependency] = true;
        for (size_t j = 0; j < dependency; ++j) before[i][j] = before[i][j] || before[dependency][j];
      }
      AG_RETURN_IF_ERROR(checkTarget(rank, i));
      for (size_t j = 0; j < i; ++j) {
        if (!before[i][j] && rank.schedule.conflict(steps[i], steps[j])) {
          return wrong(rank, i, formatText("runs at the same time as step {} on the same memory", j));
        }
      }
    }
    return {};
  }

  Status checkTarget(const Rank& rank, size_t index) const {
    const Step& step = rank.schedule.steps[index];
    if (step.range.first + step.range.count > rank.schedule.numChunks) return wrong(rank, index, "leaves the buffer");
    if (step.kind == StepKind::kSend) return {};
    if (step.range.buffer == BufferKind::kInput) return wrong(rank, index, "writes the input");
    const bool isRounded = !rank.schedule.isWide(step.range);
    if (step.kind == StepKind::kReduce && step.isResult != isRounded &&
        (step.isResult || order_ == Order::kCanonical)) {
      return wrong(rank, index, "rounds a partial result or leaves the final one wide");
    }
    for (uint32_t i = 0; step.range.buffer == BufferKind::kOutput && i < step.range.count; ++i) {
      if (!contract_.hasOutput(rank.schedule.rank, step.range.first + i)) {
        return wrong(rank, index, "writes output that is not the rank's");
      }
    }
    return {};
  }

  uint64_t sizeOf(const Rank& rank, const ChunkRange& range) const {
    const bool isScratch = range.buffer == BufferKind::kScratch;
    const BufferKind buffer = isScratch ? rank.schedule.scratch[range.scratch].like.buffer : range.buffer;
    uint64_t size = rank.schedule.isWide(range) ? 1 : 0;
    for (uint32_t i = 0; i < range.count; ++i) size += contract_.size(rank.schedule.rank, buffer, range.first + i);
    return size;
  }

  Status pairMessages() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (size_t i = 0; i < ranks_[r].schedule.steps.size(); ++i) {
        const Step& step = ranks_[r].schedule.steps[i];
        if (step.kind != StepKind::kSend && step.kind != StepKind::kReceive) continue;
        const int self = static_cast<int>(r);
        if (step.peer < 0 || step.peer >= static_cast<int>(ranks_.size()) || step.peer == self) {
          return wrong(ranks_[r], i, formatText("has no such peer: {}", step.peer));
        }
        if (step.tag >= ranks_[r].schedule.tagLimit()) return wrong(ranks_[r], i, "has a tag beyond the limit");
        const bool isSend = step.kind == StepKind::kSend;
        const MessageKey key = isSend ? MessageKey{self, step.peer, step.tag} : MessageKey{step.peer, self, step.tag};
        auto& ends = isSend ? sends_ : receives_;
        if (!ends.emplace(key, i).second) return wrong(ranks_[r], i, "uses a tag for the second time");
      }
    }
    for (const auto& [key, send] : sends_) {
      const Rank& from = ranks_[static_cast<size_t>(std::get<0>(key))];
      const Rank& to = ranks_[static_cast<size_t>(std::get<1>(key))];
      const auto receive = receives_.find(key);
      if (receive == receives_.end()) return wrong(from, send, "sends a message that no rank receives");
      if (sizeOf(from, from.schedule.steps[send].range) != sizeOf(to, to.schedule.steps[receive->second].range)) {
        return wrong(from, send, formatText("sends another size than rank {} expects", std::get<1>(key)));
      }
    }
    for (const auto& [key, receive] : receives_) {
      if (!sends_.contains(key)) {
        return wrong(ranks_[static_cast<size_t>(std::get<1>(key))], receive, "receives a message that no rank sends");
      }
    }
    return {};
  }

  Status execute() {
    for (bool hasMoved = true; hasMoved;) {
      hasMoved = false;
      for (Rank& rank : ranks_) {
        for (size_t i = 0; i < rank.schedule.steps.size(); ++i) {
          if (!rank.isReady(i)) continue;
          AG_ASSIGN_OR_RETURN(const bool didRun, executeStep(rank, i));
          hasMoved = hasMoved || didRun;
        }
      }
    }
    for (const Rank& rank : ranks_) {
      const auto stuck = std::find(rank.isDone.begin(), rank.isDone.end(), false);
      if (stuck != rank.isDone.end()) {
        return wrong(rank, static_cast<size_t>(stuck - rank.isDone.begin()), "waits forever");
      }
    }
    return {};
  }

  StatusOr<bool> executeStep(Rank& rank, size_t index) {
    const Step& step = rank.schedule.steps[index];
    if (step.kind == StepKind::kReceive) return false;  // transfer() executes it together with its send
    if (step.kind == StepKind::kSend) return transfer(rank, index);
    std::vector<Symbol> values(step.range.count);
    for (uint32_t chunk = 0; chunk < step.range.count; ++chunk) {
      std::vector<Symbol> inputs;
      for (const ChunkRange& source : step.sources) {
        if (source.count != step.range.count) return wrong(rank, index, "combines ranges of different sizes");
        inputs.push_back(rank.read(source)[chunk]);
      }
      if (std::count(inputs.begin(), inputs.end(), kNoSymbol))
        return wrong(rank, index, "reads memory that was not written");
      values[chunk] = reduce::foldCanonically(
          static_cast<int>(inputs.size()), [&](int leaf) { return inputs[static_cast<size_t>(leaf)]; },
          [&](Symbol left, Symbol right) { return symbols_.merge(left, right); });
      if (step.isResult) values[chunk] = symbols_.result(values[chunk]);
    }
    rank.write(step.range, values);
    finish(rank, index, rank.readyRound(index), rank.knownBefore(index));
    return true;
  }

  StatusOr<bool> transfer(Rank& from, size_t send) {
    const Step& step = from.schedule.steps[send];
    Rank& to = ranks_[static_cast<size_t>(step.peer)];
    const size_t receive = receives_.at({from.schedule.rank, step.peer, step.tag});
    if (!to.isReady(receive)) return false;
    const std::vector<Symbol> values = from.read(step.range);
    if (std::count(values.begin(), values.end(), kNoSymbol))
      return wrong(from, send, "sends memory that was not written");
    to.write(to.schedule.steps[receive].range, values);
    auto known = to.knownBefore(receive);
    Rank::unite(known, from.knownBefore(send));
    const int sent = from.readyRound(send);
    finish(to, receive, std::max(to.readyRound(receive), sent + 1), std::move(known));
    finish(from, send, sent, from.knownBefore(send));
    return true;
  }

  static void finish(Rank& rank, size_t step, int round, std::vector<bool> known) {
    rank.isDone[step] = true;
    rank.round[step] = round;
    rank.knows[static_cast<uint32_t>(step)] = std::move(known);
  }

  Status checkResult(Rank& rank) {
    if (collective_ == Collective::kBarrier) return checkBarrier(rank);
    const auto values = rank.read({BufferKind::kOutput, 0, 0, rank.schedule.numChunks});
    for (uint32_t chunk = 0; chunk < rank.schedule.numChunks; ++chunk) {
      if (!contract_.hasOutput(rank.schedule.rank, chunk)) continue;
      const Symbol expected = contract_.expected(symbols_, rank.schedule.rank, chunk);
      const bool isSame =
          order_ == Order::kCanonical ? values[chunk] == expected : symbols_.hasSameLeaves(values[chunk], expected);
      if (isSame) continue;
      return internalError("{} of {} ranks: rank {} ends with {} in chunk {} instead of {}", toString(collective_),
                           ranks_.size(), rank.schedule.rank, symbols_.text(values[chunk]), chunk,
                           symbols_.text(expected));
    }
    return {};
  }

  Status checkBarrier(const Rank& rank) const {
    std::vector<bool> known(ranks_.size(), false);
    known[static_cast<size_t>(rank.schedule.rank)] = true;
    for (const auto& [step, ranks] : rank.knows) Rank::unite(known, ranks);
    const auto unknown = std::find(known.begin(), known.end(), false);
    if (unknown == known.end()) return {};
    return internalError("barrier of {} ranks: rank {} may leave before rank {} has entered", ranks_.size(),
                         rank.schedule.rank, unknown - known.begin());
  }

  ScheduleCounts counts() const {
    ScheduleCounts counts;
    for (const Rank& rank : ranks_) {
      ScheduleCounts own;
      for (size_t i = 0; i < rank.schedule.steps.size(); ++i) {
        const Step& step = rank.schedule.steps[i];
        const double share = static_cast<double>(step.range.count) / rank.schedule.numChunks;
        own.numRounds = std::max(own.numRounds, rank.round[i]);
        own.numMessages += step.kind == StepKind::kSend;
        own.sent += step.kind == StepKind::kSend ? share : 0;
        own.received += step.kind == StepKind::kReceive ? share : 0;
        own.reduced += step.kind == StepKind::kReduce ? share * static_cast<double>(step.sources.size()) : 0;
      }
      counts.numRounds = std::max(counts.numRounds, own.numRounds);
      counts.numMessages = std::max(counts.numMessages, own.numMessages);
      counts.sent = std::max(counts.sent, own.sent);
      counts.received = std::max(counts.received, own.received);
      counts.reduced = std::max(counts.reduced, own.reduced);
    }
    return counts;
  }

  const Collective collective_;
  const Order order_;
  const Contract contract_;
  SymbolTable symbols_;
  std::vector<Rank> ranks_;
  std::map<MessageKey, size_t> sends_, receives_;
};

}  // namespace

StatusOr<ScheduleCounts> verify(Collective collective, Order order, int root, const std::vector<Schedule>& schedules) {
  return Verification(collective, order, root, schedules).run();
}

namespace {

/// Checks that a schedule for chunks that may lie anywhere accesses the caller's chunks one by one.
Status checkChunkwise(const Schedule& schedule) {
  const auto isLong = [](const ChunkRange& range) { return range.buffer != BufferKind::kScratch && range.count > 1; };
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (isLong(step.range) || std::any_of(step.sources.begin(), step.sources.end(), isLong)) {
      return internalError("rank {}, step {} ({}) accesses several chunks at once, which may not follow each other",
                           schedule.rank, i, describe(step.range));
    }
  }
  return {};
}

}  // namespace

StatusOr<ScheduleCounts> verify(const Algorithm& algorithm, int numRanks, int root,
                                const std::vector<int>& localGroups) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < numRanks; ++rank) {
    schedules.push_back(algorithm.make({algorithm.collective, rank, numRanks, root, localGroups}));
  }
  for (const Schedule& schedule : schedules) {
    const Status status = algorithm.memory == Memory::kChunks ? checkChunkwise(schedule) : Status();
    if (!status.isOk()) return status.withContext("algorithm " + std::string(algorithm.name));
  }
  auto counts = verify(algorithm.collective, algorithm.order, root, schedules);
  if (!counts.hasValue()) return counts.status().withContext("algorithm " + std::string(algorithm.name));
  return counts;
}

}  // namespace agspeed::comm::schedule
