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

namespace agspeed::comm::security {
namespace {

constexpr size_t kMinKeyBytes = 16;
constexpr size_t kMaxKeyBytes = 4096;
constexpr size_t kMaxSpaceBytes = 64;  ///< limit of the white space around the key in a file

/// `agspeed run` passes a key on in memory with this name, whose descriptor the ranks inherit by number.
constexpr std::string_view kInherited = "/proc/self/fd/";
constexpr std::string_view kMemoryName = "/memfd:agspeed-job-key";

Status checkInherited(const std::string& file) {
  std::array<char, 64> target = {};
  const ssize_t size = readlink(file.c_str(), target.data(), target.size());
  if (size > 0 && std::string_view(target.data(), static_cast<size_t>(size)).starts_with(kMemoryName)) return {};
  return invalidArgument(
      "`agspeed run` hands the job key on as descriptor {}, which is {} in this process: a program that it started has "
      "closed the descriptor before it started this process, as Python's subprocess does without close_fds=False. "
      "Start the ranks without that program, or set AGSPEED_JOB_KEY_FILE to a private file on all ranks",
      file.substr(kInherited.size()), size > 0 ? "another file" : "not open");
}

Status checkPrivate(const std::string& file, int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0)
    return invalidArgument("cannot read the owner and the permissions of the job key in " + file);
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return invalidArgument("the job key in {} belongs to user {}, not to you: make a file of your own", file,
                           info.st_uid);
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  return invalidArgument("the job key in " + file + " can be read by others: chmod 600 " + file);
}

StatusOr<std::string> readKeyFile(const std::string& file) {
  if (file.starts_with(kInherited)) AG_RETURN_IF_ERROR(checkInherited(file));
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return invalidArgument("cannot read the job key in " + file + ": " + std::strerror(errno));
  std::string content(kMaxKeyBytes + kMaxSpaceBytes, '\0');
  size_t size = 0;
  ssize_t count = 1;
  while (count > 0 && size < content.size()) {
    count = read(fd, content.data() + size, content.size() - size);
    size += count > 0 ? static_cast<size_t>(count) : 0;
  }
  const Status isPrivate = checkPrivate(file, fd);
  close(fd);
  AG_RETURN_IF_ERROR(isPrivate);
  content.resize(size);
  return content;
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
  if (key.size() > kMaxKeyBytes) {
    return invalidArgument("the job key has more than {} bytes: openssl rand -hex 32 makes a good one", kMaxKeyBytes);
  }
  return JobKey(key.begin(), key.end());
}

}  // namespace agspeed::comm::security
