// SPDX-License-Identifier: Apache-2.0
// The frame that travels on a rail, and its header in bytes. Grammar and a worked example: frame_format.md. Pure
// functions; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/wire/message_id.h"

namespace agspeed::comm {

enum class FrameKind : uint8_t {
  kData = 1,        ///< bytes of a rendezvous message that its receiver has cleared
  kRts = 2,         ///< request to send: a rendezvous message waits for its receiver
  kCts = 3,         ///< clear to send: the receiver is ready
  kCredit = 4,      ///< no payload: advertises only `consumed`, which every header carries
  kVoid = 5,        ///< replaces a frame whose message was cancelled
  kAck = 6,         ///< no payload: carries only `acknowledged`, like every header
  kEager = 7,       ///< bytes of an eager message
  kPing = 8,        ///< probes whether the receiver's process is alive
  kPong = 9,        ///< the answer to kPing
  kReset = 10,      ///< the other answer to kPing: its sender has given up the sender of the ping
  kLinkState = 11,  ///< the sender's rail number `offset` has lost its carrier, or has it again if `total` is 1
};

/// The `offset` of a kCts whose receive takes any message of up to `total` bytes.
constexpr uint64_t kCtsUpTo = 1;

constexpr size_t kHeaderBytes = 72;
constexpr uint32_t kMaxPayloadBytes = 256 * 1024;
/// Messages of this size or more are sent from the caller's memory, eager zero-copy or by rendezvous. The message is
/// finished, and its memory the caller's again, when all of it is acknowledged.
constexpr uint64_t kZeroCopyBytes = 64 * 1024;

struct FrameHeader {
  FrameKind kind = FrameKind::kVoid;
  uint32_t length = 0;  ///< of the payload; only kData and kEager have one
  uint32_t epoch = 0;
  MessageId id;
  uint64_t total = 0;         ///< bytes of the whole message
  uint64_t offset = 0;        ///< of the payload in the message
  uint64_t number = 0;        ///< counts the frames from sender to receiver, from 1; 0: not counted, may get lost
  uint32_t attempt = 0;       ///< how often the frame was sent before
  uint64_t acknowledged = 0;  ///< the sender of this frame has received all frames with lower numbers
  uint64_t consumed = 0;      ///< kEager bytes from the receiver of this frame that have been matched with receives
};

void encodeHeader(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out);
/// nullopt unless every field is valid: magic, version, kind, and a payload within the message and the size limit.
std::optional<FrameHeader> decodeHeader(std::span<const std::byte, kHeaderBytes> bytes);

}  // namespace agspeed::comm
