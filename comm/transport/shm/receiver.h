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
  /// `process` is the peer's process, and `bell` wakes the peer. `alive` becomes readable when the process has ended.
  Receiver(SharedMemory memory, int peer, const Process& process, io::FileDescriptor alive,
           transport::Transport::Sink& sink, Doorbell& bell, ShmCounters& counters);

  enum class Outcome { kNothing, kSomething, kBroken };
  /// Reads records from the ring, up to a limit, so that one peer does not delay the others. kSomething: at least one
  /// record was read. kBroken: the ring has a record that an intact peer never writes.
  Outcome read();
  bool isEmpty() const { return ring_.isEmpty(); }
  /// Stops writing to `bytes`: the rest of a payload that is arriving there is discarded.
  void cancelReceive(ByteView bytes);
  /// Returns the descriptor that becomes readable when the peer's process has ended.
  const io::FileDescriptor& alive() const { return alive_; }

 private:
  /// A frame whose payload arrives in parts.
  struct Partial {
    wire::FrameHeader header;
    std::span<std::byte> target;
    size_t numReceived = 0;
  };

  /// Handles one record. Returns false if an intact peer never writes such a record here.
  bool take(const Record& record);
  /// Copies the record's payload bytes to the target of partial_. Returns false if they exceed the frame.
  bool takePart(const Record& record);
  /// Reads the payload of an offer from the peer's memory, or refuses the offer.
  void takeOffer(const Record& record);
  /// Reads from `address` on in the memory of the peer's process (process_vm_readv). Returns false if this fails.
  bool readFromPeer(uint64_t address, std::span<std::byte> target);
  /// Logs why the peer's memory cannot be read, at the first call only. Always returns false.
  bool cannotRead(const std::string& why);
  /// Releases the record's room in the ring, and wakes the writer if it waits for the room.
  void pass(const Record& record);

  RingReader ring_;
  const int peer_;
  const Process process_;
  const io::FileDescriptor alive_;
  transport::Transport::Sink& sink_;
  Doorbell& bell_;
  ShmCounters& counters_;
  std::optional<Partial> partial_;
  bool hasRefused_ = false;  ///< an offer was refused, and the reason logged
};

}  // namespace agspeed::comm::shm
