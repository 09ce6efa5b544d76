// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/peer_record.h"

#include <algorithm>
#include <array>

#include "comm/wire/byte_io.h"
#include "comm/wire/protocol_version.h"
#include "runtime/base/check.h"

namespace agspeed::comm::rendezvous {
namespace {

constexpr std::array<char, 5> kMagic = {'A', 'G', 'R', 'E', 'C'};
constexpr size_t kMaxRecordBytes = 4096;

security::Digest proofOf(ByteView text, const security::JobKey& key) {
  if (key.empty()) return {};
  security::Digest recordKey;
  security::deriveKey(key, {}, security::bytesOf("agspeed record"), recordKey);
  return security::hmacSha256(recordKey, text);
}

/// Reads the fields after magic and version.
PeerRecord takeFields(wire::ByteReader& reader) {
  PeerRecord record;
  record.protection = security::Protection(reader.take<uint8_t>());
  record.epoch = reader.take<uint32_t>();
  record.rank = reader.take<uint32_t>();
  record.worldSize = reader.take<uint32_t>();
  reader.take(record.publicKey);
  record.rails.resize(std::min<size_t>(reader.take<uint8_t>(), PeerRecord::kMaxRails));
  for (RailAddress& rail : record.rails) {
    rail.address.isV6 = reader.take<uint8_t>() != 0;
    reader.take(rail.address.bytes);
    rail.prefixBits = std::min<uint8_t>(reader.take<uint8_t>(), rail.address.isV6 ? 128 : 32);
    rail.port = reader.take<uint16_t>();
  }
  return record;
}

/// Returns for each of `rails` whether any of `others` is in its network.
std::vector<bool> haveNeighbours(const std::vector<RailAddress>& rails, const std::vector<RailAddress>& others) {
  std::vector<bool> result;
  for (const RailAddress& rail : rails) {
    result.push_back(std::any_of(others.begin(), others.end(), [&](const RailAddress& other) {
      return isSameNetwork(rail.address, other.address, rail.prefixBits);
    }));
  }
  return result;
}

}  // namespace

std::string encodePeerRecord(const PeerRecord& record, const security::JobKey& key) {
  AG_CHECK(record.rails.size() <= PeerRecord::kMaxRails, "{} rails", record.rails.size());
  std::array<std::byte, kMaxRecordBytes> buffer;
  wire::ByteWriter writer(buffer);
  writer.put(kMagic).put(wire::kProtocolVersion).put(record.protection).put(record.epoch).put(record.rank);
  writer.put(record.worldSize).put(record.publicKey).put(static_cast<uint8_t>(record.rails.size()));
  for (const RailAddress& rail : record.rails) {
    writer.put(uint8_t{rail.address.isV6}).put(rail.address.bytes).put(rail.prefixBits).put(rail.port);
  }
  writer.put(proofOf(std::span(buffer).first(writer.size()), key));
  return {reinterpret_cast<const char*>(buffer.data()), writer.size()};
}

StatusOr<PeerRecord> decodePeerRecord(const std::string& text, const security::JobKey& key) {
  const ByteView bytes = security::bytesOf(text);
  if (bytes.size() > kMaxRecordBytes || bytes.size() < security::kDigestBytes)
    return invalidArgument("its record is malformed");
  const ByteView signedPart = bytes.first(bytes.size() - security::kDigestBytes);
  wire::ByteReader reader(signedPart);
  if (reader.take<std::array<char, 5>>() != kMagic) return invalidArgument("its record is malformed");
  if (const auto version = reader.take<uint16_t>(); version != wire::kProtocolVersion) {
    return invalidArgument("it speaks version {} of the protocol, this rank {}: install the same agspeed everywhere",
                           version, wire::kProtocolVersion);
  }
  if (!security::equalsInConstantTime(bytes.last(security::kDigestBytes), proofOf(signedPart, key))) {
    return invalidArgument(key.empty()
                               ? "it has a job key and this rank has none: give all ranks the same AGSPEED_JOB_KEY "
                                 "or AGSPEED_JOB_KEY_FILE"
                               : "it was started with another job key or without one: give all ranks the same "
                                 "AGSPEED_JOB_KEY or AGSPEED_JOB_KEY_FILE");
  }
  PeerRecord record = takeFields(reader);
  if (!reader.isAtEnd() || record.protection < security::Protection::kIntegrity ||
      record.protection > security::Protection::kEncrypted) {
    return invalidArgument("its record is malformed");
  }
  return record;
}

std::vector<int> pairRails(const std::vector<RailAddress>& mine, const std::vector<RailAddress>& theirs) {
  std::vector<int> pairs(mine.size(), -1);
  std::vector<bool> isTaken(theirs.size());
  const std::vector<bool> isMineShared = haveNeighbours(mine, theirs), isTheirsShared = haveNeighbours(theirs, mine);
  for (const bool needsSameNetwork : {true, false}) {
    for (size_t index = 0; index < mine.size(); ++index) {
      const RailAddress& rail = mine[index];
      for (size_t i = 0; i < theirs.size() && pairs[index] < 0; ++i) {
        const size_t candidate = (index + i) % theirs.size();
        const topology::IpAddress& address = theirs[candidate].address;
        const bool fits =
            needsSameNetwork ? isSameNetwork(rail.address, address, rail.prefixBits)
                             : rail.address.isV6 == address.isV6 && !(isMineShared[index] && isTheirsShared[candidate]);
        if (!fits || isTaken[candidate]) continue;
        pairs[index] = static_cast<int>(candidate);
        isTaken[candidate] = true;
      }
    }
  }
  return pairs;
}

}  // namespace agspeed::comm::rendezvous
