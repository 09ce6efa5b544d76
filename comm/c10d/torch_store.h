// SPDX-License-Identifier: Apache-2.0
// TorchStore: torch's key-value store as the store through which ranks find each other.
//
// Thread-safety: that of torch's store (its clients lock). Torch's exceptions become Status.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "comm/api.h"

namespace agspeed::comm {

class TorchStore final : public Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}
  /// The same store over a connection of its own: torch's clients are locked while somebody waits in them. The store
  /// itself where it has no other. A TCPStore's connection is made once and kept as long as torch's: to connect, torch
  /// looks up the server's name, which takes seconds where names do not resolve.
  static std::shared_ptr<TorchStore> onOwnConnection(const c10::intrusive_ptr<::c10d::Store>& store);

  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override;
  /// Keys that are all there take three requests in all where torch's store can read many at once (TCPStore).
  Reader reader() override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override;
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override;

 private:
  c10::intrusive_ptr<::c10d::Store> store_;
};

}  // namespace agspeed::comm
