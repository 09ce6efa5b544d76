// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/store_protocol.h"

#include <cstring>
#include <string_view>

#include "comm/wire/byte_io.h"

namespace agspeed::comm::rendezvous {
namespace {

constexpr size_t kTagBytes = tagBytes(security::Protection::kAuthenticated);
constexpr size_t kLengthBytes = sizeof(uint32_t);
constexpr size_t kRequestHeadBytes = 1 + 8 + 4;
constexpr size_t kReplyHeadBytes = 1 + 1 + 8;
constexpr size_t kMaxBodyBytes = kRequestHeadBytes + kMaxStoreKeyBytes + Store::kMaxValueBytes;

security::SealKey directionKey(const security::SealKey& key, std::string_view direction) {
  security::SealKey derived;
  security::deriveKey(key, {}, security::bytesOf(direction), derived);
  return derived;
}

std::string_view name(StoreChannel::End end) {
  return end == StoreChannel::End::kClient ? "agspeed store requests" : "agspeed store replies";
}

StoreChannel::End other(StoreChannel::End end) {
  return end == StoreChannel::End::kClient ? StoreChannel::End::kServer : StoreChannel::End::kClient;
}

std::string textOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

security::Digest storeSecret(const security::JobKey& key) {
  security::Digest secret;
  security::deriveKey(key, {}, security::bytesOf("agspeed store"), secret);
  return secret;
}

StoreBytes encode(const StoreRequest& request) {
  StoreBytes body(kRequestHeadBytes + request.key.size() + request.value.size());
  wire::ByteWriter(body)
      .put(static_cast<uint8_t>(request.operation))
      .put(request.amount)
      .put(static_cast<uint32_t>(request.key.size()))
      .put(security::bytesOf(request.key))
      .put(security::bytesOf(request.value));
  return body;
}

StoreBytes encode(const StoreReply& reply) {
  const std::string& text = reply.status.isOk() ? reply.value.value_or("") : reply.status.message();
  const ByteView kept = security::bytesOf(std::string_view(text).substr(0, Store::kMaxValueBytes));
  StoreBytes body(kReplyHeadBytes + kept.size());
  wire::ByteWriter(body)
      .put(static_cast<uint8_t>(reply.status.code()))
      .put(static_cast<uint8_t>(reply.value.has_value()))
      .put(reply.number)
      .put(kept);
  return body;
}

std::optional<StoreRequest> decodeStoreRequest(std::span<const std::byte> body) {
  wire::ByteReader reader(body);
  StoreRequest request;
  const auto operation = reader.take<uint8_t>();
  request.amount = reader.take<int64_t>();
  const auto keyBytes = reader.take<uint32_t>();
  const bool isKnown = operation >= 1 && operation <= static_cast<uint8_t>(StoreRequest::Operation::kSetOnce);
  if (!reader.isComplete() || !isKnown || keyBytes > kMaxStoreKeyBytes || keyBytes > body.size() - kRequestHeadBytes) {
    return std::nullopt;
  }
  request.operation = static_cast<StoreRequest::Operation>(operation);
  request.key = textOf(body.subspan(kRequestHeadBytes, keyBytes));
  request.value = textOf(body.subspan(kRequestHeadBytes + keyBytes));
  if (request.value.size() > Store::kMaxValueBytes) return std::nullopt;
  return request;
}

std::optional<StoreReply> decodeStoreReply(std::span<const std::byte> body) {
  wire::ByteReader reader(body);
  const auto code = reader.take<uint8_t>();
  const bool hasValue = reader.take<uint8_t>() != 0;
  StoreReply reply;
  reply.number = reader.take<int64_t>();
  if (!reader.isComplete() || code > static_cast<uint8_t>(StatusCode::kInternal)) return std::nullopt;
  std::string text = textOf(body.subspan(kReplyHeadBytes));
  if (code != static_cast<uint8_t>(StatusCode::kOk)) {
    reply.status = Status(static_cast<StatusCode>(code), std::move(text));
  } else if (hasValue) {
    reply.value = std::move(text);
  }
  return reply;
}

StoreChannel::StoreChannel(const security::SealKey& key, End end)
    : sealer_(security::Protection::kAuthenticated, directionKey(key, name(end))),
      opener_(security::Protection::kAuthenticated, directionKey(key, name(other(end)))) {}

StoreBytes StoreChannel::seal(std::span<const std::byte> body) {
  StoreBytes message(kLengthBytes + body.size() + kTagBytes);
  wire::ByteWriter(message).put(static_cast<uint32_t>(body.size())).put(body);
  const std::span<std::byte> whole(message);
  sealer_.sign(whole.first(message.size() - kTagBytes), whole.last(kTagBytes));
  return message;
}

StatusOr<std::optional<StoreBytes>> StoreChannel::take(StoreBytes& arrived) {
  if (arrived.size() < kLengthBytes) return std::optional<StoreBytes>();
  const std::span<const std::byte> all(arrived);
  const auto length = wire::ByteReader(all).take<uint32_t>();
  if (length > kMaxBodyBytes) return dataLoss("a message of {} bytes, at most {} are allowed", length, kMaxBodyBytes);
  const size_t size = kLengthBytes + length + kTagBytes;
  if (arrived.size() < size) return std::optional<StoreBytes>();
  if (!opener_.verify(all.first(size - kTagBytes), all.subspan(size - kTagBytes, kTagBytes))) {
    return dataLoss("a message that was changed on its way");
  }
  StoreBytes body(all.begin() + kLengthBytes, all.begin() + kLengthBytes + length);
  arrived.erase(arrived.begin(), arrived.begin() + static_cast<ptrdiff_t>(size));
  return std::optional(std::move(body));
}

}  // namespace agspeed::comm::rendezvous
