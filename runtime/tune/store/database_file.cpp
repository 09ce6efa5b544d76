// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/store/database_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace agspeed::runtime::tune {
namespace {

std::string quoted(const std::string& path) { return "\"" + path + "\""; }

Status checkOwner(const std::string& path, const struct stat& info) {
  if (info.st_uid == geteuid()) return {};
  return unavailable("{} belongs to user {}, not to you", quoted(path), info.st_uid);
}

Status checkFolder(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return unavailable(quoted(path) + ": " + std::strerror(errno));
  if (!S_ISDIR(info.st_mode)) return unavailable(quoted(path) + " is not a folder");
  AG_RETURN_IF_ERROR(checkOwner(path, info));
  if (info.st_mode & S_IWOTH) return unavailable("all users may write to the folder " + quoted(path));
  if (!(info.st_mode & S_IWUSR)) return unavailable("the folder " + quoted(path) + " is read-only");
  return {};
}

Status checkFile(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return unavailable(quoted(path) + ": " + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return unavailable(quoted(path) + " is not a regular file");
  AG_RETURN_IF_ERROR(checkOwner(path, info));
  if (info.st_mode & (S_IWGRP | S_IWOTH)) return unavailable("others may write to " + quoted(path));
  if (!(info.st_mode & S_IWUSR)) return unavailable(quoted(path) + " is read-only");
  return {};
}

/// Creates all missing folders as private ones, outermost first.
Status createFolders(const std::filesystem::path& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::exists(folder, error)) return {};
  AG_RETURN_IF_ERROR(createFolders(folder.parent_path()));
  if (mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return unavailable("the folder " + quoted(folder.string()) + " cannot be created: " + std::strerror(errno));
}

}  // namespace

Status prepareTrustedFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  AG_RETURN_IF_ERROR(createFolders(folder));
  AG_RETURN_IF_ERROR(checkFolder(folder.string()));
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file >= 0) {
    ::close(file);
  } else if (errno != EEXIST) {
    return unavailable(quoted(path) + " cannot be created: " + std::strerror(errno));
  }
  AG_RETURN_IF_ERROR(checkFile(path));
  // SQLite replays a journal when it opens the file, so the journal must be as trustworthy as the file.
  const std::string journal = path + "-journal";
  if (struct stat info{}; lstat(journal.c_str(), &info) == 0) AG_RETURN_IF_ERROR(checkFile(journal));
  return {};
}

}  // namespace agspeed::runtime::tune
