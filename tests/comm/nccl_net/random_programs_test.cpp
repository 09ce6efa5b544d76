// SPDX-License-Identifier: Apache-2.0
// Random programs of sends, receives, groups and closes on several connections between two processes, against a model.
//
// For each tag, messages arrive in the order of their sends and completely, and no other memory is written. An end that
// closes early ends its peer's requests, but no request of another connection. AG_FUZZ_SEED reruns one program on each
// table, AG_FUZZ_COUNT sets the number of programs over all tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>

#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/sources.h"

namespace agspeed::comm::nccl {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;
using Time = std::chrono::steady_clock;

constexpr uint64_t kUsualCount = 140, kProgramsPerProcess = 20;
constexpr std::chrono::seconds kTimeout{30};
constexpr std::byte kUntouched{0xEE};

/// How a connection ends: after all messages, or early because one end closes.
enum class End {
  kAgreed,            ///< both close when both are done
  kSenderLeaves,      ///< closes when its sends are done: all arrive, then the receiver is notified
  kSenderBreaksOff,   ///< the sender closes with sends in flight
  kReceiverBreaksOff  ///< the receiver closes with receives in flight
};

struct Message {
  uint64_t seed = 0;
  size_t size = 0;
  size_t capacity = 0;  ///< size of the receive
  int tag = 0;
};

/// Messages in the order in which they are sent, and the groups in which they are received. An end begins the next
/// batch when all messages of this batch are done.
struct Batch {
  std::vector<Message> messages;
  std::vector<std::vector<size_t>> groups;
};

struct Line {
  bool isFromFirst = false;
  End end = End::kAgreed;
  std::vector<Batch> batches;
};

Batch batchOf(Random& random) {
  static constexpr size_t kSizes[] = {0, 1, 8, 100, 5000, 65535, 65536, 100000, 131073, 300001, 1048576};
  Batch batch;
  const size_t count = 1 + random() % 16;
  const int numTags = static_cast<int>(1 + random() % 8);
  std::vector<std::deque<size_t>> byTag(static_cast<size_t>(numTags));
  for (size_t i = 0; i < count; ++i) {
    const size_t size = kSizes[random() % std::size(kSizes)], more = random() % 3 == 0 ? random() % 200000 : 0;
    const int tag = static_cast<int>(random() % static_cast<uint64_t>(numTags));
    batch.messages.push_back({random(), size, size + more, tag});
    byTag[static_cast<size_t>(tag)].push_back(i);
  }
  for (size_t left = count; left > 0;) {
    std::vector<size_t> group;
    std::shuffle(byTag.begin(), byTag.end(), random);
    for (std::deque<size_t>& tag : byTag) {
      if (tag.empty() || (!group.empty() && random() % 2 == 0)) continue;
      group.push_back(tag.front());
      tag.pop_front();
    }
    left -= group.size();
    batch.groups.push_back(std::move(group));
  }
  return batch;
}

std::vector<Line> programOf(uint64_t seed) {
  Random random(seed);
  std::vector<Line> lines(1 + random() % 3);
  for (Line& line : lines) {
    line.isFromFirst = random() % 2 == 0;
    line.end = static_cast<End>(random() % 4);
    line.batches.resize(1 + random() % 3);
    for (Batch& batch : line.batches) batch = batchOf(random);
  }
  return lines;
}

/// One end of a connection, and its progress.
class LineEnd {
 public:
  LineEnd(Side& side, const Line& line, bool isSender) : side_(side), line_(line), isSender_(isSender) {
    comm_ = isSender ? side.openSend() : side.openReceive();
  }

  /// True if nothing is left to do before the program's end.
  bool isDone() const { return isDone_; }
  void advance(Random& random) {
    if (isDone_) return;
    if (pending_.empty() && !begin()) return;
    if (isBreakingOff() && random() % 8 == 0) return close();
    testSome(random);
  }
  /// Call this when both ends are done.
  void finish() {
    if (isOpen_) close();
    for (size_t i = 0; i < buffers_.size(); ++i) {
      require(isSender_ || buffers_[i] == atClose_[i], "bytes were written after closeRecv");
    }
  }

 private:
  bool isLastBatch() const { return next_ == line_.batches.size(); }
  bool isBreakingOff() const {
    return isLastBatch() && line_.end == (isSender_ ? End::kSenderBreaksOff : End::kReceiverBreaksOff);
  }
  /// True if the peer may have closed, so that this request may fail.
  bool mayFail() const {
    if (isSender_) return line_.end == End::kReceiverBreaksOff;
    return isLastBatch() && (line_.end == End::kSenderBreaksOff || isBeyondEnd_);
  }
  const Batch& batch() const { return line_.batches[next_ - 1]; }

