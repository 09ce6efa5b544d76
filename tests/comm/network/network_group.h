// SPDX-License-Identifier: Apache-2.0
// Messengers over TCP in one process, with loopback addresses as rails, and messages to pass between them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/network/network_messenger.h"
#include "comm/rendezvous/store.h"

namespace agspeed::comm::network {

/// Returns the options of one rank of a group on `numRails` loopback addresses.
NetworkOptions loopbackOptions(int rank, int size, int numRails);

/// A transfer that owns its bytes and remembers how it ended.
struct Parcel final : messaging::Transfer {
  Parcel(int to, wire::MessageId name, size_t size);
  void finished(const Status& result) override;

  std::vector<std::byte> storage;
  int numFinished = 0;
  Status status;
};

/// The ranks of a group, which the calling thread drives.
class NetworkGroup {
 public:
  using Change = std::function<void(NetworkOptions&)>;

  /// `change` may alter each rank's options.
  NetworkGroup(int size, int numRails, const Change& change = {}, std::unique_ptr<rendezvous::Store> store = nullptr);

  int size() const { return static_cast<int>(messengers_.size()); }
  NetworkMessenger& operator[](int rank) { return *messengers_[static_cast<size_t>(rank)]; }
  rendezvous::Store& store() { return *store_; }
  /// Ends a rank as if its process had ended.
  void destroy(int rank) { messengers_[static_cast<size_t>(rank)].reset(); }

  /// Drives all ranks until `isDone`, for at most `limit`. Returns the last result of `isDone`.
  bool drive(const std::function<bool()>& isDone, std::chrono::milliseconds limit = std::chrono::seconds(20));
  /// Sends `numMessages` of random sizes between random ranks and drives them to their ends. Returns the errors, one
  /// per line; empty if every byte arrived.
  std::string exchange(int numMessages, size_t maxBytes, uint64_t seed);

 private:
  std::unique_ptr<rendezvous::Store> store_;
  std::vector<std::unique_ptr<NetworkMessenger>> messengers_;
  uint64_t sequence_ = 0;
};

}  // namespace agspeed::comm::network
