// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/ticket.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "comm/wire/byte_io.h"
#include "comm/wire/protocol_version.h"

namespace agspeed::comm::channel {
namespace {

constexpr std::array<char, 4> kMagic = {'A', 'G', 'T', 'K'};
constexpr uint16_t kTicketVersion = 1;
constexpr size_t kFixedBytes = 48, kAddressBytes = 54, kProofBytes = 16, kNoteAt = 120;
constexpr size_t kSignedBytes = kFixedBytes + kAddressBytes;
constexpr size_t kMaxAddresses = 9;

size_t sizeOf(const rendezvous::RailAddress& address) { return (address.address.isV6 ? 16 : 4) + sizeof(address.port); }

std::array<std::byte, kProofBytes> proofOf(ByteView text, const security::JobKey& key) {
  // Without a job key the proof still detects damage.
  constexpr std::string_view kLabel = "agspeed ticket";
  std::vector<std::byte> secret(security::bytesOf(kLabel).begin(), security::bytesOf(kLabel).end());
  secret.insert(secret.end(), key.begin(), key.end());
  security::Digest ticketKey;
  security::deriveKey(secret, {}, security::bytesOf(kLabel), ticketKey);
  const security::Digest whole = security::hmacSha256(ticketKey, text);
  std::array<std::byte, kProofBytes> proof;
  std::copy_n(whole.begin(), proof.size(), proof.begin());
  return proof;
}

/// Returns the first addresses of `all`, as many as fit into a ticket.
std::vector<rendezvous::RailAddress> fitting(const std::vector<rendezvous::RailAddress>& all) {
  std::vector<rendezvous::RailAddress> chosen;
  size_t used = 0;
  for (const rendezvous::RailAddress& each : all) {
    if (chosen.size() == kMaxAddresses || used + sizeOf(each) > kAddressBytes) break;
    used += sizeOf(each);
    chosen.push_back(each);
  }
  return chosen;
}

}  // namespace

void Ticket::encode(const security::JobKey& key, Bytes out) const {
  std::fill(out.begin(), out.end(), std::byte{0});
  const std::vector<rendezvous::RailAddress> sent = fitting(addresses);
  uint16_t isV6 = 0;
  for (size_t i = 0; i < sent.size(); ++i) isV6 |= static_cast<uint16_t>((sent[i].address.isV6 ? 1 : 0) << i);
  wire::ByteWriter writer(out);
  writer.put(kMagic)
      .put(kTicketVersion)
      .put(wire::kProtocolVersion)
      .put(protection)
      .put(static_cast<uint8_t>(sent.size()));
  writer.put(isV6).put(process).put(domain).put(listener).put(secret);
  for (const rendezvous::RailAddress& each : sent) {
    writer.put(ByteView(each.address.bytes).first(each.address.isV6 ? 16 : 4)).put(each.port);
  }
  const auto proof = proofOf(ByteView(out).first(kSignedBytes), key);
  std::copy(proof.begin(), proof.end(), out.begin() + kSignedBytes);
}

StatusOr<Ticket> Ticket::decode(std::span<const std::byte, kBytes> bytes, const security::JobKey& key) {
  wire::ByteReader reader(ByteView(bytes).first(kSignedBytes));
  if (reader.take<std::array<char, 4>>() != kMagic) {
    return invalidArgument(
        "the listener's ticket is none of agspeed's: the other process uses another network plug-in; set "
        "NCCL_NET_PLUGIN alike on all hosts");
  }
  const auto ticketVersion = reader.take<uint16_t>(), protocolVersion = reader.take<uint16_t>();
  if (ticketVersion != kTicketVersion || protocolVersion != wire::kProtocolVersion) {
    return invalidArgument(
        "the listener's ticket has version {}.{}, this process {}.{}: install the same agspeed everywhere",
        ticketVersion, protocolVersion, kTicketVersion, wire::kProtocolVersion);
  }
  if (!security::equalsInConstantTime(ByteView(bytes).subspan(kSignedBytes, kProofBytes),
                                      proofOf(ByteView(bytes).first(kSignedBytes), key))) {
    return invalidArgument(
        "the listener's ticket is damaged or was made with another job key: give all processes the same "
        "AGSPEED_JOB_KEY or AGSPEED_JOB_KEY_FILE, or none");
  }
  Ticket ticket;
  ticket.protection = security::Protection(reader.take<uint8_t>());
  const size_t count = std::min<size_t>(reader.take<uint8_t>(), kMaxAddresses);
  const auto isV6 = reader.take<uint16_t>();
  ticket.process = reader.take<uint32_t>();
  ticket.domain = reader.take<uint64_t>();
  ticket.listener = reader.take<uint64_t>();
  reader.take(ticket.secret);
  for (size_t i = 0; i < count; ++i) {
    rendezvous::RailAddress address;
    address.address.isV6 = (isV6 >> i & 1) != 0;
    reader.take(std::span(address.address.bytes).first(address.address.isV6 ? 16 : 4));
    address.port = reader.take<uint16_t>();
    ticket.addresses.push_back(address);
  }
  if (!reader.isComplete() || ticket.addresses.empty()) return invalidArgument("the listener's ticket is malformed");
  return ticket;
}

uint64_t Ticket::note(std::span<const std::byte, kBytes> bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + kNoteAt, sizeof(value));
  return value;
}

void Ticket::setNote(Bytes bytes, uint64_t note) { std::memcpy(bytes.data() + kNoteAt, &note, sizeof(note)); }

}  // namespace agspeed::comm::channel
