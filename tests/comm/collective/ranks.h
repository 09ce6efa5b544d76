// SPDX-License-Identifier: Apache-2.0
// The ranks of a group in one process: each has an engine and a communicator over loopback, and a thread during run().
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/api.h"
#include "comm/messaging/loopback_messenger.h"

namespace agspeed::comm::collective {

class Ranks {
 public:
  explicit Ranks(int size, GroupOptions options = {}, messaging::LoopbackOptions loopback = {},
                 engine::WireCoding coding = engine::WireCoding::kOff)
      : network(size, loopback), size_(size) {
    options.timeout = std::min<io::Clock::duration>(options.timeout, std::chrono::seconds(60));
    for (int rank = 0; rank < size; ++rank) {
      engines.push_back(std::make_unique<engine::Engine>(network.messenger(rank), coding));
      groups.push_back(Communicator::create(*engines.back(), options).value());
    }
  }

  int size() const { return size_; }

  /// Calls `body` for every rank, each in a thread of its own.
  void run(const std::function<void(int rank, Communicator& group)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] { body(rank, *groups[static_cast<size_t>(rank)]); });
    }
    for (auto& thread : threads) thread.join();
  }

  messaging::LoopbackGroup network;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  std::vector<std::unique_ptr<Communicator>> groups;

 private:
  const int size_;
};

template <typename T>
std::span<std::byte> bytesOf(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

/// A plan that always takes this algorithm, with segments of `segmentBytes` per chunk.
inline plan::Plan planWith(schedule::Collective collective, std::string algorithm, size_t segmentBytes = 0) {
  plan::Plan plan;
  const schedule::Algorithm* found = schedule::findAlgorithm(collective, algorithm);
  plan.isReproducible = found == nullptr || found->order == schedule::Order::kCanonical;
  plan.rules = {{collective, SIZE_MAX, std::move(algorithm), segmentBytes}};
  return plan;
}

}  // namespace agspeed::comm::collective
