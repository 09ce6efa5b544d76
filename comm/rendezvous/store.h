// SPDX-License-Identifier: Apache-2.0
// Store: how ranks find each other before they are connected: a small map that all ranks see. MemoryStore serves ranks
// of one process, FileStore processes that share a folder, StreamStore those that reach a server (stream_store.h); c10d
// wraps torch's store elsewhere. PrefixStore keeps several users of one store apart.
//
// Whatever is read may have been written by anybody: readers check it. Values are small (at most kMaxValueBytes).
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

namespace agspeed::comm {

class Store {
 public:
  static constexpr size_t kMaxValueBytes = 16384;
  using Values = std::vector<std::optional<std::string>>;
  /// The values of several keys, as by tryGet().
  using Reader = std::function<StatusOr<Values>(const std::vector<std::string>& keys)>;

  virtual ~Store() = default;
  /// Replaces the value of `key`.
  virtual Status set(const std::string& key, const std::string& value) = 0;
  /// The value, or nullopt while nobody has set it. Does not wait.
  virtual StatusOr<std::optional<std::string>> tryGet(const std::string& key) = 0;
  /// tryGet() for another thread and for many keys at once, which one request may serve. Where it may block, it owns
  /// what it needs and may outlive the store.
  virtual Reader reader();
  /// Adds to the counter `key`, which starts as 0, and returns the sum. A key is a counter or a value, not both.
  virtual StatusOr<int64_t> add(const std::string& key, int64_t amount) = 0;
  /// Sets `key` unless it is set. Returns: the value that it has then, the same for everybody.
  virtual StatusOr<std::string> setOnce(const std::string& key, const std::string& value) = 0;

  /// Blocks until somebody has set `key`, at the latest until `deadline`. Returns: its value, or nullopt. Looks now and
  /// then, so that the store serves others meanwhile.
  StatusOr<std::optional<std::string>> getUntil(const std::string& key, std::chrono::steady_clock::time_point deadline);
};

/// Ranks as threads of one process. Thread-safe.
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

/// Processes that share a folder, which exists and is private to the job; one file per key. Thread-safe.
class FileStore final : public Store {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override;
  StatusOr<std::string> setOnce(const std::string& key, const std::string& value) override;

 private:
  std::string path(const std::string& key) const;
  /// A file with this content, complete, to be moved to the key's path. Thread-safe.
  StatusOr<std::string> draft(const std::string& key, const std::string& value) const;

  std::string folder_;
};

/// Another store, with `prefix` in front of all keys. Thread-safe where that store is.
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

}  // namespace agspeed::comm
