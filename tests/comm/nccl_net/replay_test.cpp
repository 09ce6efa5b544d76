// SPDX-License-Identifier: Apache-2.0
// Replays NCCL's use of a network table on host memory, with processes in a ring or all connected. Each process has a
// loop like NCCL's progress thread. It cuts operations into slices and keeps a few steps in flight. On each connection
// it tests the oldest request. The results are compared with plain sums and copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>

#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/ring.h"
#include "tests/comm/nccl_net/sources.h"

namespace agspeed::comm::nccl {
namespace {

constexpr size_t kStepsAhead = 8;       ///< slices in flight; NCCL has as many step buffers
constexpr size_t kSliceFloats = 50000;  ///< floats in a slice; the last one is shorter

class Replay : public testing::TestWithParam<TableSource> {
 protected:
  void expectAll(size_t size, const std::function<void(Group&)>& body) {
    const std::string failure = runGroup(GetParam(), size, body);
    if (failure.find("skip: ") != std::string::npos) GTEST_SKIP() << failure;
    EXPECT_EQ(failure, "");
  }
};

TEST_P(Replay, RingsReduceScatterAndGather) {
  for (const size_t size : {2, 5, 8}) {
    SCOPED_TRACE(std::to_string(size) + " processes");
    expectAll(size, [](Group& group) {
      constexpr size_t kCount = 800003;
      const Floats sum = sumOfInputs(group.size(), kCount);
      Ring ring(group, kCount);
      ring.reduceScatter();
      const std::span<float> own = ring.chunk(group.rank() + 1);
      const auto offset = own.data() - ring.values().data();
      require(std::equal(own.begin(), own.end(), sum.begin() + offset), "the reduced chunk is wrong");
      ring.allGather();
      require(ring.values() == sum, "the gathered buffer is wrong");
      for (int round = 0; round < 3; ++round) {
        ring.reset();
        ring.allReduce();
        require(ring.values() == sum, "the all-reduced buffer is wrong in round " + std::to_string(round));
      }
      group.barrier();
      ring.close();
    });
    expectAll(size, [](Group& group) {
      constexpr size_t kCount = 700001;
      Ring ring(group, kCount, {.numFloats = 30000, .mostUnderWay = 3, .numConnections = 3});
      ring.allReduce();
      require(ring.values() == sumOfInputs(group.size(), kCount), "the buffer that three connections reduced is wrong");
      group.barrier();
      ring.close();
    });
  }
}

TEST_P(Replay, AllExchangeWithAll) {
  expectAll(4, [](Group& group) {
    constexpr size_t kCount = 300007;
    std::vector<void*> sends(group.size()), receives(group.size());
    for (size_t turn = 0; turn < group.size(); ++turn) {  // in each turn all other ranks connect to one rank
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
        streams.emplace_back(group.side(peer), isSending ? sends[peer] : receives[peer], isSending, kStepsAhead);
        all.push_back(&streams.back());
        const std::span<float> values(isSending ? out[peer] : in[peer]);
        for (size_t at = 0; at < kCount; at += kSliceFloats) {
          streams.back().add([=] { return values.subspan(at, std::min(kSliceFloats, kCount - at)); });
        }
      }
    }
    drive(all);
    for (size_t peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      require(in[peer] == inputOf(peer * 10 + group.rank(), kCount), "wrong values of rank " + std::to_string(peer));
    }
    group.barrier();
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
