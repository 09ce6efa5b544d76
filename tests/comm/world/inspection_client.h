// SPDX-License-Identifier: Apache-2.0
// Reads inspection points of this process, as `agspeed comm inspect` does.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "comm/io/file_descriptor.h"
#include "comm/transport/shm/local_socket.h"

namespace agspeed::comm::world {

/// Connects to the point of a rank in a world of `size` ranks of this process, once there is one.
inline io::FileDescriptor connectToPoint(int rank, int size) {
  const std::string end = "-" + std::to_string(rank) + "-" + std::to_string(size) + "-";
  while (true) {
    std::ifstream table("/proc/net/unix");
    for (std::string line; std::getline(table, line);) {
      const size_t at = line.find("@agspeed-inspect-");
      if (at == std::string::npos || line.find(end, at) == std::string::npos) continue;
      StatusOr<io::FileDescriptor> connection = shm::connectTo(line.substr(at + 1));
      if (!connection.hasValue()) continue;  // the point has just closed
      const auto process = shm::processAt(*connection);
      if (process.has_value() && process->pid == getpid()) return std::move(*connection);
    }
    std::this_thread::yield();
  }
}

/// Reads a document to its end.
inline std::string readDocument(const io::FileDescriptor& connection) {
  std::string document;
  std::vector<char> packet(65536);
  while (true) {
    // Wait before recv(). A recv() that does not block may report the end (0) although a packet has just arrived before
    // the end.
    pollfd watched = {connection.get(), POLLIN, 0};
    (void)poll(&watched, 1, -1);
    const ssize_t size = recv(connection.get(), packet.data(), packet.size(), 0);
    if (size > 0) document.append(packet.data(), static_cast<size_t>(size));
    if (size == 0 || (size < 0 && errno != EAGAIN)) return document;
  }
}

}  // namespace agspeed::comm::world
