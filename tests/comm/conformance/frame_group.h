// SPDX-License-Identifier: Apache-2.0
// Ranks that exchange frames over transports of one kind, in one process and driven by the calling thread. The suites
// of Rail and Transport use it.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/io/poller.h"
#include "comm/rendezvous/directory.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::conformance {

/// The events that a transport reports about one peer.
struct PeerEvents {
  std::vector<uint64_t> numbers;                      ///< frame numbers in the order of arrival
  std::map<uint64_t, std::vector<std::byte>> frames;  ///< by number: the last copy of each frame
  std::vector<uint64_t> tokens;                       ///< tokens of acknowledged frames
  std::vector<transport::LossCause> losses;
  int numWritable = 0;
};

/// Receives a rank's frames. The sequence number in its name identifies a frame.
struct FrameEnd final : transport::Transport::Sink {
  FrameEnd(rendezvous::Store& store, int rank, int size);

  std::span<std::byte> place(int peer, const wire::FrameHeader& header) override;
  void arrived(int peer, const wire::FrameHeader& header) override;
  void acknowledged(int peer, uint64_t token) override { peers[peer].tokens.push_back(token); }
  void writable(int peer) override { ++peers[peer].numWritable; }
  void lost(int peer, transport::LossCause cause, const Status&) override { peers[peer].losses.push_back(cause); }

  io::Poller poller;
  rendezvous::Directory directory;
  std::map<int, PeerEvents> peers;
  std::function<bool(uint64_t number)> isWanted = [](uint64_t) { return true; };  ///< false: the frame is not placed
  std::map<std::pair<int, uint64_t>, std::vector<std::byte>> placed;
};

/// A payload whose bytes follow from its number.
std::vector<std::byte> payloadOf(uint64_t number, size_t size);
/// A frame of a large message; its token is its number.
transport::OutgoingFrame frameOf(const std::vector<std::byte>& payload, uint64_t number);

template <typename Kind>
class FrameGroup {
 public:
  /// Makes one end and publishes its address in the directory.
  using Make = std::function<std::unique_ptr<Kind>(io::Poller&, rendezvous::Directory&)>;

  FrameGroup(int size, const Make& make) {
    for (int rank = 0; rank < size; ++rank) {
      ends_.push_back(std::make_unique<FrameEnd>(store_, rank, size));
      transports_.push_back(make(ends_.back()->poller, ends_.back()->directory));
      transports_.back()->attach(*ends_.back());
    }
  }
  ~FrameGroup() { transports_.clear(); }

  Kind& operator[](int rank) { return *transports_[static_cast<size_t>(rank)]; }
  FrameEnd& end(int rank) { return *ends_[static_cast<size_t>(rank)]; }
  /// The events that `rank` has received from `peer`.
  PeerEvents& heard(int rank, int peer) { return end(rank).peers[peer]; }
  /// Ends a rank as if its process had ended.
  void destroy(int rank) { transports_[static_cast<size_t>(rank)].reset(); }

  /// Drives all ranks once.
  void step() {
    for (size_t rank = 0; rank < transports_.size(); ++rank) {
      if (transports_[rank] == nullptr) continue;
      ends_[rank]->poller.wait({});
      transports_[rank]->tick(io::Clock::now());
    }
  }
  /// Drives all ranks until `isDone`, for at most 20 s. Returns the last result of `isDone`.
  bool drive(const std::function<bool()>& isDone) {
    const io::Clock::time_point limit = io::Clock::now() + std::chrono::seconds(20);
    while (!isDone()) {
      if (io::Clock::now() > limit) return false;
      step();
    }
    return true;
  }
  /// Connects a rank with a peer. Returns true if frames can be sent.
  bool connect(int rank, int peer) {
    (*this)[rank].connect(peer);
    return drive([&] { return (*this)[rank].canSend(peer); });
  }
  /// Sends a frame as soon as there is room. Requires: the payload lives until it is acknowledged.
  bool send(int rank, int peer, const transport::OutgoingFrame& frame) {
    if (!drive([&] { return (*this)[rank].canSend(peer); })) return false;
    (*this)[rank].send(peer, frame);
    return true;
  }

 private:
  rendezvous::MemoryStore store_;
  std::vector<std::unique_ptr<FrameEnd>> ends_;
  std::vector<std::unique_ptr<Kind>> transports_;
};

}  // namespace agspeed::comm::conformance
