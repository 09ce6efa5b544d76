// SPDX-License-Identifier: Apache-2.0
// PendingConnections: the connections of a listener whose peers are not authenticated yet. Any process can connect to a
// listener, so this class bounds the cost of such connections. Their number, their bytes and their time are limited.
//
// Only one thread at a time may use it. It owns the connections.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "comm/io/active_timer.h"

namespace agspeed::comm::rendezvous {

struct PendingLimits {
  size_t numConnections;  ///< limit of connections; a further one replaces the oldest one
  size_t numBytes;        ///< the most bytes that the listener keeps of one connection
  /// The limit of the time until the peer has proven its identity. ActiveTimer measures this time, so long gaps in
  /// which this process did not poll count only in part.
  io::Clock::duration deadline;
};

template <typename Connection>
class PendingConnections {
 public:
  /// The longest time between two calls of takeLate() while connections are pending.
  static constexpr std::chrono::milliseconds kCheckInterval{40};

  explicit PendingConnections(PendingLimits limits) : limits_(limits) {}

  const PendingLimits& limits() const { return limits_; }
  size_t size() const { return entries_.size(); }
  bool isEmpty() const { return entries_.empty(); }

  /// Adds a connection. Returns: the oldest connection, which was removed to make room; nullptr if there was room.
  std::unique_ptr<Connection> add(std::unique_ptr<Connection> connection) {
    std::unique_ptr<Connection> oldest;
    if (entries_.size() == limits_.numConnections) oldest = remove(entries_.begin());
    entries_.push_back({std::move(connection)});
    return oldest;
  }
  /// Removes and returns a connection.
  std::unique_ptr<Connection> take(const Connection& connection) {
    return remove(std::find_if(entries_.begin(), entries_.end(),
                               [&](const Entry& each) { return each.connection.get() == &connection; }));
  }
  /// Removes and returns the connections whose deadline has passed.
  std::vector<std::unique_ptr<Connection>> takeLate(io::Clock::time_point now) {
    const io::Clock::duration elapsed = active_.look(now);
    for (Entry& each : entries_) each.waited += elapsed;
    std::vector<std::unique_ptr<Connection>> late;
    while (!entries_.empty() && entries_.front().waited > limits_.deadline) late.push_back(remove(entries_.begin()));
    return late;
  }
  /// Calls `visit` for each connection, the oldest first. `visit` may call take() for the connection that it gets.
  template <typename Visit>
  void forEach(const Visit& visit) {
    for (auto at = entries_.begin(); at != entries_.end();) visit(*(at++)->connection);
  }

 private:
  struct Entry {
    std::unique_ptr<Connection> connection;
    io::Clock::duration waited{};  ///< time since add(), as ActiveTimer measures it
  };
  using Entries = std::list<Entry>;

  std::unique_ptr<Connection> remove(typename Entries::iterator entry) {
    std::unique_ptr<Connection> connection = std::move(entry->connection);
    entries_.erase(entry);
    return connection;
  }

  const PendingLimits limits_;
  Entries entries_;  ///< connections, the oldest first
  io::ActiveTimer active_{io::Clock::now()};
};

}  // namespace agspeed::comm::rendezvous
