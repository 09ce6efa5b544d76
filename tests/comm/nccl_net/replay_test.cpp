// SPDX-License-Identifier: Apache-2.0
// NCCL's way to use a network table, replayed on host memory: processes in a ring or all connected, each with a loop as
// NCCL's progress thread: operations are cut into slices, a few steps are under way, of each connection the oldest is
// tested. What comes out is compared with plain sums and copies.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>

#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/sources.h"

namespace agspeed::comm::nccl {
namespace {

using Floats = std::vector<float>;

constexpr size_t kStepsAhead = 8;       ///< as NCCL has step buffers
constexpr size_t kSliceFloats = 50000;  ///< of a chunk, the last slice is shorter

/// One direction: slices in order, a few under way. The slices lie in the caller's memory.
class Stream {
 public:
  Stream(Side& side, void* comm, bool isSending) : side_(side), comm_(comm), isSending_(isSending) {}

  /// `arrived`: called when the slice is there, or has left.
  void add(std::span<float> slice, std::function<void()> arrived = {}) {
    waiting_.push_back({slice, std::move(arrived)});
  }
  bool isDone() const { return waiting_.empty() && underWay_.empty(); }
  /// Returns: whether anything moved.
  bool advance() {
    bool hasMoved = false;
    while (!waiting_.empty() && underWay_.size() < kStepsAhead) {
      const std::span<std::byte> bytes = std::as_writable_bytes(waiting_.front().memory);
      underWay_.push_back(
          {isSending_ ? side_.send(comm_, bytes) : side_.receive(comm_, {bytes}), std::move(waiting_.front().arrived)});
      waiting_.pop_front();
      hasMoved = true;
    }
    if (underWay_.empty()) return hasMoved;
    Pending& oldest = underWay_.front().pending;
    requireOk(side_.table().test(oldest.request, oldest.isDone, oldest.sizes.data()), "test");
    if (!oldest.isDone) return hasMoved;
    const std::function<void()> arrived = std::move(underWay_.front().arrived);
    underWay_.pop_front();
    if (arrived) arrived();
    return true;
  }

 private:
  struct Slice {
    std::span<float> memory;
    std::function<void()> arrived;
  };
  struct Step {
    Pending pending;
    std::function<void()> arrived;
  };
  Side& side_;
  void* comm_;
  const bool isSending_;
  std::deque<Slice> waiting_;
  std::deque<Step> underWay_;
};

void drive(const std::vector<Stream*>& streams) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (!std::all_of(streams.begin(), streams.end(), [](const Stream* each) { return each->isDone(); })) {
    require(std::chrono::steady_clock::now() < limit, "the operation had no end in 40 s");
    bool hasMoved = false;
    for (Stream* each : streams) hasMoved = each->advance() || hasMoved;
    if (!hasMoved) sched_yield();
  }
}

std::vector<std::span<float>> slicesOf(std::span<float> chunk) {
  std::vector<std::span<float>> slices;
  for (size_t at = 0; at < chunk.size(); at += kSliceFloats) {
    slices.push_back(chunk.subspan(at, std::min(kSliceFloats, chunk.size() - at)));
  }
  return slices;
}

/// What rank contributes; small whole numbers, so that sums are exact in any order.
Floats inputOf(size_t rank, size_t count) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((rank * 31 + i * 7 + i / 1000) % 97);
  return values;
}

/// A ring: rank r sends to r + 1. Chunk c of a buffer is reduced around it, then handed around.
class Ring {
 public:
  Ring(Group& group, size_t count) : group_(group), size_(group.size()), values_(inputOf(group.rank(), count)) {
    Side& next = group.side((group.rank() + 1) % size_);
    Side& previous = group.side((group.rank() + size_ - 1) % size_);
    // The first rank listens first: a circle of listeners that all wait would not end.
    if (group.rank() == 0) receive_ = previous.openReceive();
    send_ = next.openSend();
    if (group.rank() != 0) receive_ = previous.openReceive();
  }

