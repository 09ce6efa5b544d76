// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::comm {
namespace {

/// A descriptor that closes itself.
class File {
 public:
  File(const std::string& path, int flags) : descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int get() const { return descriptor_; }
  std::string content() const {
    std::array<char, Store::kMaxValueBytes> buffer;
    const ssize_t size = pread(descriptor_, buffer.data(), buffer.size(), 0);
    return {buffer.data(), size > 0 ? static_cast<size_t>(size) : 0};
  }
  bool replace(const std::string& text) const {
    return ftruncate(descriptor_, 0) == 0 &&
           pwrite(descriptor_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  }

 private:
  int descriptor_;
};

Status failure(const std::string& what) { return unavailable("cannot " + what + ": " + std::strerror(errno)); }

}  // namespace

Store::Reader Store::reader() {
  return [this](const std::vector<std::string>& keys) -> StatusOr<Values> {
    Values values;
    for (const std::string& key : keys) {
      AG_ASSIGN_OR_RETURN(values.emplace_back(), tryGet(key));
    }
    return values;
  };
}

Status MemoryStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  return {};
}

StatusOr<std::optional<std::string>> MemoryStore::tryGet(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::optional<std::string>() : found->second;
}

StatusOr<int64_t> MemoryStore::add(const std::string& key, int64_t amount) {
  const std::lock_guard lock(mutex_);
  return counters_[key] += amount;
}

std::string FileStore::path(const std::string& key) const {
  std::string name = key;
  for (char& letter : name) letter = letter == '/' ? '.' : letter;
  return folder_ + "/" + name;
}

Status FileStore::set(const std::string& key, const std::string& value) {
  // Readers see the old value or the new one, because the file is renamed into place.
  const std::string target = path(key);
  const std::string draft = formatText("{}.draft.{}", target, getpid());
  const File file(draft, O_CREAT | O_WRONLY);
  if (file.get() < 0 || !file.replace(value) || std::rename(draft.c_str(), target.c_str()) != 0) {
    return failure("write " + target);
  }
  return {};
}

StatusOr<std::optional<std::string>> FileStore::tryGet(const std::string& key) {
  const File file(path(key), O_RDONLY);
  if (file.get() >= 0) return std::optional(file.content());
  if (errno == ENOENT) return std::optional<std::string>();
  return failure("read " + path(key));
}

StatusOr<int64_t> FileStore::add(const std::string& key, int64_t amount) {
  const File file(path(key), O_CREAT | O_RDWR);
  if (file.get() < 0 || flock(file.get(), LOCK_EX) != 0) return failure("count in " + path(key));
  const std::string content = file.content();
  const int64_t sum = (content.empty() ? 0 : std::strtoll(content.c_str(), nullptr, 10)) + amount;
  if (!file.replace(std::to_string(sum))) return failure("count in " + path(key));
  return sum;
}

}  // namespace agspeed::comm
