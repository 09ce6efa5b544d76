// SPDX-License-Identifier: Apache-2.0
// The frame: what travels on a rail. On a connection a frame is
//
//   header (kHeaderBytes) | tag of the header | payload (header.length) | tag of the payload, where there is one
//
// The tags are those of comm/security/sealing.h. The header has one of its own because it says where the payload goes:
// nothing is placed on the word of a header that was not checked. All integers are little-endian:
//
//   offset  0  magic u16, version u8, kind u8     24  operation u64     48  number u64
//           4  length u32                         32  total u64         56  acknowledged u64
//           8  epoch u32                          40  offset u64        64  consumed u64
//          12  communicator u32, step u32, attempt u32
//
// Pure functions; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/wire/message_id.h"

namespace agspeed::comm {

enum class FrameKind : uint8_t {
  kData = 1,        ///< bytes of a message that was asked for
  kRts = 2,         ///< a message waits to be asked for
  kCts = 3,         ///< its receiver waits: send it
  kCredit = 4,      ///< the receiver's messages of kind kEager have found their receives
  kVoid = 5,        ///< takes the place of a frame whose message was cancelled
  kAck = 6,         ///< only what every header says: what was received
  kEager = 7,       ///< bytes of a message that is sent without being asked for
  kPing = 8,        ///< asks for an answer: is the receiver's process alive?
  kPong = 9,        ///< the answer
  kReset = 10,      ///< the other answer: its sender has given the receiver up
  kLinkState = 11,  ///< its sender's rail number `offset` has lost its carrier, or has it again where `total` is 1
};

constexpr size_t kHeaderBytes = 72;
constexpr uint32_t kMaxPayloadBytes = 256 * 1024;
/// Messages of this size and larger ones are sent from the caller's memory; it is the caller's again, and the message
/// finished, when all of it is acknowledged.
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
