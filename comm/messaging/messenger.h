// SPDX-License-Identifier: Apache-2.0
// Messenger: messages between ranks, from which collectives are built.
//
// A message is a run of bytes with a name. Sender and receiver use the same name, and each name is used once per
// (sender, receiver). Messages arrive complete, unchanged and exactly once, whatever rails carry them and in whatever
// order they were sent and received. There is no order between messages of different names.
//
// Threading: all calls except wake() come from one thread at a time (the engine's lock). Transfer::finished is called
// from within progress(), send(), receive() or cancel() and must not call back into the messenger except to start
// further transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/io/clock.h"
#include "comm/wire/message_id.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// One send or receive in flight. The caller owns it and keeps it and its bytes in place until finished().
class Transfer {
 public:
  int peer = -1;
  MessageId id;
  std::span<std::byte> bytes;  ///< a send only reads them
  uint64_t numFollowing = 0;   ///< for a send: about this many more bytes will go to the peer right after it
  /// The transfer is not urgent. While only such transfers are in flight with a peer, the peer's liveness is not
  /// checked. A background receive does not connect to the peer.
  bool isBackground = false;
  /// For a receive: it accepts a shorter message, too. For a send: its receive may have this flag; such sends of one
  /// communicator and step start in the order of their sequences.
  bool mayBeShorter = false;
  uint64_t numReceived = 0;  ///< for a finished receive: bytes of its message

  /// Called exactly once. Ok: a receive has its bytes; a send's bytes may be changed or freed. Failure: the message may
  /// or may not have arrived; the status message names peer, operation and progress.
  virtual void finished(const Status& status) = 0;
  /// The operation that the transfer belongs to, for the log: "all_reduce(1024 x f32, sum), operation 7".
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

  /// Starts to send. Requires: 0 <= peer < size(), peer != rank(). Never blocks; failures come through finished().
  virtual void send(Transfer& transfer) = 0;
  /// Starts to receive. If the message's length differs from that of `bytes`, the receive fails as invalid argument. A
  /// shorter message is accepted if the transfer allows it (mayBeShorter).
  virtual void receive(Transfer& transfer) = 0;
  /// Ends an unfinished transfer: finished(reason) runs before this returns; afterwards neither it nor its bytes are
  /// touched. A message that arrives for it later is discarded.
  virtual void cancel(Transfer& transfer, const Status& reason) = 0;

  /// Discards unexpected messages of the communicator, now and later; their sends finish normally. Requires: no
  /// transfer of the communicator is in flight here or started here from now on.
  virtual void dropCommunicator(uint32_t communicator) = 0;

  /// Like MPI_Iprobe: whether an unexpected message of that name, or its RTS, has begun to arrive from `peer`.
  virtual bool probe(int, const MessageId&) const { return false; }

  /// Moves bytes until a transfer has finished, wake() was called or `until` has passed. If `until` is in the past, it
  /// moves bytes without waiting. Returns: whether a transfer has finished.
  virtual bool progress(Clock::time_point until) = 0;
  /// Whether bytes of finished sends, or control frames that other transfers need, have not left this process. If so,
  /// progress() is still needed, even if no transfer is in flight.
  virtual bool hasUnsent() const { return false; }
  /// Recent peak rate at which this rank sends over the network to all others together, measured while it has bytes for
  /// several of them; 0: not known.
  virtual double bytesPerSecond() const { return 0; }
  /// The shortest round trip to the peer over the network so far; 0: not known.
  virtual double roundTripSeconds(int /*peer*/) const { return 0; }
  /// Equal for ranks of one host, which reach each other faster; 0: not known.
  virtual uint32_t host() const { return 0; }
  /// Makes a waiting progress() return. From any thread.
  virtual void wake() = 0;
};

}  // namespace agspeed::comm
