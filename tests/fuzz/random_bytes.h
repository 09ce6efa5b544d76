// SPDX-License-Identifier: Apache-2.0
// Random and corrupted bytes for fuzz tests, from a seed that a failing test prints. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace agspeed {

using Bytes = std::vector<std::byte>;

/// Returns how many inputs a fuzz test tries: `usual`, or what AG_FUZZ_COUNT says.
inline int fuzzCount(int usual) {
  const char* wanted = std::getenv("AG_FUZZ_COUNT");
  return wanted != nullptr ? std::atoi(wanted) : usual;
}

class RandomBytes {
 public:
  RandomBytes() : seed_(std::random_device()()), engine_(seed_) {}

  uint64_t seed() const { return seed_; }
  uint64_t below(uint64_t limit) { return engine_() % limit; }
  Bytes bytes(size_t size) {
    Bytes result(size);
    for (std::byte& byte : result) byte = std::byte(engine_());
    return result;
  }
  /// Returns the bytes with one kind of typical corruption; they always differ from before.
  Bytes spoil(Bytes bytes) {
    const Bytes before = bytes;
    const size_t at = below(bytes.size()), count = 1 + below(std::min<size_t>(bytes.size() - at, 40));
    const auto begin = bytes.begin() + static_cast<ptrdiff_t>(at), end = begin + static_cast<ptrdiff_t>(count);
    switch (below(5)) {
      case 0: *begin ^= std::byte(1 << below(8)); break;
      case 1: std::generate(begin, end, [&] { return std::byte(engine_()); }); break;
      case 2: bytes.erase(begin, end); break;
      case 3: {
        const Bytes copy(begin, end);
        bytes.insert(begin, copy.begin(), copy.end());
        break;
      }
      default: std::fill(begin, end, std::byte{0xff}); break;
    }
    if (bytes == before) bytes[0] ^= std::byte{1};
    return bytes;
  }

 private:
  const uint64_t seed_;
  std::mt19937_64 engine_;
};

}  // namespace agspeed
