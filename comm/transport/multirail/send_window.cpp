// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/send_window.h"

#include <algorithm>
#include <utility>

#include "comm/transport/multirail/receive_window.h"

namespace agspeed::comm::multirail {
namespace {

/// The retransmission timeout for rails that lose frames silently; every timeout doubles it.
constexpr io::Clock::duration kFirstTimeout = std::chrono::milliseconds(30);
constexpr io::Clock::duration kMaxTimeout = std::chrono::milliseconds(2000);

}  // namespace

SendWindow::SendWindow() : timeout_(kFirstTimeout) {}

bool SendWindow::isFull() const { return frames_.size() >= ReceiveWindow::kFrames; }

const transport::OutgoingFrame& SendWindow::add(const transport::OutgoingFrame& frame, int rail,
                                                io::Clock::time_point now) {
  InFlightFrame& added = frames_.emplace_back(InFlightFrame{frame, rail, transport::kNoRail, now});
  added.frame.header.number = end() - 1;
  return added.frame;
}

std::optional<InFlightFrame> SendWindow::acknowledge(uint64_t next) {
  if (frames_.empty() || firstNumber_ >= next) return std::nullopt;
  std::optional<InFlightFrame> done = std::move(frames_.front());
  frames_.pop_front();
  ++firstNumber_;
  if (done->rail == transport::kNoRail) --numToResend_;
  return done;
}

void SendWindow::restartTimeout() { timeout_ = kFirstTimeout; }

void SendWindow::markLost(InFlightFrame& frame, uint64_t number) {
  frame.rail = transport::kNoRail;
  ++numToResend_;
  resendFrom_ = std::min(resendFrom_, number);
}

void SendWindow::markLost(int rail, bool isStalled) {
  uint64_t number = firstNumber_;
  for (InFlightFrame& frame : frames_) {
    if (frame.stalledRail == rail) frame.stalledRail = transport::kNoRail;
    if (frame.rail == rail) {
      markLost(frame, number);
      frame.stalledRail = isStalled ? rail : transport::kNoRail;
    }
    ++number;
  }
}

void SendWindow::reclaim(int rail) {
  for (InFlightFrame& frame : frames_) {
    if (frame.stalledRail != rail) continue;
    frame.rail = std::exchange(frame.stalledRail, transport::kNoRail);
    --numToResend_;
  }
}

void SendWindow::expire(io::Clock::time_point now) {
  const size_t numBefore = numToResend_;
  uint64_t number = firstNumber_;
  for (InFlightFrame& frame : frames_) {
    if (frame.rail != transport::kNoRail && now - frame.sentAt >= timeout_) markLost(frame, number);
    ++number;
  }
  if (numToResend_ > numBefore) timeout_ = std::min(2 * timeout_, kMaxTimeout);
}

InFlightFrame* SendWindow::nextToResend() {
  if (numToResend_ == 0) return nullptr;
  resendFrom_ = std::max(resendFrom_, firstNumber_);
  while (frames_[resendFrom_ - firstNumber_].rail != transport::kNoRail) ++resendFrom_;
  return &frames_[resendFrom_ - firstNumber_];
}

void SendWindow::resend(InFlightFrame& frame, int rail, io::Clock::time_point now) {
  --numToResend_;
  ++frame.frame.header.attempt;
  frame.rail = rail;
  frame.stalledRail = transport::kNoRail;
  frame.sentAt = now;
}

void SendWindow::addBytesInFlight(std::vector<uint64_t>& numBytes) const {
  for (const InFlightFrame& sent : frames_) {
    if (sent.rail != transport::kNoRail) numBytes[static_cast<size_t>(sent.rail)] += sent.frame.header.length;
  }
}

void SendWindow::cancel(uint64_t token, ByteView payload) {
  for (InFlightFrame& sent : frames_) {
    transport::OutgoingFrame& frame = sent.frame;
    if (frame.token != token || !transport::overlaps(frame.payload, payload)) continue;
    frame.header.kind = wire::FrameKind::kVoid;
    frame.header.length = 0;
    frame.payload = {};
  }
}

void SendWindow::clear() {
  frames_.clear();
  numToResend_ = 0;
}

}  // namespace agspeed::comm::multirail
