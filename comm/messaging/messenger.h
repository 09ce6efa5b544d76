// SPDX-License-Identifier: Apache-2.0
// Messenger: messages between ranks, from which collectives are built.
//
// A message is a run of bytes with a name. Sender and receiver use the same name, and each name is used once per
// (sender, receiver). Messages arrive complete, unchanged and exactly once, whichever rails carry them, and whether the
// send or the receive starts first. Messages of different names have no order.
//
// Threading: all calls except wake() come from one thread at a time, the driver of the engine. Transfer::finished is
// called from within progress(), send(), receive() or cancel() and must not call back into the messenger except to
// start further transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/io/clock.h"
#include "comm/wire/message_id.h"
#include "runtime/base/status.h"

namespace agspeed::comm::messaging {

/// One send or receive in flight. The caller owns it and keeps it and its bytes in place until finished().
class Transfer {
 public:
  int peer = -1;
  wire::MessageId id;
  std::span<std::byte> bytes;  ///< a send only reads these bytes
  /// For a send: about how many bytes of further sends to the same peer will follow soon. If many bytes follow, the
  /// messenger sends longer frames.
  uint64_t numFollowing = 0;
  /// Marks a transfer that is not urgent. While only background transfers are in flight with a peer, the peer's
  /// liveness is not checked. A background receive does not connect to the peer.
  bool isBackground = false;
  /// Allows a message that is shorter than its receive, if the sender does not know the length of the receive. On a
  /// receive: shorter messages are accepted. On a send: the matching receive may have this flag. Sends with this flag
  /// of one communicator and step must start in the order of their sequences, because the messenger remembers only the
  /// last sequence.
  bool mayBeShorter = false;
  /// The length of the receive, if the message may be shorter than its receive and both ends know this length. On a
  /// send, `bytes` is the message, and may be shorter than `room`. On a receive, `room` is the length of `bytes`. 0:
  /// the message has the same length as its receive.
  uint64_t room = 0;
  uint64_t numReceived = 0;  ///< for a finished receive: number of bytes of its message

  /// Notifies the owner that the transfer has completed. Called exactly once. If the status is ok, a receive has its
  /// bytes, and a send's bytes may be changed or freed. If the status is an error, the message may or may not have
  /// arrived. The error names the peer, the operation and its progress.
  virtual void finished(const Status& status) = 0;
  /// Whether a receive accepts a message that is shorter than `bytes`.
  bool acceptsShorter() const { return mayBeShorter || room > 0; }
  /// Describes the operation that the transfer belongs to, for the log: "all_reduce(1024 x f32, sum), operation 7".
  virtual std::string describe() const { return "a message"; }

 protected:
  ~Transfer() = default;
};

/// See the comment at the top. Implementations: LoopbackMessenger (tests, one process), TransportMessenger (rails and
/// shared memory), NetworkMessenger (wraps it).
class Messenger {
 public:
  virtual ~Messenger() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts a send. Requires: 0 <= peer < size(), peer != rank(). Never blocks; failures come through finished().
  virtual void send(Transfer& transfer) = 0;
  /// Starts a receive. If the message and `bytes` have different lengths, the receive fails as invalid argument. A
  /// shorter message is accepted if the transfer allows it (mayBeShorter, room).
  virtual void receive(Transfer& transfer) = 0;
  /// Cancels an unfinished transfer: calls finished(reason) before it returns. Afterwards neither the transfer nor its
  /// bytes are accessed. If the message of a cancelled receive arrives later, it is discarded.
  virtual void cancel(Transfer& transfer, const Status& reason) = 0;

  /// Discards unexpected messages of the communicator, now and later. The sends of these messages complete normally.
  /// Requires: no transfer of the communicator is in flight here or started here from now on.
  virtual void dropCommunicator(uint32_t communicator) = 0;

  /// Whether an unexpected message with the name `id`, or its RTS, has begun to arrive from `peer`. Like MPI_Iprobe.
  virtual bool probe(int peer, const wire::MessageId& id) const = 0;

  /// Returns how many bytes of an unfinished transfer have arrived, or were handed to the network.
  virtual uint64_t numBytesMoved(const Transfer& transfer) const = 0;

  /// Moves bytes until a transfer has finished, wake() was called or `until` has passed. If `until` is in the past, it
  /// moves bytes without waiting. Returns true if a transfer has completed.
  virtual bool progress(io::Clock::time_point until) = 0;
  /// Whether this process still holds bytes of finished sends, or control frames that the peers need. If so, progress()
  /// must be called even if no transfer is in flight.
  virtual bool hasUnsent() const = 0;
  /// Returns the recent peak rate at which this rank sends over the network to all other ranks together; 0: not known.
  /// The rate is measured while the rank has bytes in flight to several other ranks.
  virtual double bytesPerSecond() const = 0;
  /// Returns whether messages to `peer` go over a network, and not through shared memory.
  virtual bool isRemote(int peer) const = 0;
  /// Returns the shortest round trip to the peer over the network so far; 0: not known.
  virtual double roundTripSeconds(int peer) const = 0;
  /// Returns a number that is equal for all ranks of this rank's host; 0: not known. Ranks of one host exchange
  /// messages faster, through shared memory.
  virtual uint32_t host() const = 0;
  /// Makes a waiting progress() return. From any thread.
  virtual void wake() = 0;
};

}  // namespace agspeed::comm::messaging
