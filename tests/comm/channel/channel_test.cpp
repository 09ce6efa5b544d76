// SPDX-License-Identifier: Apache-2.0
// Both ends of a channel in one thread, over loopback addresses: which receive gets which message, requests and their
// pool, and the effects of a close on the other end.
#include "comm/channel/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "tests/comm/network/network_group.h"

namespace agspeed::comm::channel {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

Bytes filled(size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

class ChannelTest : public testing::Test, public ControlLine::Owner {
 protected:
  ChannelTest() {
    listener_->introduce({1, 4242, "node1", connector_->record()});
    connector_->introduce({2, 4343, "node2", listener_->record()});
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    sender_ = makeEnd(*connector_, Channel::Direction::kSend, ends[0]);
    receiver_ = makeEnd(*listener_, Channel::Direction::kReceive, ends[1]);
  }

  ChannelRequest* send(Bytes& message, int tag = 0) { return sender_->send(message, tag); }
  ChannelRequest* receive(Bytes& target, int tag = 0) {
    return receiver_->receive(std::array{ReceiveTarget{target, tag}});
  }

  /// Drives both ends until the request has completed. Writes the sizes of its messages to sizes_.
  Status wait(Channel& channel, ChannelRequest* request) {
    std::optional<Status> status;
    const bool isDone = drive([&] { return (status = channel.test(*request, sizes_.data())).has_value(); });
    return isDone ? *status : internalError("the request has no end");
  }
  Status waitSent(ChannelRequest* request) { return wait(*sender_, request); }
  Status waitReceived(ChannelRequest* request) { return wait(*receiver_, request); }
  bool drive(const std::function<bool()>& isDone) {
    const io::Clock::time_point limit = io::Clock::now() + std::chrono::seconds(20);
    while (!isDone()) {
      if (io::Clock::now() > limit) return false;
      poller_.wait(io::Clock::now() + milliseconds(1));
      if (connector_ != nullptr) connector_->progress();
      listener_->progress();
    }
    return true;
  }
  /// Ends the sender's process as far as the listener sees it.
  void endSender() {
    sender_.reset();
    connector_.reset();
  }
  /// Calls countLosses(), as a domain does in each turn. Returns the number of lost connections that the listener has
  /// counted.
  uint64_t numLosses() {
    listener_->countLosses();
    InterfaceTraffic traffic;
    listener_->addTraffic(network::loopbackOptions(0, 2, 1).rails, std::span(&traffic, 1));
    return traffic.numLosses;
  }

  io::Poller poller_;
  std::unique_ptr<Association> connector_ = open(Association::Role::kConnector);
  std::unique_ptr<Association> listener_ = open(Association::Role::kListener);
  std::unique_ptr<Channel> sender_, receiver_;
  std::array<int, ChannelRequest::kMaxParts> sizes_{};
  bool readsLines_ = true;

 private:
  std::unique_ptr<Association> open(Association::Role role) {
    return Association::open(poller_, network::loopbackOptions(0, 2, 1), role, 1).value();
  }
  std::unique_ptr<Channel> makeEnd(Association& association, Channel::Direction direction, int descriptor) {
    auto line = std::make_unique<ControlLine>(poller_, tcp::Socket(descriptor), 64, *this);
    return std::make_unique<Channel>(association, direction, 1, std::move(line));
  }
  void lineChanged() override {
    if (!readsLines_) return;
    for (Channel* channel : {sender_.get(), receiver_.get()}) {
      if (channel != nullptr) channel->readLine();
    }
  }
};

TEST_F(ChannelTest, MessagesOfATagMatchInOrder) {
  Bytes first = filled(10, 1), second = filled(20, 2), other = filled(30, 3);
  for (ChannelRequest* request : {send(first, 5), send(second, 5), send(other, 6)})
    ASSERT_TRUE(waitSent(request).isOk());
  Bytes target(100);
  for (const auto& [tag, message] : {std::pair(6, &other), std::pair(5, &first), std::pair(5, &second)}) {
    ASSERT_TRUE(waitReceived(receive(target, tag)).isOk());
    EXPECT_EQ(static_cast<size_t>(sizes_[0]), message->size()) << "a message may be shorter than its target";
    EXPECT_TRUE(std::equal(message->begin(), message->end(), target.begin()));
  }
}

TEST_F(ChannelTest, ReceivesOfAGroupCompleteTogether) {
  Bytes small(10), large(300000), message = filled(10, 1), longMessage = filled(300000, 2);
  ChannelRequest* group = receiver_->receive(std::array{ReceiveTarget{small, 1}, ReceiveTarget{large, 2}});
  ASSERT_TRUE(waitSent(send(message, 1)).isOk());
  ASSERT_TRUE(drive([&] { return small == message; }));
  EXPECT_FALSE(receiver_->test(*group, sizes_.data()).has_value()) << "half of the group has arrived";
  ChannelRequest* second = send(longMessage, 2);
  ASSERT_TRUE(waitReceived(group).isOk());
  EXPECT_EQ(sizes_[0], 10);
  EXPECT_EQ(sizes_[1], 300000);
  EXPECT_EQ(large, longMessage);
  EXPECT_TRUE(waitSent(second).isOk());
}

TEST_F(ChannelTest, ACompletedRequestIsUsedAgain) {
  Bytes target(10), message = filled(10, 1);
  std::vector<ChannelRequest*> requests;
  while (ChannelRequest* request = receive(target)) requests.push_back(request);
  EXPECT_EQ(requests.size(), 32u);
  ASSERT_TRUE(waitSent(send(message)).isOk());
  ASSERT_TRUE(waitReceived(requests[0]).isOk());
  EXPECT_EQ(receiver_->test(*requests[0], nullptr)->code(), StatusCode::kInvalidArgument) << "it is in the pool";
  EXPECT_EQ(receive(target), requests[0]);
  EXPECT_EQ(receive(target), nullptr);
}

TEST_F(ChannelTest, AReceiverGetsAllMessagesOfASenderThatHasClosed) {
  Bytes first = filled(10, 1), second = filled(300000, 2), target(300000);
  ChannelRequest* sent = send(first);
  ChannelRequest* received = receive(target);
  ASSERT_TRUE(waitSent(sent).isOk() && waitReceived(received).isOk());
  received = receive(target);
  ASSERT_TRUE(waitSent(send(second)).isOk());
  sender_->close();
  EXPECT_TRUE(waitReceived(received).isOk());
  EXPECT_EQ(target, second);
  const Status status = waitReceived(receive(target));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("process 4242 on node1"));
}

TEST_F(ChannelTest, ASenderFailsWhenTheReceiverHasClosed) {
  Bytes message = filled(300000, 1);
  ChannelRequest* waiting = send(message);
  receiver_->close();
  for (ChannelRequest* request : {waiting, send(message)}) {
    const Status status = waitSent(request);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("process 4343 on node2"));
  }
}

