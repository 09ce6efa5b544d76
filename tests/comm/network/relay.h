// SPDX-License-Identifier: Apache-2.0
// A network that corrupts bytes: relays between the ranks of a group flip bits, cut connections and repeat bytes in
// transit, below the seals. RelayStore puts a relay in front of every rail. It does so by changing the records that
// ranks publish, which anyone may do in an open store.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/rendezvous/peer_record.h"
#include "comm/rendezvous/store.h"

namespace agspeed::comm::network {

/// The mean number of bytes between two faults of a kind; 0: never.
struct RelayFaults {
  uint64_t seed = 1;
  double bytesPerFlip = 0;
  double bytesPerCut = 0;
  double bytesPerRepeat = 0;
};

/// The number of faults of each kind so far.
struct RelayCounts {
  std::atomic<int> numFlips = 0;
  std::atomic<int> numCuts = 0;
  std::atomic<int> numRepeats = 0;
};

/// Forwards connections to `target` in a thread of its own.
class Relay {
 public:
  Relay(const rendezvous::RailAddress& target, const RelayFaults& faults, RelayCounts& counts);
  ~Relay();

  const rendezvous::RailAddress& address() const { return address_; }
  /// While closed, connections end at once and new ones are refused.
  void setOpen(bool isOpen) { isOpen_ = isOpen; }
  /// While slow, at most 16 KiB are moved every 5 ms.
  void setSlow(bool isSlow) { isSlow_ = isSlow; }

 private:
  struct Pair {
    int near = -1;
    int far = -1;
  };
  void run();
  void acceptOne();
  /// Moves the available bytes. Returns false if the pair has to be closed.
  bool forward(int from, int to);
  bool happens(double bytesPerFault, size_t numBytes);

  const rendezvous::RailAddress target_;
  rendezvous::RailAddress address_;
  const RelayFaults faults_;
  RelayCounts& counts_;
  std::mt19937_64 random_;
  int listener_ = -1;
  std::vector<Pair> pairs_;
  std::atomic<bool> isOpen_ = true;
  std::atomic<bool> isSlow_ = false;
  std::atomic<bool> isStopped_ = false;
  std::thread thread_;
};

class RelayStore final : public rendezvous::Store {
 public:
  /// `key` is the job's key, with which ranks protect their records.
  explicit RelayStore(RelayFaults faults, security::JobKey key = {}) : faults_(faults), key_(std::move(key)) {}

  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override { return store_.tryGet(key); }
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override { return store_.add(key, amount); }
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override {
    return store_.setOnce(key, value);
  }

  const RelayCounts& counts() const { return counts_; }
  /// The relay in front of a rail of a rank.
  Relay& relay(int rank, int rail) { return *relays_.at({rank, rail}); }

 private:
  rendezvous::MemoryStore store_;
  RelayFaults faults_;
  security::JobKey key_;
  RelayCounts counts_;
  std::map<std::pair<int, int>, std::unique_ptr<Relay>> relays_;
};

}  // namespace agspeed::comm::network
