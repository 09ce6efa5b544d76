// SPDX-License-Identifier: Apache-2.0
// Store: a small map that all ranks see, through which they find each other before they are connected. MemoryStore
// serves ranks of one process, FileStore processes that share a folder, and StreamStore processes that reach a server
// (stream_store.h). comm/c10d wraps torch's store. PrefixStore gives each user of a shared store its own keys.
//
// Values are untrusted: an attacker may have written them, so readers check them. A value has at most kMaxValueBytes
// bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed::comm::rendezvous {

class Store {
 public:
  static constexpr size_t kMaxValueBytes = 16384;
  using Values = std::vector<std::optional<std::string>>;
  /// Reads the values of several keys; see tryGet().
  using Reader = std::function<StatusOr<Values>(const std::vector<std::string>& keys)>;

  virtual ~Store() = default;
  /// Replaces the value of `key`.
  virtual Status set(const std::string& key, const std::string& value) = 0;
  /// Returns the value, or nullopt if the key is not set. Does not wait until the key is set.
  virtual StatusOr<std::optional<std::string>> tryGet(const std::string& key) = 0;
  /// Returns a function that does tryGet() for several keys, for use on another thread. It may read all keys with one
  /// request. If it can block, it owns the state that it needs, and may outlive the store.
  virtual Reader reader();
  /// Adds `amount` to the counter `key`, which starts at 0, and returns the sum. A key is a counter or a value, not
  /// both.
  virtual StatusOr<int64_t> add(const std::string& key, int64_t amount) = 0;
  /// Sets `key` if it is not set. Returns: the value that the key then has, which is the same for all callers.
  virtual StatusOr<std::string> setOnce(const std::string& key, const std::string& value) = 0;

  /// Blocks until `key` is set or `deadline` has passed. Returns: its value, or nullopt. It polls with pauses of 1 to
  /// 50 ms, so that the store can serve other callers meanwhile.
  StatusOr<std::optional<std::string>> getUntil(const std::string& key, std::chrono::steady_clock::time_point deadline);
};

/// A store in memory, for ranks that are threads of one process. Thread-safe.
class MemoryStore final : public Store {
 public:
  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override;
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override;

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
};

/// A store in a folder, for processes that share it. The folder exists and is private to the job. Each key has one
/// file. Thread-safe.
class FileStore final : public Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override;
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override;

 private:
  std::string path(const std::string& key) const;
  /// Writes a complete file with this content, for a later link to the key's path. Returns: its path. Thread-safe.
  StatusOr<std::string> draft(const std::string& key, const std::string& value) const;

  std::string folder_;
};

/// Wraps another store, and puts `prefix` in front of all keys. Thread-safe if the other store is thread-safe.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  Status set(const std::string& key, const std::string& value) override { return store_->set(prefix_ + key, value); }
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override { return store_->tryGet(prefix_ + key); }
  Reader reader() override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override { return store_->add(prefix_ + key, amount); }
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override {
    return store_->setOnce(prefix_ + key, value);
  }

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

}  // namespace agspeed::comm::rendezvous
