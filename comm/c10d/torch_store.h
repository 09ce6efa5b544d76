// SPDX-License-Identifier: Apache-2.0
// TorchStore: torch's key-value store as the store through which ranks find each other.
//
// Thread-safety: that of torch's store (its clients lock). Torch's exceptions become Status.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "comm/rendezvous/store.h"

namespace agspeed::comm {

class TorchStore final : public Store {
 public:
  /// All keys get `prefix` in front.
  TorchStore(c10::intrusive_ptr<::c10d::Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override;
  /// Keys that are all there take three requests in all where torch's store can read many at once (TCPStore).
  Reader reader() override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override;

  /// Sets `key` unless it is set. Returns: the value that it has then, the same for everybody.
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value);
  /// The value of `key` as soon as somebody has set it; nothing where nobody has until `deadline`. Asks rather than
  /// waits: a wait would keep torch's store from everybody else in this process.
  StatusOr<std::optional<std::string>> getUntil(const std::string& key, std::chrono::steady_clock::time_point deadline);

 private:
  c10::intrusive_ptr<::c10d::Store> store_;
  const std::string prefix_;
};

}  // namespace agspeed::comm