TEST_F(ChannelTest, AClosedEndFailsItsRequestsAndLeavesTheirBytes) {
  Bytes message = filled(10, 1), target(10);
  ChannelRequest* request = receive(target);
  receiver_->close();
  const std::optional<Status> status = receiver_->test(*request, nullptr);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code(), StatusCode::kUnavailable);
  (void)send(message);
  EXPECT_TRUE(drive([&] { return !connector_->hasUnsent(); }));
  EXPECT_THAT(target, Each(std::byte{0}));
}

TEST_F(ChannelTest, ALostConnectionCountsWhileTheChannelIsOpen) {
  Bytes message = filled(10, 1), target(10);
  ASSERT_TRUE(waitSent(send(message)).isOk() && waitReceived(receive(target)).isOk());
  EXPECT_EQ(numLosses(), 0u);
  readsLines_ = false;  // as if the sender had ended without a farewell
  endSender();
  EXPECT_TRUE(drive([&] { return numLosses() > 0; }));
}

TEST_F(ChannelTest, ALostConnectionDoesNotCountAfterAnEndHasClosedTheChannel) {
  Bytes message = filled(10, 1), target(10);
  ASSERT_TRUE(waitSent(send(message)).isOk() && waitReceived(receive(target)).isOk());
  sender_->close();
  EXPECT_EQ(waitReceived(receive(target)).code(), StatusCode::kUnavailable) << "the farewell has arrived";
  endSender();
  int numTurns = 0;
  EXPECT_TRUE(drive([&] { return ++numTurns == 200 || numLosses() > 0; }));
  EXPECT_EQ(numLosses(), 0u);
}

TEST_F(ChannelTest, AnAssociationIsUsedWhileItHasOpenChannels) {
  EXPECT_TRUE(connector_->isUsed());
  sender_->close();
  sender_->close();
  EXPECT_FALSE(connector_->isUsed());
  EXPECT_NE(sender_->takeLine(), nullptr);
  EXPECT_EQ(sender_->takeLine(), nullptr);
}

}  // namespace
}  // namespace agspeed::comm::channel
