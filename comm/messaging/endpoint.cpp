// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/endpoint.h"

#include <algorithm>
#include <chrono>

#include "runtime/base/log.h"

namespace agspeed::comm::messaging {
namespace {

/// The limit of the number of messages and control frames that take memory without a transfer. It counts messages that
/// one of the two ranks has announced (RTS or CTS) and the other has not started, discarded messages, and waiting
/// control frames. A job without a fault stays below the limit.
constexpr size_t kMaxUnexpectedNames = size_t{1} << 20;

std::string inMilliseconds(io::Clock::duration duration) {
  return formatText("{} ms", std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

}  // namespace

void Endpoint::send(Transfer& transfer) {
  if (failure_) return context_.completions.add(transfer, *failure_);
  sends_.start(transfer);
  pump();
}

void Endpoint::receive(Transfer& transfer) {
  // If a message had arrived completely before the peer was lost, it can still be received.
  if (failure_ && !receives_.isKnown(transfer.id)) return context_.completions.add(transfer, *failure_);
  receives_.start(transfer);
  pump();
}

void Endpoint::cancel(Transfer& transfer) {
  if (!receives_.cancel(transfer)) (void)sends_.cancel(transfer);
}

void Endpoint::dropCommunicator(uint32_t communicator) {
  receives_.dropCommunicator(communicator);
  sends_.dropCommunicator(communicator);
  pump();
}

void Endpoint::pump() {
  if (!failure_) sends_.pump();
}

std::span<std::byte> Endpoint::place(const wire::FrameHeader& header) {
  liveness_.heard();
  return failure_ ? std::span<std::byte>() : receives_.place(header);
}

void Endpoint::acknowledged(uint64_t token) {
  liveness_.heard();
  if (!failure_) sends_.acknowledged(token);
}

void Endpoint::arrived(const wire::FrameHeader& header) {
  liveness_.heard();
  if (failure_) {
    // The peer may have been stopped for a long time, and may not know that this rank regards it as lost. So answer
    // with a reset.
    if (header.kind == wire::FrameKind::kPing && context_.transport.canSend(context_.peer)) {
      transport::OutgoingFrame frame;
      frame.header.kind = wire::FrameKind::kReset;
      context_.transport.send(context_.peer, frame);
    }
    return;
  }
  credits_.advertised(header.consumed);
  switch (header.kind) {
    case wire::FrameKind::kData:
    case wire::FrameKind::kEager: receives_.arrived(header); break;
    case wire::FrameKind::kRts: receives_.receivedRts(header); break;
    case wire::FrameKind::kCts: sends_.receivedCts(header.id, header.total, header.offset == wire::kCtsUpTo); break;
    case wire::FrameKind::kPing: sends_.queueControl(wire::FrameKind::kPong); break;
    case wire::FrameKind::kReset: return lose("it has given this rank up, which was silent for too long");
    case wire::FrameKind::kCredit:
    case wire::FrameKind::kPong:
    case wire::FrameKind::kVoid:
    case wire::FrameKind::kAck:
    case wire::FrameKind::kLinkState: break;
  }
  if (!receives_.violation().empty()) return lose(receives_.violation());
  if (receives_.numUnexpectedNames() + sends_.numUnexpectedNames() > kMaxUnexpectedNames) {
    return lose(formatText("the two have named more than {} messages without starting them, as no intact job does",
                           kMaxUnexpectedNames));
  }
  pump();
}

void Endpoint::lost(const Status& status) {
  failure_ = status;
  receives_.fail(status);
  sends_.fail(status);
}

void Endpoint::lose(const std::string& why) {
  lost(unavailable("{} is lost to {}: {}", context_.peerName(), context_.selfName(), why));
}

bool Endpoint::checkLiveness(io::Clock::time_point now, io::Clock::duration timeout) {
  if (failure_) return false;
  const Transfer* awaited = receives_.awaited();
  if (awaited == nullptr) awaited = sends_.awaited();
  const std::string route = awaited != nullptr ? context_.transport.describeRoute(context_.peer) : "";
  const std::string self = context_.selfName(), peer = context_.peerName();
  const io::Clock::duration silence = liveness_.silence();
  switch (liveness_.check(now, !route.empty(), timeout)) {
    case LivenessMonitor::Verdict::kFine: break;
    case LivenessMonitor::Verdict::kProbe:
      sends_.queueControl(wire::FrameKind::kPing);
      pump();
      break;
    case LivenessMonitor::Verdict::kWarn:
      AG_LOG(kWarn, self + ": " + peer + " has not answered over " + route + " for " +
                        inMilliseconds(liveness_.silence()) + ", and " + awaited->describe() +
                        " needs it: its process is stopped, its host is overloaded, or no network path leads from it "
                        "to this rank; it is regarded as lost after " +
                        inMilliseconds(timeout));
      break;
    case LivenessMonitor::Verdict::kAnswered:
      AG_LOG(kWarn, self + ": " + peer + " answers again after " + inMilliseconds(silence));
      break;
    case LivenessMonitor::Verdict::kLost:
      lose("its process has not answered over " + route + " for " + inMilliseconds(liveness_.silence()) +
           ", it is stopped or hangs");
      break;
  }
  return awaited != nullptr;
}

void Endpoint::detachCallers() {
  receives_.detachCallers();
  sends_.detachCallers();
}

}  // namespace agspeed::comm::messaging
