// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/hello.h"

#include <algorithm>
#include <array>

#include "comm/wire/byte_io.h"
#include "comm/wire/protocol_version.h"

namespace agspeed::comm::channel {
namespace {

constexpr std::array<char, 4> kMagic = {'A', 'G', 'C', 'H'};
constexpr size_t kMaxHostBytes = 255, kMaxTextBytes = 4096;

using Buffer = std::array<std::byte, kMaxHelloBytes>;

security::Digest proofOf(std::string_view role, ByteView first, ByteView second, const Ticket::Secret& secret,
                         const security::JobKey& key) {
  std::vector<std::byte> secrets(secret.begin(), secret.end());
  secrets.insert(secrets.end(), key.begin(), key.end());
  security::Digest proofKey;
  security::deriveKey(secrets, {}, security::bytesOf(role), proofKey);
  std::vector<std::byte> text(first.begin(), first.end());
  text.insert(text.end(), second.begin(), second.end());
  return security::hmacSha256(proofKey, text);
}

void putText(wire::ByteWriter& writer, std::string_view text, size_t most) {
  const std::string_view sent = text.substr(0, most);
  writer.put(static_cast<uint16_t>(sent.size())).put(security::bytesOf(sent));
}

/// Reads a text and its length. Returns nullopt if the text is longer than `most`.
std::optional<std::string> takeText(wire::ByteReader& reader, size_t most) {
  const auto size = reader.take<uint16_t>();
  if (size > most) return std::nullopt;
  std::string text(size, '\0');
  reader.take(std::as_writable_bytes(std::span(text)));
  return text;
}

void putIntroduction(wire::ByteWriter& writer, const Introduction& from) {
  writer.put(from.domain).put(from.process);
  putText(writer, from.host, kMaxHostBytes);
  putText(writer, from.record, kMaxTextBytes);
}

std::optional<Introduction> takeIntroduction(wire::ByteReader& reader) {
  Introduction from;
  from.domain = reader.take<uint64_t>();
  from.process = reader.take<uint32_t>();
  std::optional<std::string> host = takeText(reader, kMaxHostBytes), record = takeText(reader, kMaxTextBytes);
  if (!host || !record || !reader.isAtEnd()) return std::nullopt;
  // The name goes into logs, so it must be printable.
  std::replace_if(host->begin(), host->end(), [](char each) { return each <= ' ' || each == '\x7f'; }, '?');
  from.host = std::move(*host);
  from.record = std::move(*record);
  return from;
}

std::vector<std::byte> signedBytes(const Buffer& buffer, const wire::ByteWriter& writer,
                                   const security::Digest& proof) {
  std::vector<std::byte> bytes(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(writer.size()));
  bytes.insert(bytes.end(), proof.begin(), proof.end());
  return bytes;
}

}  // namespace

bool mayBeHello(ByteView begin) {
  std::array<std::byte, kHelloMagicBytes> ours;
  wire::ByteWriter(ours).put(kMagic).put(wire::kProtocolVersion);
  const size_t size = std::min(begin.size(), ours.size());
  return std::equal(begin.begin(), begin.begin() + static_cast<ptrdiff_t>(size), ours.begin());
}

std::optional<uint64_t> listenerOf(ByteView hello) {
  if (hello.size() < kHelloMagicBytes + sizeof(uint64_t) + security::kDigestBytes || !mayBeHello(hello))
    return std::nullopt;
  return wire::ByteReader(hello.subspan(kHelloMagicBytes)).take<uint64_t>();
}

std::vector<std::byte> encodeHello(const Hello& hello, const Ticket::Secret& secret, const security::JobKey& key) {
  Buffer buffer;
  wire::ByteWriter writer(buffer);
  writer.put(kMagic).put(wire::kProtocolVersion).put(hello.listener).put(hello.association).put(hello.channel);
  putIntroduction(writer, hello.from);
  const ByteView text = ByteView(buffer).first(writer.size());
  return signedBytes(buffer, writer, proofOf("agspeed hello", text, {}, secret, key));
}

std::optional<Hello> decodeHello(ByteView bytes, const Ticket::Secret& secret, const security::JobKey& key) {
  if (!listenerOf(bytes)) return std::nullopt;
  const ByteView text = bytes.first(bytes.size() - security::kDigestBytes);
  if (!security::equalsInConstantTime(bytes.last(security::kDigestBytes),
                                      proofOf("agspeed hello", text, {}, secret, key)))
    return {};
  wire::ByteReader reader(text.subspan(kHelloMagicBytes));
  Hello hello;
  hello.listener = reader.take<uint64_t>();
  hello.association = reader.take<uint32_t>();
  hello.channel = reader.take<uint32_t>();
  std::optional<Introduction> from = takeIntroduction(reader);
  if (!from) return std::nullopt;
  hello.from = std::move(*from);
  return hello;
}

std::vector<std::byte> encodeWelcome(const Welcome& welcome, ByteView hello, const Ticket::Secret& secret,
                                     const security::JobKey& key) {
  Buffer buffer;
  wire::ByteWriter writer(buffer);
  putText(writer, welcome.refusal, kMaxTextBytes / 4);
  putIntroduction(writer, welcome.from);
  const ByteView text = ByteView(buffer).first(writer.size());
  return signedBytes(buffer, writer, proofOf("agspeed welcome", hello, text, secret, key));
}

std::optional<Welcome> decodeWelcome(ByteView bytes, ByteView hello, const Ticket::Secret& secret,
                                     const security::JobKey& key) {
  if (bytes.size() < security::kDigestBytes) return std::nullopt;
  const ByteView text = bytes.first(bytes.size() - security::kDigestBytes);
  if (!security::equalsInConstantTime(bytes.last(security::kDigestBytes),
                                      proofOf("agspeed welcome", hello, text, secret, key)))
    return {};
  wire::ByteReader reader(text);
  Welcome welcome;
  std::optional<std::string> refusal = takeText(reader, kMaxTextBytes / 4);
  std::optional<Introduction> from = refusal ? takeIntroduction(reader) : std::nullopt;
  if (!from) return std::nullopt;
  welcome.refusal = std::move(*refusal);
  welcome.from = std::move(*from);
  return welcome;
}

}  // namespace agspeed::comm::channel
