// SPDX-License-Identifier: Apache-2.0
// Frames, the units that rails carry, and the encoding of their headers. frame_format.md has the grammar and a worked
// example. The functions are pure and thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/wire/message_id.h"

namespace agspeed::comm::wire {

enum class FrameKind : uint8_t {
  kData = 1,        ///< bytes of a rendezvous message, for which its receiver has sent a CTS
  kRts = 2,         ///< request to send: a rendezvous message waits for its receiver
  kCts = 3,         ///< clear to send: the receiver is ready
  kCredit = 4,      ///< no payload: sent only for its `consumed`, a field of every header
  kVoid = 5,        ///< replaces a frame whose message was cancelled
  kAck = 6,         ///< no payload: sent only for its `acknowledged`, a field of every header
  kEager = 7,       ///< bytes of an eager message
  kPing = 8,        ///< probes whether the receiver's process is alive
  kPong = 9,        ///< the answer to kPing
  kReset = 10,      ///< the answer to kPing from a rank that has given up the rank that sent the ping
  kLinkState = 11,  ///< the sender's rail number `offset` has lost its carrier, or has it again if `total` is 1
};

/// The `offset` of a kCts frame if the receive accepts any message of up to `total` bytes. Otherwise the `offset` is 0,
/// and the message must have exactly `total` bytes.
constexpr uint64_t kCtsUpTo = 1;

constexpr size_t kHeaderBytes = 72;
constexpr uint32_t kMaxPayloadBytes = 256 * 1024;
/// Messages of at least this size are sent from the caller's memory, as eager zero-copy or by rendezvous. Such a send
/// is finished when its whole message is acknowledged. Until then, the caller must not change the memory.
constexpr uint64_t kZeroCopyBytes = 64 * 1024;

struct FrameHeader {
  FrameKind kind = FrameKind::kVoid;
  uint32_t length = 0;  ///< bytes of the payload; only kData and kEager have one
  uint32_t epoch = 0;
  MessageId id;
  /// The bytes of the whole message. In a kCts frame: the bytes of the receive. In a kLinkState frame: 1 if the rail
  /// has its carrier, 0 if it has lost it.
  uint64_t total = 0;
  /// Where the payload begins in the message. In a kCts frame: kCtsUpTo or 0. In a kLinkState frame: the number of the
  /// sender's rail.
  uint64_t offset = 0;
  uint64_t number = 0;   ///< counts the numbered frames from sender to receiver, from 1; 0: no number, may get lost
  uint32_t attempt = 0;  ///< how often the frame was sent before
  uint64_t acknowledged = 0;  ///< the sender of this frame has received all frames with lower numbers
  uint64_t consumed = 0;  ///< credit: how many eager bytes from this frame's receiver were matched with receives so far
};

void encodeHeader(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out);
/// Parses a header. Returns nullopt unless magic, version and kind are valid and the length of the payload fits the
/// kind, the message and kMaxPayloadBytes.
std::optional<FrameHeader> decodeHeader(std::span<const std::byte, kHeaderBytes> bytes);

}  // namespace agspeed::comm::wire
