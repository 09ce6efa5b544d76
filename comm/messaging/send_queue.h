// SPDX-License-Identifier: Apache-2.0
// SendQueue: all that goes to one peer: messages, and control frames about either direction.
//
//   eager copy        finished at once: the transport copies the message within send(), or a copy waits here until it
//   is
//                     acknowledged
//   eager zero-copy   sent at once from the caller's memory, finished when acknowledged
//   rendezvous        as are all beyond the credit: an RTS is sent, unless the peer's CTS is there; sent from the
//                     caller's memory when that comes, finished when acknowledged
//
// Control frames go before eager copies, those before what goes from callers' memory. Not thread-safe; the context and
// the credits outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "comm/messaging/credits.h"
#include "comm/messaging/endpoint_context.h"
#include "comm/messaging/message_map.h"

namespace agspeed::comm {

class SendQueue {
 public:
  SendQueue(const EndpointContext& context, Credits& credits) : context_(context), credits_(credits) {}

  /// What it cannot send at once goes with pump().
  void start(Transfer& transfer);
  /// Whether the transfer was one of these. Its bytes are not read any more.
  bool cancel(Transfer& transfer);
  /// Queues a control frame.
  void queueControl(FrameKind kind, const MessageId& id = {}, uint64_t total = 0, uint64_t offset = 0) {
    control_.push_back({kind, id, total, offset});
  }
  /// Hands the transport what it takes.
  void pump();

  /// The peer has received a frame with this token.
  void acknowledged(uint64_t token);
  /// The peer waits for a message of this name and length, or where `isUpTo` for one of at most so many bytes.
  void receivedCts(const MessageId& id, uint64_t total, bool isUpTo);

  /// As of Messenger.
  void dropCommunicator(uint32_t communicator);

  /// Whether what callers take for sent, or what keeps transfers going, waits to be handed to the transport.
  bool isWaiting() const { return !control_.empty() || !eagerCopies_.empty(); }
  bool hasEagerCopies() const { return !eagerCopies_.empty(); }
  bool hasZeroCopies() const { return !zeroCopies_.empty(); }
  /// Names of messages that the peer waits for and nobody has started, and control frames that wait.
  size_t numUnexpectedNames() const { return ctsReceived_.size() + control_.size(); }
  /// Whether so much is to be sent that frames are as long as they may be.
  bool hasMuch() const;
  /// One of the unfinished transfers that are in a hurry; null when there is none.
  const Transfer* awaited() const;

  /// The peer is lost: everything ends.
  void fail(const Status& status);
  /// Callers' bytes are not read any more; nobody is notified. Copies still go.
  void detachCallers();

 private:
  struct Control {
    FrameKind kind;
    MessageId id;
    uint64_t total;
    uint64_t offset;
  };
  /// What the peer waits for.
  struct Cts {
    uint64_t total = 0;
    bool isUpTo = false;

    bool fits(uint64_t sent) const { return isUpTo ? sent <= total : sent == total; }
  };
  /// A message that has not ended here.
  struct Outgoing {
    explicit Outgoing(std::pmr::memory_resource* pool) : copy(pool) {}

    std::pmr::list<Outgoing>::iterator self;
    Transfer* transfer = nullptr;  ///< null: finished
    MessageId id;
    FrameKind kind = FrameKind::kData;
    std::pmr::vector<std::byte> copy;
    ByteView bytes;
    uint64_t numSent = 0;
    uint32_t numUnacknowledged = 0;
    bool isWhollySent = false;
  };

  using Outgoings = std::pmr::deque<Outgoing*>;

  /// Where sequences of the message's communicator and step are counted.
  static MessageId seriesOf(const MessageId& id) { return {id.communicator, id.step, 0}; }
  void startEagerCopy(const Transfer& transfer);
  Outgoing& add(const MessageId& id, ByteView bytes);
  static uint64_t tokenOf(const Outgoing& message) { return reinterpret_cast<uintptr_t>(&message); }
  /// The message's bytes are not read any more.
  void cancelSend(const Outgoing& message);
  void sendControl();
  void sendFrame(Outgoings& queue);
  bool isEmpty() const { return !isWaiting() && zeroCopies_.empty(); }
  OutgoingFrame frameOf(FrameKind kind, const MessageId& id, uint64_t total);
  /// Bytes of the messages and of what follows them; not counted further than to `enough`.
  static uint64_t numWaiting(const Outgoings& queue, uint64_t enough);
  /// Of the first message's next frame.
  uint64_t nextFrameBytes(const Outgoings& queue) const;

  const EndpointContext& context_;
  Credits& credits_;
  MessagePool pool_;
  std::pmr::list<Outgoing> messages_{&pool_};
  std::pmr::deque<Control> control_{&pool_};
  Outgoings eagerCopies_{&pool_};          ///< to be sent, oldest first
  Outgoings zeroCopies_{&pool_};           ///< what goes from callers' memory: eager and cleared to send
  MessageMap<Outgoing*> rtsSent_{&pool_};  ///< waiting for their CTS
  MessageMap<Cts> ctsReceived_{&pool_};    ///< those that came before the send was started
  MessageMap<uint64_t> started_{&pool_};   ///< sequences below have been, by communicator and step, of sends in order
};

}  // namespace agspeed::comm
