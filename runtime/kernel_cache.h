// SPDX-License-Identifier: Apache-2.0
// KernelCache: content-addressed store of compiled kernels in a folder. Format and rules: kernel_cache.md.
//
// An entry is code that this process will execute. So a folder or file that another user could have written is not
// read: it must belong to this user, and no other user may be able to write it. Such entries, and damaged ones, count
// as absent; the first one is reported on stderr. No failure here fails a compilation. Thread-safety: all methods may
// be called concurrently, by any number of threads and processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace agspeed::runtime {

class KernelCache {
 public:
  struct Limits {
    uint64_t maxBytes = uint64_t{1} << 30;  ///< the oldest entries are removed when the folder grows beyond it
  };

  /// The folder is created, with mode 0700, by the first store. An empty path makes a cache that is always empty.
  explicit KernelCache(std::string folder) : KernelCache(std::move(folder), Limits()) {}
  KernelCache(std::string folder, Limits limits) : folder_(std::move(folder)), limits_(limits) {}

  /// The payload stored under exactly this key, or nullopt.
  std::optional<std::string> load(std::string_view key) const;
  /// Replaces the payload stored under the key. Readers see the old entry, the new one, or none, never a part of one.
  void store(std::string_view key, std::string_view payload) const;
  /// Removes entries, oldest use first, until the folder holds at most maxBytes.
  void prune(uint64_t maxBytes) const;

  /// Path of the key's entry, whether or not it exists.
  std::string entryPath(std::string_view key) const;

 private:
  std::string folder_;
  Limits limits_;
};

}  // namespace agspeed::runtime
