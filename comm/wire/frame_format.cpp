// SPDX-License-Identifier: Apache-2.0
#include "comm/wire/frame_format.h"

#include "comm/wire/byte_io.h"
#include "comm/wire/protocol_version.h"

namespace agspeed::comm::wire {
namespace {

constexpr uint16_t kMagic = 0xa65f;
constexpr auto kVersion = static_cast<uint8_t>(kProtocolVersion);

bool isPossible(const FrameHeader& header) {
  if (header.kind < FrameKind::kData || header.kind > FrameKind::kLinkState) return false;
  if (header.kind != FrameKind::kData && header.kind != FrameKind::kEager) return header.length == 0;
  return header.length <= kMaxPayloadBytes && header.offset <= header.total &&
         header.length <= header.total - header.offset && (header.length > 0 || header.total == 0);
}

}  // namespace

void encodeHeader(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out) {
  ByteWriter writer(out);
  writer.put(kMagic).put(kVersion).put(header.kind).put(header.length).put(header.epoch);
  writer.put(header.id.communicator).put(header.id.step).put(header.attempt).put(header.id.sequence);
  writer.put(header.total).put(header.offset).put(header.number).put(header.acknowledged).put(header.consumed);
}

std::optional<FrameHeader> decodeHeader(std::span<const std::byte, kHeaderBytes> bytes) {
  ByteReader reader(bytes);
  const bool isOurs = reader.take<uint16_t>() == kMagic && reader.take<uint8_t>() == kVersion;
  FrameHeader header;
  header.kind = FrameKind(reader.take<uint8_t>());
  header.length = reader.take<uint32_t>();
  header.epoch = reader.take<uint32_t>();
  header.id.communicator = reader.take<uint32_t>();
  header.id.step = reader.take<uint32_t>();
  header.attempt = reader.take<uint32_t>();
  header.id.sequence = reader.take<uint64_t>();
  header.total = reader.take<uint64_t>();
  header.offset = reader.take<uint64_t>();
  header.number = reader.take<uint64_t>();
  header.acknowledged = reader.take<uint64_t>();
  header.consumed = reader.take<uint64_t>();
  if (!isOurs || !isPossible(header)) return std::nullopt;
  return header;
}

}  // namespace agspeed::comm::wire
