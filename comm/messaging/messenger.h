// SPDX-License-Identifier: Apache-2.0
// Messages between the ranks of one group: what collectives are made of.
//
// A message is a run of bytes with a name; sender and receiver name it alike and each name is used once per (sender,
// receiver). Messages arrive whole, unchanged and exactly once, whatever rails carry them and in whatever order they
// were sent and received. There is no order between messages of different names.
//
// Threading: all calls but wake() come from one thread at a time (the engine's lock). Transfer::finished is called from
// within progress(), send(), receive() or cancel() and must not call back into the messenger except to start further
// transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/io/clock.h"
#include "comm/wire/message_id.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// One send or receive in flight, owned by whoever started it. It and its bytes stay where they are until finished().
class Transfer {
 public:
  int peer = -1;
  MessageId id;
  std::span<std::byte> bytes;  ///< a send only reads them
  uint64_t numFollowing = 0;   ///< of a send: about so many more bytes will go to the peer right after it
  /// Nothing is held up by it: while only such transfers are under way with a peer, nobody asks whether it is alive,
  /// and a receive does not connect to it.
  bool isBackground = false;
  /// Of a receive: a message of fewer bytes is taken in, too. Of a send: its receive may say so, and those of one
  /// communicator and step are started in the order of their sequences.
  bool mayBeShorter = false;
  uint64_t numReceived = 0;  ///< of a receive that has finished: bytes of its message

  /// Called exactly once. Ok: a receive has its bytes; a send's bytes may be changed or freed. Failure: the message may
  /// or may not have arrived; the sentence names peer, operation and progress.
  virtual void finished(const Status& status) = 0;
  /// What it belongs to, for the log: "all_reduce(1024 x f32, sum), operation 7".
  virtual std::string describe() const { return "a message"; }

 protected:
  ~Transfer() = default;
};

/// See the file's text. Implementations: LoopbackMessenger (tests, one process), the one over rails.
class Messenger {
 public:
  virtual ~Messenger() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts to send. Requires: 0 <= peer < size(), peer != rank(). Never blocks; failures come through finished().
  virtual void send(Transfer& transfer) = 0;
  /// Starts to receive. A message of another length than `bytes` fails the receive with invalid argument, but a shorter
  /// one does not where the transfer says so.
  virtual void receive(Transfer& transfer) = 0;
  /// Ends an unfinished transfer: finished(reason) runs before this returns; afterwards neither it nor its bytes are
  /// touched. A message that arrives for it later is discarded.
  virtual void cancel(Transfer& transfer, const Status& reason) = 0;

  /// What has come for that communicator and is unexpected, or still comes, is thrown away; its senders are done with
  /// it. Requires: no transfer of it is under way or started here from now on.
  virtual void dropCommunicator(uint32_t communicator) = 0;

  /// As MPI_Iprobe: whether `peer` has begun to send, or sent the RTS of, an unexpected message of that name.
  virtual bool probe(int, const MessageId&) const { return false; }

  /// Moves bytes until a transfer has finished, wake() was called or `until` is reached. A time in the past: moves what
  /// can be moved without waiting. Returns true when a transfer has finished.
  virtual bool progress(Clock::time_point until) = 0;
  /// Whether bytes of finished sends, or of what keeps transfers going, have not left this process: progress() is then
  /// still needed though no transfer may be under way.
  virtual bool hasUnsent() const { return false; }
  /// What this rank sends over the network to all others together while it has something for several; 0: not known.
  virtual double bytesPerSecond() const { return 0; }
  /// The least that a round trip to the peer over the network has taken; 0: not known.
  virtual double roundTripSeconds(int /*peer*/) const { return 0; }
  /// Equal for ranks of one host, which are quicker to reach; 0: not known.
  virtual uint32_t host() const { return 0; }
  /// From any thread: a progress() that waits returns.
  virtual void wake() = 0;
};

}  // namespace agspeed::comm
