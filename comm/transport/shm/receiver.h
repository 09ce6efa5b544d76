// SPDX-License-Identifier: Apache-2.0
// Receiver: reads the frames of one peer from its ring, straight into the sink's memory. One thread at a time. It calls
// Sink::place and Sink::arrived from read() only; these may call cancelReceive().
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/transport/shm/counters.h"
#include "comm/transport/shm/doorbell.h"
#include "comm/transport/shm/local_socket.h"
#include "comm/transport/shm/ring.h"
#include "comm/transport/transport.h"

namespace agspeed::comm::shm {

class Receiver {
 public:
  /// `process` and `bell` are the peer's. `alive` becomes readable when the process has ended.
  Receiver(SharedMemory memory, int peer, const Process& process, FileDescriptor alive, Transport::Sink& sink,
           Doorbell& bell, ShmCounters& counters);

  enum class Outcome { kNothing, kSomething, kBroken };
  /// Reads the records in the ring, up to a limit, so that other peers get their turn. kBroken: the ring holds a record
  /// that an intact peer never writes.
  Outcome read();
  bool isEmpty() const { return ring_.isEmpty(); }
  void cancelReceive(ByteView bytes);
  const FileDescriptor& alive() const { return alive_; }

 private:
  /// A frame whose payload arrives in parts.
  struct Partial {
    FrameHeader header;
    std::span<std::byte> target;
    size_t numReceived = 0;
  };

  /// Returns: false if the ring is broken.
  bool take(const Record& record);
  bool takePart(const Record& record);
  void takeOffer(const Record& record);
  bool readFromPeer(uint64_t address, std::span<std::byte> target);
  /// Logs the reason once. Returns: false.
  bool cannotRead(const std::string& why);
  void pass(const Record& record);

  RingReader ring_;
  const int peer_;
  const Process process_;
  const FileDescriptor alive_;
  Transport::Sink& sink_;
  Doorbell& bell_;
  ShmCounters& counters_;
  std::optional<Partial> partial_;
  bool hasRefused_ = false;
};

}  // namespace agspeed::comm::shm
