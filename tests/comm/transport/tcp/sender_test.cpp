// SPDX-License-Identifier: Apache-2.0
// A sender, and the peer's end of its connection, which the test simulates: the handshake, frames that wait, frames
// that the kernel does not accept, and the reasons for which a connection is lost.
#include "comm/transport/tcp/sender.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace agspeed::comm::tcp {
namespace {

using std::chrono::milliseconds;

constexpr int kPeer = 1;

class SenderTest : public testing::TestWithParam<security::Protection>, public Sender::Owner {
 protected:
  SenderTest() {
    address_.address = *topology::parseIpAddress("127.0.0.1");
    listener_ = Socket::listen(address_).value();
  }

  void connect() {
    sender_ = std::make_unique<Sender>(poller_, Socket::connect(address_.address, "", address_).value(),
                                       wire::Initiator({GetParam(), 0, 0, kPeer}, secret_), GetParam(), kPeer, *this);
  }
  /// Accepts the sender's connection, and reads its request.
  std::optional<wire::Responder> accept() {
    wire::RequestBytes request;
    const bool isAccepted = drive([&] {
      if (std::optional<Socket> socket = listener_.accept()) peer_ = std::move(*socket);
      return peer_.isOpen();
    });
    return isAccepted && read(request) ? wire::Responder::answer(request, secret_) : std::nullopt;
  }
  /// Connects, and answers the handshake.
  void establish() {
    connect();
    const std::optional<wire::Responder> responder = accept();
    ASSERT_TRUE(responder);
    write(responder->reply());
    wire::ConfirmBytes confirm;
    ASSERT_TRUE(read(confirm));
    EXPECT_TRUE(responder->isConfirmedBy(confirm));
    opener_.emplace(GetParam(), responder->frameKey());
    ASSERT_TRUE(drive([&] { return sender_->isUp(); }));
  }

  static transport::OutgoingFrame frameOf(uint64_t sequence, const std::vector<std::byte>& payload,
                                          bool mayWait = false) {
    transport::OutgoingFrame frame;
    frame.header.kind = wire::FrameKind::kEager;
    frame.header.id = {1, 2, sequence};
    frame.header.total = frame.header.length = static_cast<uint32_t>(payload.size());
    frame.payload = payload;
    frame.mayWait = mayWait;
    return frame;
  }
  static std::vector<std::byte> payloadOf(size_t size, int value) {
    return std::vector<std::byte>(size, static_cast<std::byte>(value));
  }

  /// Reads the next frame, checks its seals, and expects this number and payload.
  void expectFrame(uint64_t sequence, const std::vector<std::byte>& payload) {
    std::array<std::byte, wire::kHeaderBytes> encoded;
    std::vector<std::byte> tag(tagBytes(GetParam())), found(payload.size());
    ASSERT_TRUE(read(encoded) && read(tag));
    ASSERT_TRUE(opener_->verify(encoded, tag));
    const std::optional<wire::FrameHeader> header = wire::decodeHeader(encoded);
    ASSERT_TRUE(header);
    EXPECT_EQ(header->id.sequence, sequence);
    ASSERT_EQ(header->length, payload.size());
    ASSERT_TRUE(read(found) && read(tag));
    const bool isEncrypted = GetParam() == security::Protection::kEncrypted;
    ASSERT_TRUE(isEncrypted ? opener_->decrypt(found, tag) : opener_->verify(found, tag));
    EXPECT_TRUE(found == payload) << "frame " << sequence;
  }

  /// Fills `target` with the sender's bytes. Returns false if they do not come.
  bool read(std::span<std::byte> target) {
    size_t numRead = 0;
    return drive([&] {
      if (numRead == target.size()) return true;
      const iovec part = {target.data() + numRead, target.size() - numRead};
      numRead += peer_.read(std::span(&part, 1)).numBytes;
      return numRead == target.size();
    });
  }
  void write(ByteView bytes) {
    const iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    ASSERT_EQ(peer_.write(std::span(&part, 1)).numBytes, bytes.size());
  }
  bool drive(const std::function<bool()>& isDone) {
    const io::Clock::time_point limit = io::Clock::now() + std::chrono::seconds(20);
    while (!isDone()) {
      if (io::Clock::now() > limit) return false;
      poller_.wait(io::Clock::now() + milliseconds(1));
    }
    return true;
  }
  bool isLost() {
    return drive([&] { return lossCause_.has_value(); });
  }

  io::Poller poller_;
  rendezvous::RailAddress address_;
  Socket listener_, peer_;
  const security::Digest secret_{std::byte{7}};
  std::optional<security::Opener> opener_;
  std::unique_ptr<Sender> sender_;
  int numWritable_ = 0;
  std::optional<transport::LossCause> lossCause_;
  std::string why_;

