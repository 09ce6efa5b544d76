// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/local_socket.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "runtime/base/system_error.h"

namespace agspeed::comm::shm {
namespace {

constexpr int kBacklog = 4096;  ///< all ranks of a large job may connect at once; the kernel may allow less
constexpr size_t kMaxDescriptors = 4;
constexpr int kKind = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;

struct LocalAddress {
  explicit LocalAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    // A leading zero makes the name abstract.
    std::copy_n(name.begin(), std::min(name.size(), sizeof(address.sun_path) - 1), address.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address = {};
  socklen_t size = 0;
};

std::string lastError() { return describeError(errno); }

}  // namespace

std::string localName(const security::KeyPair::PublicKey& key) {
  std::array<std::byte, 16> digest;
  security::deriveKey(key, {}, security::bytesOf("agspeed local name"), digest);
  return "agspeed-" + security::digitsOf(digest);
}

StatusOr<io::FileDescriptor> listenAt(const std::string& name) {
  io::FileDescriptor socket(::socket(AF_UNIX, kKind, 0));
  const LocalAddress address(name);
  if (!socket.isOpen() || bind(socket.get(), address.get(), address.size) != 0 || listen(socket.get(), kBacklog) != 0) {
    return unavailable("cannot listen at a local socket: " + lastError());
  }
  return socket;
}

StatusOr<io::FileDescriptor> connectTo(const std::string& name) {
  io::FileDescriptor socket(::socket(AF_UNIX, kKind, 0));
  const LocalAddress address(name);
  if (!socket.isOpen()) return unavailable("cannot make a local socket: " + lastError());
  if (connect(socket.get(), address.get(), address.size) == 0) return socket;
  if (errno == ECONNREFUSED) return unsupported("it does not listen in this network namespace of this host");
  if (errno == EAGAIN) return resourceExhausted("the queue of its local socket is full");
  return unavailable("cannot connect to its local socket: " + lastError());
}

io::FileDescriptor acceptAt(const io::FileDescriptor& listener) {
  return io::FileDescriptor(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

std::optional<Process> processAt(const io::FileDescriptor& socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  return Process{credentials.pid, credentials.uid};
}

std::optional<Process> trustedProcessAt(const io::FileDescriptor& socket) {
  const std::optional<Process> process = processAt(socket);
  return process.has_value() && process->user == geteuid() ? process : std::nullopt;
}

io::FileDescriptor watchProcess(const Process& process) {
  if (process.pid <= 0) return io::FileDescriptor();
  return io::FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
}

bool sendMessage(const io::FileDescriptor& socket, ByteView bytes, std::span<const int> descriptors) {
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  return sendmsg(socket.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

Received receiveMessage(const io::FileDescriptor& socket, std::span<std::byte> bytes) {
  iovec part = {bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  Received received;
  if (size < 0) {
    const bool mayCome = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    received.outcome = mayCome ? Received::Outcome::kNothingYet : Received::Outcome::kClosed;
    return received;
  }
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (item->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      received.descriptors.emplace_back(descriptor);
    }
  }
  const bool isWhole = static_cast<size_t>(size) == bytes.size() && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (isWhole) received.outcome = Received::Outcome::kMessage;
  return received;
}

}  // namespace agspeed::comm::shm
