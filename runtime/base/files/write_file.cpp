// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/files/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace agspeed {
namespace {

/// Makes a new file beside `path`. Returns its descriptor; `temporary` becomes its name.
StatusOr<int> newFile(const std::string& path, std::string& temporary) {
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return unavailable("it is there and is not a regular file");
  }
  temporary = path + ".XXXXXX";
  const int file = mkostemp(temporary.data(), O_CLOEXEC);
  if (file < 0) return unavailable(std::strerror(errno));
  return file;
}

bool writeAll(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t count = write(file, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    content.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace

Status writeFile(const std::string& path, std::string_view content) {
  std::string temporary;
  AG_ASSIGN_OR_RETURN(const int file, newFile(path, temporary));
  bool isWritten = writeAll(file, content);
  int error = errno;
  isWritten = close(file) == 0 && isWritten;
  if (isWritten && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  if (isWritten) error = errno;
  unlink(temporary.c_str());
  return unavailable(std::strerror(error));
}

StatusOr<int> createFile(const std::string& path) {
  std::string temporary;
  AG_ASSIGN_OR_RETURN(const int file, newFile(path, temporary));
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return file;
  const int error = errno;
  close(file);
  unlink(temporary.c_str());
  return unavailable(std::strerror(error));
}

}  // namespace agspeed
