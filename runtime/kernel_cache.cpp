// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

#include "runtime/base/files/content_hash.h"
#include "runtime/base/format.h"

namespace agspeed::runtime {
namespace {

// See kernel_cache.md.
constexpr char kMagic[8] = {'A', 'G', 'K', 'E', 'R', 'N', 'E', 'L'};
constexpr uint32_t kFormatVersion = 1;
constexpr std::string_view kEntrySuffix = ".agk";
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr int64_t kStaleTemporarySeconds = 3600;
constexpr uint64_t kMaxEntryBytes = uint64_t{256} << 20;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t keyBytes;
  uint64_t payloadBytes;
  uint64_t checksum;  ///< of key and payload
};
static_assert(sizeof(Header) == 40);

uint64_t checksumOf(std::string_view key, std::string_view payload) { return hash64(payload, hash64(key)); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  bool isOpen() const { return fd_ >= 0; }

 private:
  int fd_;
};

void warnOnce(const std::string& path, const char* reason) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  std::fprintf(stderr, "agspeed: ignoring kernel cache %s: %s; remove it or choose another cache_dir\n", path.c_str(),
               reason);
}

/// Null if only this user can have written the file, else the reason.
const char* reasonForDistrust(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return "its owner cannot be read";
  if (info.st_uid != geteuid()) return "it belongs to another user";
  if (info.st_mode & (S_IWGRP | S_IWOTH)) return "other users may write to it";
  return nullptr;
}

/// The folder, or a closed descriptor if it is missing or not trusted.
int openTrustedFolder(const std::string& folder) {
  int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  const char* reason = reasonForDistrust(fd);
  if (!reason) return fd;
  warnOnce(folder, reason);
  close(fd);
  return -1;
}

std::optional<std::string> readAll(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) > kMaxEntryBytes) {
    return std::nullopt;
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t count = read(fd, bytes.data() + done, bytes.size() - done);
    if (count <= 0) return std::nullopt;
    done += static_cast<size_t>(count);
  }
  return bytes;
}

bool writeAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

struct Decoded {
  const char* damage = nullptr;  ///< null: intact
  std::string_view key;
  std::string_view payload;
};

Decoded decode(std::string_view file) {
  Header header;
  if (file.size() < sizeof(header)) return {"it is truncated", {}, {}};
  std::memcpy(&header, file.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return {"it is not a kernel cache entry", {}, {}};
  if (header.version != kFormatVersion) return {"it has another format version", {}, {}};
  std::string_view body = file.substr(sizeof(header));
  bool sizesFit = header.keyBytes <= body.size() && header.payloadBytes == body.size() - header.keyBytes;
  if (!sizesFit) return {"its length is wrong", {}, {}};
  std::string_view key = body.substr(0, header.keyBytes);
  std::string_view payload = body.substr(header.keyBytes);
  if (checksumOf(key, payload) != header.checksum) return {"its checksum is wrong", {}, {}};
  return {nullptr, key, payload};
}

std::string encode(std::string_view key, std::string_view payload) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kFormatVersion;
  header.keyBytes = key.size();
  header.payloadBytes = payload.size();
  header.checksum = checksumOf(key, payload);
  std::string file(reinterpret_cast<const char*>(&header), sizeof(header));
  file.append(key).append(payload);
  return file;
}

std::string entryName(std::string_view key) { return contentHash(key) + std::string(kEntrySuffix); }

struct Entry {
  std::string name;
  uint64_t bytes = 0;
  int64_t lastUseNs = 0;
};

// The entries of the folder; also removes temporary files that a killed process left behind.
std::vector<Entry> listEntries(int folder) {
  std::vector<Entry> entries;
  int copy = dup(folder);
  DIR* directory = copy >= 0 ? fdopendir(copy) : nullptr;
  if (!directory) return entries;
  rewinddir(directory);
  while (const dirent* item = readdir(directory)) {
    std::string name = item->d_name;
    struct stat info;
    if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) continue;
    bool isStale = name.starts_with(kTemporaryPrefix) && info.st_mtime + kStaleTemporarySeconds < std::time(nullptr);
    if (isStale) unlinkat(folder, name.c_str(), 0);
    int64_t lastUseNs = info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec;
    if (name.ends_with(kEntrySuffix)) entries.push_back({name, static_cast<uint64_t>(info.st_size), lastUseNs});
  }
  closedir(directory);
  return entries;
}

void pruneFolder(int folder, uint64_t maxBytes) {
  std::vector<Entry> entries = listEntries(folder);
  uint64_t total = 0;
  for (const Entry& entry : entries) total += entry.bytes;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.lastUseNs < b.lastUseNs; });
  for (const Entry& entry : entries) {
    if (total <= maxBytes) return;
    unlinkat(folder, entry.name.c_str(), 0);
    total -= entry.bytes;
  }
}

std::string temporaryName() {
  static std::atomic<uint64_t> counter{0};
  return formatText("{}{}-{}", kTemporaryPrefix, getpid(), counter++);
}

}  // namespace

std::string KernelCache::entryPath(std::string_view key) const { return folder_ + "/" + entryName(key); }

std::optional<std::string> KernelCache::load(std::string_view key) const {
  if (folder_.empty()) return std::nullopt;
  FileDescriptor folder(openTrustedFolder(folder_));
  if (!folder.isOpen()) return std::nullopt;
  FileDescriptor file(openat(folder.get(), entryName(key).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.isOpen()) return std::nullopt;
  auto ignore = [&](const char* reason) {
    warnOnce(entryPath(key), reason);
    return std::nullopt;
  };
  if (const char* reason = reasonForDistrust(file.get())) return ignore(reason);
  std::optional<std::string> bytes = readAll(file.get());
  if (!bytes) return ignore("it cannot be read");
  Decoded entry = decode(*bytes);
  if (entry.damage) return ignore(entry.damage);
  if (entry.key != key) return std::nullopt;  // another text with the same hash
  futimens(file.get(), nullptr);              // marks the use for prune(); may fail in a read-only folder
  return std::string(entry.payload);
}

void KernelCache::store(std::string_view key, std::string_view payload) const {
  if (folder_.empty() || sizeof(Header) + key.size() + payload.size() > kMaxEntryBytes) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(folder_).parent_path(), ignored);
  mkdir(folder_.c_str(), 0700);
  FileDescriptor folder(openTrustedFolder(folder_));
  if (!folder.isOpen()) return;
  std::string temporary = temporaryName();
  int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  FileDescriptor file(openat(folder.get(), temporary.c_str(), flags, 0600));
  if (!file.isOpen()) return;
  bool isWritten = writeAll(file.get(), encode(key, payload)) &&
                   renameat(folder.get(), temporary.c_str(), folder.get(), entryName(key).c_str()) == 0;
  if (!isWritten) unlinkat(folder.get(), temporary.c_str(), 0);
  pruneFolder(folder.get(), limits_.maxBytes);
}

void KernelCache::prune(uint64_t maxBytes) const {
  FileDescriptor folder(openTrustedFolder(folder_));
  if (folder.isOpen()) pruneFolder(folder.get(), maxBytes);
}

}  // namespace agspeed::runtime