  /// Starts the next batch, or ends. Returns true if anything is in flight.
  bool begin() {
    if (!isLastBatch()) {
      ++next_;
      isSender_ ? sendBatch() : receiveBatch();
      return true;
    }
    if (line_.end == End::kAgreed) {
      isDone_ = true;
      return false;
    }
    if (isSender_ != (line_.end == End::kReceiverBreaksOff)) {
      close();
      return false;
    }
    goBeyondEnd();
    return true;
  }
  /// The peer will close or has closed. A request that starts now must fail in the end.
  void goBeyondEnd() {
    isBeyondEnd_ = true;
    buffers_.assign(1, Bytes(8, kUntouched));
    pending_.push_back(isSender_ ? side_.send(comm_, buffers_[0]) : side_.receive(comm_, {buffers_[0]}));
  }
  void sendBatch() {
    buffers_.clear();
    for (const Message& each : batch().messages) buffers_.push_back(patternOf(each.seed, each.size));
    for (size_t i = 0; i < buffers_.size(); ++i) {
      pending_.push_back(side_.send(comm_, buffers_[i], batch().messages[i].tag));
    }
  }
  void receiveBatch() {
    buffers_.clear();
    for (const Message& each : batch().messages) buffers_.emplace_back(each.capacity, kUntouched);
    for (const std::vector<size_t>& group : batch().groups) {
      std::vector<std::span<std::byte>> targets;
      std::vector<int> tags;
      for (const size_t index : group) {
        targets.emplace_back(buffers_[index]);
        tags.push_back(batch().messages[index].tag);
      }
      pending_.push_back(side_.receive(comm_, targets, tags));
    }
  }
  void testSome(Random& random) {
    for (size_t i = 0; i < pending_.size(); ++i) {
      Pending& each = pending_[i];
      if (each.isDone || random() % 2 == 0) continue;
      const Result result = side_.table().test(each.request, each.isDone, each.sizes.data());
      if (result != Result::kOk) {
        if (!mayFail()) requireOk(result, "test");
        return close();
      }
      if (each.isDone && !isSender_ && !isBeyondEnd_) check(i);
      require(!each.isDone || isSender_ || !isBeyondEnd_, "a message arrived that was not sent");
    }
    if (std::all_of(pending_.begin(), pending_.end(), [](const Pending& each) { return each.isDone; }))
      pending_.clear();
  }
  void check(size_t groupIndex) const {
    const std::vector<size_t>& group = batch().groups[groupIndex];
    for (size_t i = 0; i < group.size(); ++i) {
      const Message& message = batch().messages[group[i]];
      const Bytes &bytes = buffers_[group[i]], expected = patternOf(message.seed, message.size);
      const std::string what = " of a message of " + std::to_string(message.size) + " bytes, tag " +
                               std::to_string(message.tag) + ", in a receive of " + std::to_string(message.capacity);
      require(pending_[groupIndex].sizes[i] == static_cast<int>(message.size), "a wrong size" + what);
      require(std::equal(expected.begin(), expected.end(), bytes.begin()), "wrong bytes" + what);
      const auto rest = bytes.begin() + static_cast<ptrdiff_t>(message.size);
      require(std::all_of(rest, bytes.end(), [](std::byte each) { return each == kUntouched; }),
              "bytes were written behind the end" + what);
    }
  }
  void close() {
    requireOk(isSender_ ? side_.table().closeSend(comm_) : side_.table().closeReceive(comm_), "close");
    atClose_ = buffers_;
    if (isSender_) {  // a closed table must not read the buffers any more
      for (Bytes& each : buffers_) std::fill(each.begin(), each.end(), std::byte{0});
    }
    isOpen_ = false;
    isDone_ = true;
  }

  Side& side_;
  const Line& line_;
  const bool isSender_;
  void* comm_ = nullptr;
  size_t next_ = 0;  ///< index of the next batch
  std::vector<Bytes> buffers_, atClose_;
  std::vector<Pending> pending_;  ///< requests of this batch, in order
  bool isBeyondEnd_ = false, isOpen_ = true, isDone_ = false;
};

void runProgram(Side& side, bool isFirst, uint64_t seed) {
  const std::vector<Line> lines = programOf(seed);
  Random random(seed + (isFirst ? 1 : 2));
  std::deque<LineEnd> ends;
  for (const Line& line : lines) ends.emplace_back(side, line, line.isFromFirst == isFirst);
  const Time::time_point limit = Time::now() + kTimeout;
  while (!std::all_of(ends.begin(), ends.end(), [](const LineEnd& each) { return each.isDone(); })) {
    require(Time::now() < limit, "the program had no end in 30 s");
    ends[random() % ends.size()].advance(random);
  }
  side.barrier();
  for (LineEnd& each : ends) each.finish();
  side.barrier();
}

uint64_t fromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

constexpr int kTables[] = {6, 7, 8, 9, 10, 11, 12};

class RandomPrograms : public testing::TestWithParam<int> {};

TEST_P(RandomPrograms, AgreeWithAModel) {
  const bool isOne = std::getenv("AG_FUZZ_SEED") != nullptr;
  const uint64_t first = fromEnvironment("AG_FUZZ_SEED", std::random_device()());
  const uint64_t all = fromEnvironment("AG_FUZZ_COUNT", isOne ? std::size(kTables) : kUsualCount);
  const uint64_t count = (all + std::size(kTables) - 1) / std::size(kTables);
  const TableSource source = ourTable(GetParam());
  for (uint64_t done = 0; done < count; done += kProgramsPerProcess) {
    const uint64_t begin = first + done, end = first + std::min(count, done + kProgramsPerProcess);
    const auto body = [=](bool isFirst) {
      return [=](Side& side) {
        for (uint64_t seed = begin; seed < end; ++seed) {
          try {
            runProgram(side, isFirst, seed);
          } catch (const std::exception& failure) {
            throw SideFailure("AG_FUZZ_SEED=" + std::to_string(seed) + ": " + failure.what());
          }
        }
      };
    };
    ASSERT_EQ(runTwo(source, body(true), body(false)), "");
  }
  std::printf("%llu programs from seed %llu\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(first));
}

INSTANTIATE_TEST_SUITE_P(Tables, RandomPrograms, testing::ValuesIn(kTables),
                         [](const auto& info) { return "agspeed_v" + std::to_string(info.param); });

}  // namespace
}  // namespace agspeed::comm::nccl
