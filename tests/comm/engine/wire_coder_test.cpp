// SPDX-License-Identifier: Apache-2.0
// The decision which messages are coded, with a messenger that states the rate of the network.
#include "comm/engine/wire_coder.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "tests/comm/messaging/fake_messenger.h"

namespace agspeed::comm::engine {
namespace {

class Network final : public messaging::FakeMessenger {
 public:
  explicit Network(double rate) : messaging::FakeMessenger(2), rate_(rate) {}
  bool isRemote(int peer) const override { return peer == 1; }
  double bytesPerSecond() const override { return rate_; }

 private:
  const double rate_;
};

using Bytes = std::vector<std::byte>;

Bytes floats(size_t count, bool areRandomBits) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  Bytes bytes(count * 4);
  for (size_t i = 0; i < count; ++i) {
    const float value = areRandomBits ? std::bit_cast<float>(static_cast<uint32_t>(random())) : normal(random);
    std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  return bytes;
}

size_t encodedBytes(WireCoder& coder, const Bytes& values) {
  Bytes target(values.size());
  return coder.encode(target, values, DType::kF32);
}

TEST(WireCoder, CodesFloatsOnSlowNetworksOnly) {
  const Bytes values = floats(32768, false);
  for (const auto& [rate, isCoded] : {std::pair{1e6, true}, {25e6, true}, {1e11, false}, {0.0, false}}) {
    SCOPED_TRACE(rate);
    const Network network(rate);
    WireCoder coder(network, WireCoding::kAuto);
    EXPECT_EQ(coder.isWanted(1, values, DType::kF32) && encodedBytes(coder, values) > 0, isCoded);
  }
}

TEST(WireCoder, RandomBitsAreSentAsTheyAre) {
  const Network network(1e6);
  for (const WireCoding coding : {WireCoding::kAuto, WireCoding::kOn}) {
    WireCoder coder(network, coding);
    const Bytes values = floats(32768, true);
    EXPECT_FALSE(coder.isWanted(1, values, DType::kF32));
    EXPECT_EQ(encodedBytes(coder, values), 0u);
    EXPECT_EQ(coder.counters().numValueBytes, 0u);
  }
}

TEST(WireCoder, NothingIsCodedForRanksOfThisHostOrIfItIsOff) {
  const Network network(1e6);
  const Bytes values = floats(32768, false);
  EXPECT_FALSE(WireCoder(network, WireCoding::kOn).isWanted(0, values, DType::kF32));
  EXPECT_FALSE(WireCoder(network, WireCoding::kOff).isWanted(1, values, DType::kF32));
  EXPECT_TRUE(WireCoder(network, WireCoding::kOn).isWanted(1, values, DType::kF32));
}

TEST(WireCoder, CodesAreDecodedAndCounted) {
  const Network network(0);
  WireCoder coder(network, WireCoding::kOn);
  const Bytes values = floats(32768, false);
  Bytes code(values.size()), found(values.size());
  code.resize(coder.encode(code, values, DType::kF32));
  ASSERT_GT(code.size(), 0u);
  EXPECT_EQ(coder.counters().numValueBytes, values.size());
  EXPECT_EQ(coder.counters().numCodeBytes, code.size());
  ASSERT_TRUE(coder.decode(found, code, DType::kF32).isOk());
  EXPECT_EQ(found, values);
  code.pop_back();
  EXPECT_EQ(coder.decode(found, code, DType::kF32).code(), StatusCode::kDataLoss);
}

TEST(WireCoder, ShortMessagesAndOtherTypesAreNotCodable) {
  EXPECT_TRUE(WireCoder::isCodable(DType::kBF16, 65536));
  EXPECT_FALSE(WireCoder::isCodable(DType::kBF16, 1024));
  EXPECT_FALSE(WireCoder::isCodable(DType::kI64, 65536));
  EXPECT_FALSE(WireCoder::isCodable(DType::kF64, 65536));
}

}  // namespace
}  // namespace agspeed::comm::engine
