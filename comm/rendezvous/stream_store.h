// SPDX-License-Identifier: Apache-2.0
// StreamStore: accesses the store of a StoreServer over one connection, on which both ends have proven the job key. If
// the connection is lost, the interrupted call fails as unavailable. The server may have executed this call or not. The
// next call connects again.
//
// Thread-safe: each call takes a round trip, and calls from several threads run one after another. Readers share the
// connection and may outlive the store.
#pragma once

#include <memory>
#include <string>

#include "comm/rendezvous/store_address.h"
#include "comm/rendezvous/store_protocol.h"

namespace agspeed::comm::rendezvous {

class StreamStore final : public Store {
 public:
  /// Connects, and waits for the server until `deadline`. Invalid argument: `key` is empty, or the server has another
  /// key.
  static StatusOr<std::unique_ptr<StreamStore>> connect(const StoreAddress& address, const security::JobKey& key,
                                                        std::chrono::steady_clock::time_point deadline);
  ~StreamStore() override;

  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override;
  Reader reader() override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override;
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override;

 private:
  class Connection;

  explicit StreamStore(std::shared_ptr<Connection> connection);

  std::shared_ptr<Connection> connection_;
};

}  // namespace agspeed::comm::rendezvous
