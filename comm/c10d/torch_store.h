// SPDX-License-Identifier: Apache-2.0
// TorchStore: adapts torch's key-value store to Store, through which ranks find each other.
//
// Thread-safety: as torch's store, whose clients lock. Torch's exceptions become Status.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "comm/api.h"

namespace agspeed::comm::c10d {

class TorchStore final : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}
  /// Wraps a new client of the same store with a separate connection. The reason: torch locks a client while a thread
  /// waits in it. Wraps `store` itself if no new connection can be made. The connection for a TCPStore is made once,
  /// and kept as long as torch's client exists. To connect, torch looks up the server's name, which takes seconds if
  /// names do not resolve.
  static std::shared_ptr<TorchStore> onOwnConnection(const c10::intrusive_ptr<::c10d::Store>& store);

  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override;
  /// Returns a reader of many keys. If all keys are set, and if torch's store can read many keys at once (TCPStore), it
  /// sends three requests in total.
  Reader reader() override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override;
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override;

 private:
  c10::intrusive_ptr<::c10d::Store> store_;
};

}  // namespace agspeed::comm::c10d
