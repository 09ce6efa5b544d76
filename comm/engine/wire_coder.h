// SPDX-License-Identifier: Apache-2.0
// WireCoder: decides which messages of collectives are sent to other hosts compressed, as a lossless code
// (comm/compress/lossless.h). It also encodes and decodes them.
//
// The sender alone decides. A receiver recognizes a code by its length, because a code is always shorter than the
// values. So ranks need not agree on anything. Each rank codes messages if its network is slow compared with its
// processor.
//
// Threading: all functions run on the engine's driver, but counters() may be called while no thread drives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/engine/driver_load.h"
#include "comm/messaging/messenger.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace agspeed::comm::engine {

enum class WireCoding : uint8_t {
  kOff,   ///< no message is coded
  kAuto,  ///< a message is coded if the code saves more network time than coding and decoding take
  kOn,    ///< every message that becomes shorter is coded
};

class WireCoder {
 public:
  WireCoder(const messaging::Messenger& messenger, WireCoding coding) : messenger_(messenger), coding_(coding) {}

  /// Whether messages of this type and length may be coded. Both ends of a message get the same answer.
  static bool isCodable(DType dtype, size_t numBytes);

  /// Whether to call encode() for this message to `peer`. Takes some microseconds: it codes a few samples of the
  /// values. Requires: isCodable().
  bool isWanted(int peer, std::span<const std::byte> values, DType dtype);
  /// Encodes the values into `target`. Returns the length of the code, which is shorter than the values; 0: send the
  /// values, because their code would not be shorter. Requires: isCodable(); `target` is as long as `values`.
  size_t encode(std::span<std::byte> target, std::span<const std::byte> values, DType dtype);
  /// Decodes a received message. Fails as data loss if it is not a code.
  Status decode(std::span<std::byte> values, std::span<const std::byte> code, DType dtype);

  struct Counters {
    uint64_t numValueBytes = 0;  ///< the length of the values that were coded
    uint64_t numCodeBytes = 0;   ///< the length of the codes of these values
  };
  const Counters& counters() const { return counters_; }

 private:
  /// Whether coding saves time if the values are `ratio` times as long as their code.
  bool paysAt(double ratio) const;

  const messaging::Messenger& messenger_;
  const WireCoding coding_;
  Counters counters_;
  DriverLoad load_;
  // Average processor seconds per byte of values in recent measurements; before the first measurement, the usual cost.
  // The usual costs were measured in all-reduces on an AMD EPYC with AVX2 (benchmark case comm/coded-4).
  double encodeCost_ = kUsualEncodeCost;
  double decodeCost_ = kUsualDecodeCost;

  static constexpr double kUsualEncodeCost = 0.6e-9, kUsualDecodeCost = 0.4e-9;
};

}  // namespace agspeed::comm::engine