 private:
  void senderWritable(int peer) override {
    EXPECT_EQ(peer, kPeer);
    ++numWritable_;
  }
  void senderStalled(int, transport::LossCause, const std::string&) override {}
  void senderLost(int peer, transport::LossCause cause, const std::string& why) override {
    EXPECT_EQ(peer, kPeer);
    EXPECT_FALSE(lossCause_) << "it was lost before";
    lossCause_ = cause;
    why_ = why;
  }
};

TEST_P(SenderTest, FramesMayBeSentAfterTheHandshake) {
  establish();
  EXPECT_TRUE(sender_->canSend() && sender_->isEstablished());
  EXPECT_EQ(numWritable_, 1);
  const std::vector<std::byte> payload = payloadOf(3000, 5);
  sender_->send(frameOf(0, payload));
  expectFrame(0, payload);
  EXPECT_TRUE(sender_->isEmpty());
}

TEST_P(SenderTest, NoFrameMayBeSentBeforeTheReply) {
  connect();
  ASSERT_TRUE(accept());
  EXPECT_FALSE(sender_->canSend() || sender_->isEstablished());
  EXPECT_EQ(numWritable_, 0);
}

TEST_P(SenderTest, APeerThatDoesNotProveTheSecretIsRefused) {
  connect();
  const std::optional<wire::Responder> responder = accept();
  ASSERT_TRUE(responder);
  wire::ReplyBytes reply = responder->reply();
  reply.back() ^= std::byte{1};
  write(reply);
  ASSERT_TRUE(isLost());
  EXPECT_EQ(lossCause_, transport::LossCause::kCorrupted);
  EXPECT_FALSE(sender_->canSend());
}

TEST_P(SenderTest, AClosedPortIsReported) {
  listener_.close();
  connect();
  ASSERT_TRUE(isLost());
  EXPECT_EQ(lossCause_, transport::LossCause::kRefused);
}

TEST_P(SenderTest, AConnectionThatThePeerClosesIsLost) {
  establish();
  peer_.close();
  ASSERT_TRUE(isLost());
  EXPECT_EQ(lossCause_, transport::LossCause::kClosed);
}

TEST_P(SenderTest, BytesFromTheReceivingEndAreCorruption) {
  establish();
  std::array<std::byte, 1> byte{};
  write(byte);
  ASSERT_TRUE(isLost());
  EXPECT_EQ(lossCause_, transport::LossCause::kCorrupted);
}

TEST_P(SenderTest, AGivenUpConnectionReportsItsReason) {
  establish();
  sender_->giveUp("no carrier");
  EXPECT_EQ(lossCause_, transport::LossCause::kUnreachable);
  EXPECT_EQ(why_, "no carrier");
}

TEST_P(SenderTest, AFrameThatMayWaitLeavesWithTheNext) {
  establish();
  const std::vector<std::byte> first = payloadOf(100, 1), second = payloadOf(200, 2);
  sender_->send(frameOf(0, first, true));
  EXPECT_FALSE(sender_->isEmpty());
  EXPECT_EQ(sender_->numBytes(), 0u);
  sender_->send(frameOf(1, second));
  EXPECT_TRUE(sender_->isEmpty());
  expectFrame(0, first);
  expectFrame(1, second);
}

TEST_P(SenderTest, AFlushWritesFramesThatWait) {
  establish();
  const std::vector<std::byte> payload = payloadOf(100, 1);
  sender_->send(frameOf(0, payload, true));
  sender_->flush();
  EXPECT_TRUE(sender_->isEmpty());
  expectFrame(0, payload);
}

TEST_P(SenderTest, ACancelledPayloadIsNotReadAgain) {
  establish();
  std::vector<std::byte> payload = payloadOf(3000, 1);
  const std::vector<std::byte> before = payload;
  sender_->send(frameOf(0, payload, true));
  sender_->cancelSend(payload);
  std::ranges::fill(payload, std::byte{9});
  sender_->flush();
  expectFrame(0, before);
}

TEST_P(SenderTest, AFullConnectionBecomesWritableWhenThePeerReads) {
  establish();
  const std::vector<std::byte> payload = payloadOf(wire::kMaxPayloadBytes, 3);
  uint64_t numSent = 0;
  for (; sender_->canSend(); ++numSent) sender_->send(frameOf(numSent, payload));
  EXPECT_FALSE(sender_->isEmpty());
  const int before = numWritable_;
  for (uint64_t i = 0; i < numSent; ++i) ASSERT_NO_FATAL_FAILURE(expectFrame(i, payload));
  ASSERT_TRUE(drive([&] { return sender_->canSend(); }));
  EXPECT_GT(numWritable_, before);
  EXPECT_TRUE(sender_->isEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, SenderTest,
                         testing::Values(security::Protection::kIntegrity, security::Protection::kAuthenticated,
                                         security::Protection::kEncrypted),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace agspeed::comm::tcp
