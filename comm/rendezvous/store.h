// SPDX-License-Identifier: Apache-2.0
// Store: how ranks find each other before they are connected: a small map that all ranks see. MemoryStore serves ranks
// of one process, FileStore processes that share a folder; c10d wraps torch's store elsewhere.
//
// Whatever is read may have been written by anybody: readers check it. Values are small (at most kMaxValueBytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
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
};

/// Ranks as threads of one process. Thread-safe.
class MemoryStore final : public Store {
 public:
  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::optional<std::string>> tryGet(const std::string& key) override;
  StatusOr<int64_t> add(const std::string& key, int64_t amount) override;

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

 private:
  std::string path(const std::string& key) const;

  std::string folder_;
};

}  // namespace agspeed::comm
