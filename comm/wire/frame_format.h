// SPDX-License-Identifier: Apache-2.0
// The frame: what travels on a rail, and its header in bytes. Grammar and a worked example: frame_format.md. Pure
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
  kData = 1,        ///< bytes of a rendezvous message, which its receiver has cleared
  kRts = 2,         ///< request to send: a rendezvous message waits for its receiver
  kCts = 3,         ///< clear to send: its receiver waits
  kCredit = 4,      ///< only what every header advertises: what found its receives
  kVoid = 5,        ///< takes the place of a frame whose message was cancelled
  kAck = 6,         ///< only what every header says: what was received
  kEager = 7,       ///< bytes of an eager message
  kPing = 8,        ///< probes whether the receiver's process is alive
  kPong = 9,        ///< the answer
  kReset = 10,      ///< the other answer: its sender has given the receiver up
  kLinkState = 11,  ///< its sender's rail number `offset` has lost its carrier, or has it again where `total` is 1
};

/// The `offset` of a kCts whose receive takes any message of up to `total` bytes.
constexpr uint64_t kCtsUpTo = 1;

constexpr size_t kHeaderBytes = 72;
constexpr uint32_t kMaxPayloadBytes = 256 * 1024;
/// Messages of this size and larger ones are sent from the caller's memory, eager zero-copy or by rendezvous; it is the
/// caller's again, and the message finished, when all of it is acknowledged.
constexpr uint64_t kZeroCopyBytes = 64 * 1024;

struct FrameHeader {
  FrameKind kind = FrameKind::kVoid;
  uint32_t length = 0;  ///< of the payload; only kData and kEager have one
  uint32_t epoch = 0;
  MessageId id;
  uint64_t total = 0;         ///< bytes of the whole message
  uint64_t offset = 0;        ///< of the payload in the message
  uint64_t number = 0;        ///< counts the frames from sender to receiver from 1 on; 0: not counted, may get lost
  uint32_t attempt = 0;       ///< how often the frame was sent before
  uint64_t acknowledged = 0;  ///< the sender of this frame has received all frames with lower numbers
  uint64_t consumed = 0;      ///< bytes of kEager from the receiver of this frame that found their receives
};

void encodeHeader(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out);
/// nullopt unless every field is possible: magic, version, kind, and a payload within the message and the bound.
std::optional<FrameHeader> decodeHeader(std::span<const std::byte, kHeaderBytes> bytes);

}  // namespace agspeed::comm
