// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/conformance/frame_group.h"

#include <utility>

namespace agspeed::comm::conformance {

namespace {

rendezvous::DirectoryOptions optionsOf(int rank, int size) {
  rendezvous::DirectoryOptions options;
  options.rank = rank;
  options.size = size;
  return options;
}

}  // namespace

FrameEnd::FrameEnd(rendezvous::Store& store, int rank, int size) : directory(store, optionsOf(rank, size)) {}

std::span<std::byte> FrameEnd::place(int peer, const wire::FrameHeader& header) {
  if (!isWanted(header.id.sequence)) return {};
  std::vector<std::byte>& bytes = placed[{peer, header.id.sequence}];
  bytes.assign(header.length, std::byte{});
  return bytes;
}

void FrameEnd::arrived(int peer, const wire::FrameHeader& header) {
  if (header.kind != wire::FrameKind::kData) return;
  peers[peer].numbers.push_back(header.id.sequence);
  peers[peer].frames[header.id.sequence] = placed[{peer, header.id.sequence}];
}

std::vector<std::byte> payloadOf(uint64_t number, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((number * 1009 + i * 2654435761u + i / 251) >> 3);
  return bytes;
}

transport::OutgoingFrame frameOf(const std::vector<std::byte>& payload, uint64_t number) {
  transport::OutgoingFrame frame;
  frame.header.kind = wire::FrameKind::kData;
  frame.header.id.sequence = number;
  frame.header.length = static_cast<uint32_t>(payload.size());
  frame.header.total = payload.size();
  frame.payload = payload;
  frame.token = number;
  return frame;
}

}  // namespace agspeed::comm::conformance
