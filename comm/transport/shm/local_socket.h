// SPDX-License-Identifier: Apache-2.0
// Sockets between processes of one host: messages of fixed size that carry descriptors, and the kernel's word on who is
// at the other end. Names are abstract: they live in a network namespace, not in a file system, and end with their
// socket. So a name that answers belongs to this host and this network namespace. All calls are non-blocking.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/security/keys.h"
#include "comm/transport/shm/shared_memory.h"

namespace agspeed::comm::shm {

/// The name that the owner of this public key listens at.
std::string localName(const KeyPair::PublicKey& key);

StatusOr<FileDescriptor> listenAt(const std::string& name);
/// Unsupported: nobody listens at the name here. Resource exhausted: too many wait already, try again.
StatusOr<FileDescriptor> connectTo(const std::string& name);
/// Not open: nobody waits.
FileDescriptor acceptAt(const FileDescriptor& listener);

/// Who made the other end; pid 0 where this process cannot see it.
struct Process {
  pid_t pid = 0;
  uid_t user = 0;
};
/// nullopt unless the other end belongs to this process's user.
std::optional<Process> trustedProcessAt(const FileDescriptor& socket);
/// Becomes readable when the process has ended; not open where the kernel cannot tell.
FileDescriptor watchProcess(const Process& process);

/// Whether the message left whole.
bool sendMessage(const FileDescriptor& socket, ByteView bytes, std::span<const int> descriptors);

struct Received {
  enum class Outcome { kMessage, kNothingYet, kClosed };
  Outcome outcome = Outcome::kClosed;
  std::vector<FileDescriptor> descriptors;
};
/// A message of another size counts as closed.
Received receiveMessage(const FileDescriptor& socket, std::span<std::byte> bytes);

}  // namespace agspeed::comm::shm
