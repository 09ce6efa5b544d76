// SPDX-License-Identifier: Apache-2.0
// Sockets between processes of one host: messages of fixed size that carry descriptors, and the kernel's information
// about the process at the other end. Names are abstract: they exist in a network namespace, not in a file system, and
// end with their socket. So a process that answers at a name is on this host and in this network namespace. All calls
// are non-blocking.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/security/keys.h"
#include "comm/transport/shm/shared_memory.h"

namespace agspeed::comm::shm {

/// The name at which the owner of this public key listens.
std::string localName(const KeyPair::PublicKey& key);

StatusOr<FileDescriptor> listenAt(const std::string& name);
/// Unsupported: no process listens at the name here. Resource exhausted: the listener's queue is full, try again.
StatusOr<FileDescriptor> connectTo(const std::string& name);
/// The next waiting connection; not open if there is none, and errno says why.
FileDescriptor acceptAt(const FileDescriptor& listener);

/// The process that made the other end; pid 0 if this process cannot see it.
struct Process {
  pid_t pid = 0;
  uid_t user = 0;
};
/// nullopt unless the other end belongs to this process's user.
std::optional<Process> trustedProcessAt(const FileDescriptor& socket);
/// A descriptor that becomes readable when the process has ended; not open if the kernel cannot watch it.
FileDescriptor watchProcess(const Process& process);

/// Returns: whether the whole message was sent.
bool sendMessage(const FileDescriptor& socket, ByteView bytes, std::span<const int> descriptors);

struct Received {
  enum class Outcome { kMessage, kNothingYet, kClosed };
  Outcome outcome = Outcome::kClosed;
  std::vector<FileDescriptor> descriptors;
};
/// A message of another size counts as closed.
Received receiveMessage(const FileDescriptor& socket, std::span<std::byte> bytes);

}  // namespace agspeed::comm::shm