  std::span<float> chunk(size_t index) {
    const size_t length = values_.size() / size_, at = index % size_;
    const size_t end = at + 1 == size_ ? values_.size() : (at + 1) * length;
    return std::span(values_).subspan(at * length, end - at * length);
  }
  /// One step around: sends a chunk, receives another, which is added or kept.
  void step(size_t sent, size_t received, bool isReduced) {
    Side& side = group_.side((group_.rank() + 1) % size_);
    Stream out(side, send_, true), in(side, receive_, false);
    for (const std::span<float> slice : slicesOf(chunk(sent))) out.add(slice);
    Floats arrived(chunk(received).size());
    const std::vector<std::span<float>> targets = slicesOf(chunk(received)), scratch = slicesOf(arrived);
    for (size_t i = 0; i < targets.size(); ++i) {
      in.add(isReduced ? scratch[i] : targets[i], [=] {
        for (size_t at = 0; isReduced && at < targets[i].size(); ++at) targets[i][at] += scratch[i][at];
      });
    }
    drive({&out, &in});
  }
  void reduceScatter() {
    for (size_t i = 0; i + 1 < size_; ++i) step(group_.rank() + size_ - i, group_.rank() + 2 * size_ - i - 1, true);
  }
  void allGather() {
    for (size_t i = 0; i + 1 < size_; ++i) step(group_.rank() + size_ + 1 - i, group_.rank() + size_ - i, false);
  }
  const Floats& values() const { return values_; }
  void close() {
    NetTable& table = group_.side((group_.rank() + 1) % size_).table();
    requireOk(table.closeSend(send_), "closeSend");
    requireOk(table.closeReceive(receive_), "closeRecv");
  }

 private:
  Group& group_;
  const size_t size_;
  Floats values_;
  void* send_ = nullptr;
  void* receive_ = nullptr;
};

class Replay : public testing::TestWithParam<TableSource> {
 protected:
  void expectAll(size_t size, const std::function<void(Group&)>& body) {
    const std::string failure = runGroup(GetParam(), size, body);
    if (failure.find("skip: ") != std::string::npos) GTEST_SKIP() << failure;
    EXPECT_EQ(failure, "");
  }
};

TEST_P(Replay, RingsReduceScatterAndGather) {
  for (const size_t size : {2, 5}) {
    SCOPED_TRACE(std::to_string(size) + " processes");
    expectAll(size, [](Group& group) {
      constexpr size_t kCount = 800003;
      Floats sum(kCount);
      for (size_t rank = 0; rank < group.size(); ++rank) {
        const Floats input = inputOf(rank, kCount);
        for (size_t i = 0; i < kCount; ++i) sum[i] += input[i];
      }
      Ring ring(group, kCount);
      ring.reduceScatter();
      const std::span<float> own = ring.chunk(group.rank() + 1);
      const auto offset = own.data() - ring.values().data();
      require(std::equal(own.begin(), own.end(), sum.begin() + offset), "the reduced chunk is wrong");
      ring.allGather();
      require(ring.values() == sum, "the all-reduced buffer is wrong");
      group.meet();
      ring.close();
    });
  }
}

TEST_P(Replay, AllExchangeWithAll) {
  expectAll(4, [](Group& group) {
    constexpr size_t kCount = 300007;
    std::vector<void*> sends(group.size()), receives(group.size());
    for (size_t turn = 0; turn < group.size(); ++turn) {  // in each turn one rank is connected to by all others
      for (size_t peer = 0; peer < group.size(); ++peer) {
        if (turn == group.rank() && peer != turn) receives[peer] = group.side(peer).openReceive();
        if (peer == group.rank() && peer != turn) sends[turn] = group.side(turn).openSend();
      }
    }
    std::vector<Floats> out(group.size()), in(group.size());
    std::deque<Stream> streams;
    std::vector<Stream*> all;
    for (size_t peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      out[peer] = inputOf(group.rank() * 10 + peer, kCount);
      in[peer].resize(kCount);
      for (const bool isSending : {true, false}) {
        streams.emplace_back(group.side(peer), isSending ? sends[peer] : receives[peer], isSending);
        all.push_back(&streams.back());
        for (const std::span<float> slice : slicesOf(isSending ? out[peer] : in[peer])) streams.back().add(slice);
      }
    }
    drive(all);
    for (size_t peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      require(in[peer] == inputOf(peer * 10 + group.rank(), kCount), "wrong values of rank " + std::to_string(peer));
    }
    group.meet();
    for (size_t peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      requireOk(group.side(peer).table().closeSend(sends[peer]), "closeSend");
      requireOk(group.side(peer).table().closeReceive(receives[peer]), "closeRecv");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Tables, Replay, testing::Values(ncclSocket(), ourTable(6), ourTable(11)),
                         [](const auto& info) { return info.param.label; });

}  // namespace
}  // namespace agspeed::comm::nccl
