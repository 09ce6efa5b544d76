// SPDX-License-Identifier: Apache-2.0
// Sockets between processes of one host: messages of fixed size that carry descriptors, and the kernel's information
// about the process at the other end. Names are abstract: they belong to a network namespace, not to a file system, and
// a name is free again when its socket is closed. So a process that answers at a name is on this host and in this
// network namespace. All calls are non-blocking.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/security/keys.h"
#include "comm/transport/shm/shared_memory.h"

namespace agspeed::comm::shm {

/// Returns the name at which the owner of this public key listens.
std::string localName(const security::KeyPair::PublicKey& key);

/// Makes a socket that listens at the name.
StatusOr<io::FileDescriptor> listenAt(const std::string& name);
/// Connects to the process that listens at the name. Fails as unsupported if no process of this host and network
/// namespace listens there. Fails as resource exhausted if the listener's queue is full; the caller may then try again.
StatusOr<io::FileDescriptor> connectTo(const std::string& name);
/// Accepts the next waiting connection. If this fails, the returned descriptor is not open, and errno has the reason.
io::FileDescriptor acceptAt(const io::FileDescriptor& listener);

/// The process that made the other end of a socket. Its pid is 0 if this process cannot see it, for example in another
/// pid namespace.
struct Process {
  pid_t pid = 0;
  uid_t user = 0;
};
/// Returns the process at the other end, or nullopt if the kernel does not name it.
std::optional<Process> processAt(const io::FileDescriptor& socket);
/// Returns the process at the other end, or nullopt if it is not known to belong to this process's user.
std::optional<Process> trustedProcessAt(const io::FileDescriptor& socket);
/// Opens a descriptor that becomes readable when the process has ended. The descriptor is not open if the kernel cannot
/// watch the process.
io::FileDescriptor watchProcess(const Process& process);

/// Sends the bytes and the descriptors as one message. Returns false if the whole message was not sent.
bool sendMessage(const io::FileDescriptor& socket, ByteView bytes, std::span<const int> descriptors);

struct Received {
  enum class Outcome { kMessage, kNothingYet, kClosed };
  Outcome outcome = Outcome::kClosed;
  std::vector<io::FileDescriptor> descriptors;
};
/// Receives one message of exactly the size of `bytes`, with its descriptors. The outcome is kClosed if the message has
/// another size.
Received receiveMessage(const io::FileDescriptor& socket, std::span<std::byte> bytes);

}  // namespace agspeed::comm::shm
