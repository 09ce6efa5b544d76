// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/base/files/write_file.h"
#include "runtime/base/format.h"

namespace agspeed::comm::rendezvous {
namespace {

constexpr std::chrono::milliseconds kLongestPause{50};

/// Opens a regular file, and closes it in the destructor. It does not follow links. For a pipe or a device, get() is -1
/// and errno is EINVAL, and opening does not block.
class File {
 public:
  File(const std::string& path, int flags)
      : descriptor_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) {
    struct stat info{};
    if (descriptor_ < 0 || (fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode))) return;
    close(std::exchange(descriptor_, -1));
    errno = EINVAL;
  }
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

StatusOr<std::optional<std::string>> Store::getUntil(const std::string& key,
                                                     std::chrono::steady_clock::time_point deadline) {
  for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    AG_ASSIGN_OR_RETURN(std::optional<std::string> value, tryGet(key));
    if (value.has_value() || std::chrono::steady_clock::now() >= deadline) return value;
    std::this_thread::sleep_for(pause);
  }
}

Store::Reader PrefixStore::reader() {
  return [reader = store_->reader(), prefix = prefix_](std::vector<std::string> keys) {
    for (std::string& key : keys) key.insert(0, prefix);
    return reader(keys);
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

StatusOr<std::string> MemoryStore::setOnce(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  return values_.try_emplace(key, value).first->second;
}

std::string FileStore::path(const std::string& key) const {
  std::string name = key;
  for (char& letter : name) letter = letter == '/' ? '.' : letter;
  return folder_ + "/" + name;
}

StatusOr<std::string> FileStore::draft(const std::string& key, const std::string& value) const {
  static std::atomic<uint64_t> numDrafts = 0;
  const std::string name = formatText("{}.draft.{}.{}", path(key), getpid(), ++numDrafts);
  AG_RETURN_IF_ERROR(writeFile(name, value).withContext("cannot write " + path(key)));
  return name;
}

Status FileStore::set(const std::string& key, const std::string& value) {
  // Readers see the old value or the new one, because the file is renamed into place.
  return writeFile(path(key), value).withContext("cannot write " + path(key));
}

StatusOr<std::string> FileStore::setOnce(const std::string& key, const std::string& value) {
  AG_ASSIGN_OR_RETURN(const std::string source, draft(key, value));
  const int error = link(source.c_str(), path(key).c_str()) == 0 ? 0 : errno;
  unlink(source.c_str());
  if (error == 0) return value;
  errno = error;
  if (error != EEXIST) return failure("write " + path(key));
  AG_ASSIGN_OR_RETURN(std::optional<std::string> found, tryGet(key));
  if (!found.has_value()) return dataLoss(path(key) + " was removed while ranks agreed on it");
  return *std::move(found);
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

}  // namespace agspeed::comm::rendezvous
