// SPDX-License-Identifier: Apache-2.0
// The worked examples of frame_format.md, encoded and decoded.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/wire/frame_format.h"
#include "comm/wire/handshake.h"

namespace agspeed::comm::wire {
namespace {

using Bytes = std::vector<std::byte>;

/// Appends the bytes at the beginning of a line, up to the two spaces before its explanation.
void appendHex(const std::string& line, Bytes& bytes) {
  std::istringstream words(line.substr(0, line.find("  ")));
  for (std::string word; words >> word;) bytes.push_back(std::byte(std::stoi(word, nullptr, 16)));
}

/// Returns the block of hexadecimal bytes that follows the heading.
Bytes exampleOf(const std::string& heading) {
  std::ifstream file(AG_FRAME_FORMAT_MD);
  std::string line;
  while (std::getline(file, line) && line != heading) continue;
  while (std::getline(file, line) && line != "```") continue;
  Bytes bytes;
  while (std::getline(file, line) && line != "```") appendHex(line, bytes);
  return bytes;
}

struct FrameExample {
  FrameHeader header;
  Bytes payload;
};

FrameExample frameExample() {
  const ByteView text = security::bytesOf("hello");
  FrameHeader header;
  header.kind = FrameKind::kEager;
  header.length = 5;
  header.epoch = 2;
  header.id = {.communicator = 3, .step = 4, .sequence = 7};
  header.total = 5;
  header.number = 9;
  header.acknowledged = 6;
  header.consumed = 1024;
  return {header, Bytes(text.begin(), text.end())};
}

TEST(FrameFormatExamples, AFrameIsEncodedAsDescribed) {
  const auto [header, payload] = frameExample();
  constexpr size_t kTagBytes = tagBytes(security::Protection::kIntegrity);
  security::Sealer sealer(security::Protection::kIntegrity, security::SealKey{});
  Bytes frame(kHeaderBytes + kTagBytes + payload.size() + kTagBytes);
  const auto head = std::span(frame).first<kHeaderBytes>();
  encodeHeader(header, head);
  sealer.sign(head, std::span(frame).subspan(kHeaderBytes, kTagBytes));
  std::copy(payload.begin(), payload.end(), frame.begin() + kHeaderBytes + kTagBytes);
  sealer.sign(payload, std::span(frame).last(kTagBytes));
  EXPECT_EQ(frame, exampleOf("## Worked example: a frame"));
}

TEST(FrameFormatExamples, AFrameIsDecodedAsDescribed) {
  const Bytes frame = exampleOf("## Worked example: a frame");
  ASSERT_EQ(frame.size(), kHeaderBytes + 4 + 5 + 4);
  security::Opener opener(security::Protection::kIntegrity, security::SealKey{});
  const auto head = std::span(frame).first<kHeaderBytes>();
  EXPECT_TRUE(opener.verify(head, std::span(frame).subspan(kHeaderBytes, 4)));
  EXPECT_TRUE(opener.verify(std::span(frame).subspan(kHeaderBytes + 4, 5), std::span(frame).last(4)));
  const std::optional<FrameHeader> found = decodeHeader(head);
  ASSERT_TRUE(found);
  const FrameHeader wanted = frameExample().header;
  EXPECT_EQ(found->kind, wanted.kind);
  EXPECT_EQ(found->epoch, wanted.epoch);
  EXPECT_EQ(found->id, wanted.id);
  EXPECT_EQ(found->total, wanted.total);
  EXPECT_EQ(found->number, wanted.number);
  EXPECT_EQ(found->acknowledged, wanted.acknowledged);
  EXPECT_EQ(found->consumed, wanted.consumed);
}

TEST(FrameFormatExamples, ARequestIsDecodedAndAnsweredAsDescribed) {
  const Bytes example = exampleOf("## Worked example: a request");
  ASSERT_EQ(example.size(), kRequestBytes);
  const auto request = std::span(example).first<kRequestBytes>();
  const Claim claim = {.protection = security::Protection::kAuthenticated, .epoch = 2, .from = 1, .to = 0};
  EXPECT_EQ(readClaim(request), claim);
  security::Digest secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = std::byte(i);
  EXPECT_TRUE(Responder::answer(request, secret)) << "the proof is that of the secret";
  const RequestBytes own = Initiator(claim, secret).request();
  constexpr size_t kClaimBytes = kRequestBytes - kNonceBytes - security::kDigestBytes;
  EXPECT_TRUE(std::equal(own.begin(), own.begin() + kClaimBytes, request.begin())) << "all before the nonce";
}

}  // namespace
}  // namespace agspeed::comm::wire
