// SPDX-License-Identifier: Apache-2.0
#include "comm/security/job_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "comm/security/keys.h"

namespace agspeed::comm {
namespace {

constexpr size_t kMinKeyBytes = 16;
constexpr size_t kMaxKeyBytes = 4096;

StatusOr<std::string> readKeyFile(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return invalidArgument("cannot read the job key in " + file + ": " + std::strerror(errno));
  struct stat info = {};
  const bool isPrivate = fstat(fd, &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  std::array<char, kMaxKeyBytes> content;
  const ssize_t size = read(fd, content.data(), content.size());
  close(fd);
  if (!isPrivate) return invalidArgument("the job key in " + file + " can be read by others: chmod 600 " + file);
  return std::string(content.data(), size > 0 ? static_cast<size_t>(size) : 0);
}

std::string_view strip(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

StatusOr<JobKey> loadJobKey(const std::string& text, const std::string& file) {
  if (text.empty() && file.empty()) return JobKey();
  std::string content = text;
  if (content.empty()) {
    AG_ASSIGN_OR_RETURN(content, readKeyFile(file));
  }
  const ByteView key = bytesOf(strip(content));
  if (key.size() < kMinKeyBytes) {
    return invalidArgument("the job key has {} bytes, at least {} are needed: openssl rand -hex 32 makes a good one",
                           key.size(), kMinKeyBytes);
  }
  return JobKey(key.begin(), key.end());
}

}  // namespace agspeed::comm
