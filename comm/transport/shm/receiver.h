// SPDX-License-Identifier: Apache-2.0
// Receiver: frames from one peer out of its ring, straight to where the sink wants them. One thread at a time. Calls
// Sink::place and Sink::arrived, from read() only; these may call cancelReceive().
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
  /// `process` is the peer's, `alive` what tells of its end; `bell` its bell.
  Receiver(SharedMemory memory, int peer, const Process& process, FileDescriptor alive, Transport::Sink& sink,
           Doorbell& bell, ShmCounters& counters);

  enum class Outcome { kNothing, kSomething, kBroken };
  /// Takes in what is there, up to a bound so that others get their turn. kBroken: the ring holds what no peer writes.
  Outcome read();
  bool isEmpty() const { return ring_.isEmpty(); }
  void cancelReceive(ByteView bytes);
  const FileDescriptor& alive() const { return alive_; }

 private:
  /// A frame whose payload comes in parts.
  struct Partial {
    FrameHeader header;
    std::span<std::byte> target;
    size_t numReceived = 0;
  };

  /// false: broken.
  bool take(const Record& record);
  bool takePart(const Record& record);
  void takeOffer(const Record& record);
  bool readFromPeer(uint64_t address, std::span<std::byte> target);
  /// Says so once. Returns: false.
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
