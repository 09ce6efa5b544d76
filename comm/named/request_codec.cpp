// SPDX-License-Identifier: Apache-2.0
#include "comm/named/request_codec.h"

#include <memory>
#include <type_traits>
#include <utility>

#include "comm/wire/byte_io.h"

namespace agspeed::comm::named {
namespace {

/// Encodes an id relative to `last`, the previous id of a list. The result is small if the ids are close: it is 0 for
/// last + 1, 1 for last, 2 for last + 2, 3 for last - 1, and so on.
uint64_t stepTo(uint32_t id, uint32_t last) {
  const int64_t step = int64_t{id} - int64_t{last} - 1;
  return static_cast<uint64_t>(step) << 1 ^ static_cast<uint64_t>(step >> 63);
}

uint32_t idAfter(uint32_t last, uint64_t step) {
  const uint64_t signedStep = step >> 1 ^ (0 - (step & 1));
  return static_cast<uint32_t>(uint64_t{last} + 1 + signedStep);
}

/// Limit of the length of a list or text. No valid message has more elements. The limit prevents an invalid length from
/// allocating much memory.
constexpr uint32_t kMaxCount = 1u << 24;

class Encoder {
 public:
  explicit Encoder(Bytes& out) : out_(out) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    const auto bytes = std::as_bytes(std::span(text));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  template <typename T>
  void put(const std::vector<T>& list) {
    put(static_cast<uint32_t>(list.size()));
    for (const T& each : list) put(each);
  }
  void put(const Request& request) {
    put(request.kind);
    put(request.dtype);
    put(request.reduction);
    put(request.isOnDevice);
    put(request.isCacheable);
    put(request.root);
    put(request.priority);
    put(request.prescale);
    put(request.postscale);
    put(request.name);
    put(request.shapes);
    put(request.splits);
  }
  void put(const CachedRequests& requests) {
    put(static_cast<uint32_t>(requests.ids.size()));
    uint32_t last = 0;
    for (const uint32_t id : requests.ids) putNumber(stepTo(id, std::exchange(last, id)));
  }
  void put(const std::vector<Response::Item>& items) {
    put(static_cast<uint32_t>(items.size()));
    uint32_t last = 0;
    for (const Response::Item& item : items) {
      putNumber(stepTo(item.id, std::exchange(last, item.id)) << 1 | uint64_t{item.isFull});
      if (!item.isFull) continue;
      put(item.agreement->request);
      put(item.agreement->rows);
    }
  }
  void put(const Farewell& farewell) {
    put(farewell.isFailure);
    put(farewell.reason);
  }
  void put(const Response& response) {
    put(response.kind);
    put(response.lastJoined);
    put(response.evicted);
    put(response.error);
    put(response.areKindsDifferent);
    put(response.items);
  }
  void put(const Forgotten& forgotten) { put(forgotten.ids); }

 private:
  /// Writes seven bits a byte, the lowest first; all bytes but the last have the eighth bit set.
  void putNumber(uint64_t number) {
    for (; number >= 0x80; number >>= 7) out_.push_back(static_cast<std::byte>(number | 0x80));
    out_.push_back(static_cast<std::byte>(number));
  }

  Bytes& out_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> in) : reader_(in), size_(in.size()) {}

  bool isGood() const { return isGood_ && reader_.isComplete(); }
  bool isAtEnd() const { return reader_.isAtEnd(); }

  template <typename T>
    requires std::is_arithmetic_v<T>
  void take(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = reader_.take<uint8_t>() != 0;
    } else {
      value = reader_.take<T>();
    }
  }
  template <typename T>
    requires std::is_enum_v<T>
  void take(T& value, T last) {
    const auto number = reader_.take<std::underlying_type_t<T>>();
    isGood_ = isGood_ && number <= static_cast<std::underlying_type_t<T>>(last);
    value = static_cast<T>(isGood_ ? number : 0);
  }
  void take(std::string& text) {
    text.resize(takeCount());
    reader_.take(std::as_writable_bytes(std::span(text)));
  }
  template <typename T>
  void take(std::vector<T>& list) {
    const uint32_t count = takeCount();
    for (uint32_t i = 0; i < count && isGood(); ++i) take(list.emplace_back());
  }
  void take(Request& request) {
    take(request.kind, std::end(kNamedKinds)[-1]);
    take(request.dtype, DType::kC128);
    take(request.reduction, NamedReduction::kProduct);
    take(request.isOnDevice);
    take(request.isCacheable);
    take(request.root);
    take(request.priority);
    take(request.prescale);
    take(request.postscale);
    take(request.name);
    take(request.shapes);
    take(request.splits);
  }
  void take(CachedRequests& requests) {
    const uint32_t count = takeCount();
    requests.ids.reserve(count);
    uint32_t last = 0;
    for (uint32_t i = 0; i < count && isGood(); ++i) {
      requests.ids.push_back(last = idAfter(last, takeNumber()));
    }
  }
  void take(std::vector<Response::Item>& items) {
    const uint32_t count = takeCount();
    items.reserve(count);
    uint32_t last = 0;
    for (uint32_t i = 0; i < count && isGood(); ++i) {
      Response::Item& item = items.emplace_back();
      const uint64_t number = takeNumber();
      item.isFull = (number & 1) != 0;
      item.id = last = idAfter(last, number >> 1);
      if (!item.isFull) continue;
      auto agreement = std::make_shared<Agreement>();
      take(agreement->request);
      take(agreement->rows);
      item.agreement = std::move(agreement);
    }
  }
  void take(Farewell& farewell) {
    take(farewell.isFailure);
    take(farewell.reason);
  }
  void take(Response& response) {
    take(response.kind, std::end(kNamedKinds)[-1]);
    take(response.lastJoined);
    take(response.evicted);
    take(response.error);
    take(response.areKindsDifferent);
    take(response.items);
  }
  void take(Forgotten& forgotten) { take(forgotten.ids); }

 private:
  uint32_t takeCount() {
    const auto count = reader_.take<uint32_t>();
    isGood_ = isGood_ && count <= kMaxCount && count <= size_;
    return isGood() ? count : 0;
  }
  uint64_t takeNumber() {
    uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto bits = reader_.take<uint8_t>();
      number |= uint64_t{bits & 0x7fu} << shift;
      if (bits < 0x80) return number;
    }
    isGood_ = false;
    return 0;
  }

  wire::ByteReader reader_;
  const size_t size_;
  bool isGood_ = true;
};

template <size_t kIndex = 0>
bool takeAlternative(size_t index, Decoder& decoder, Note& note) {
  if constexpr (kIndex == std::variant_size_v<Note>) {
    return false;
  } else {
    if (index != kIndex) return takeAlternative<kIndex + 1>(index, decoder, note);
    std::variant_alternative_t<kIndex, Note> value;
    decoder.take(value);
    note = std::move(value);
    return decoder.isGood();
  }
}

}  // namespace

void encode(const Note& note, Bytes& message) {
  Encoder encoder(message);
  encoder.put(static_cast<uint8_t>(note.index()));
  std::visit([&](const auto& value) { encoder.put(value); }, note);
}

StatusOr<std::vector<Note>> decode(std::span<const std::byte> message) {
  std::vector<Note> notes;
  Decoder decoder(message);
  while (!decoder.isAtEnd()) {
    uint8_t index = 0;
    decoder.take(index);
    if (!decoder.isGood() || !takeAlternative(index, decoder, notes.emplace_back())) {
      return dataLoss("a message of {} bytes about named operations is invalid: note {} cannot be decoded",
                      message.size(), notes.size());
    }
  }
  return notes;
}

}  // namespace agspeed::comm::named
