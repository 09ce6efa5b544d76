// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/stream_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <vector>

#include "comm/rendezvous/store_server.h"
#include "tests/fuzz/random_bytes.h"

namespace agspeed::comm::rendezvous {
namespace {

using testing::AllOf;
using testing::HasSubstr;

security::JobKey keyOf(char letter) { return security::JobKey(32, static_cast<std::byte>(letter)); }

StoreAddress addressOf(uint16_t port) { return StoreAddress::parse("127.0.0.1:" + std::to_string(port)).value(); }

std::unique_ptr<StoreServer> serve(uint16_t port = 0) {
  return StoreServer::start(addressOf(port), keyOf('k')).value();
}

std::chrono::steady_clock::time_point soon() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

std::unique_ptr<StreamStore> connect(const StoreServer& server) {
  return StreamStore::connect(addressOf(server.port()), keyOf('k'), soon()).value();
}

/// A connection of a peer that does not know the protocol.
io::FileDescriptor unauthenticatedPeer(const StoreServer& server) {
  const StoreAddress address = addressOf(server.port());
  io::FileDescriptor socket = address.socket();
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.system), address.systemBytes), 0);
  return socket;
}

TEST(StreamStore, SharesOneStoreAmongAllClientsAndTheServersProcess) {
  const auto server = serve();
  const auto one = connect(*server), other = connect(*server);
  ASSERT_TRUE(one->set("key", std::string(Store::kMaxValueBytes, 'x')).isOk());
  EXPECT_EQ(*other->tryGet("key"), std::string(Store::kMaxValueBytes, 'x'));
  EXPECT_EQ(*server->store()->add("count", 2), 2);
  EXPECT_EQ(*other->add("count", -5), -3);
  EXPECT_EQ((*one->reader()({"key", "none"})).size(), 2u);
}

TEST(StreamStore, AServerWithAnotherKeyIsRefusedAtOnceAndRefuses) {
  const auto server = serve();
  const auto refused = StreamStore::connect(addressOf(server->port()), keyOf('z'), soon());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("127.0.0.1"), HasSubstr("has another job key")));
  EXPECT_TRUE(connect(*server)->set("key", "still served").isOk());
}

TEST(StreamStore, WithoutAKeyNothingIsServed) {
  EXPECT_THAT(StoreServer::start(addressOf(0), {}).status().message(), HasSubstr("needs a job key"));
  EXPECT_THAT(StreamStore::connect(addressOf(9), {}, soon()).status().message(), HasSubstr("AGSPEED_JOB_KEY_FILE"));
}

TEST(StreamStore, UnauthenticatedPeersDisturbNoRank) {
  const auto server = serve();
  const auto client = connect(*server);
  std::mt19937 random(1);
  std::vector<io::FileDescriptor> others;
  for (int i = 0; i < 40; ++i) {
    others.push_back(unauthenticatedPeer(*server));
    std::vector<uint8_t> bytes(random() % 300);
    for (uint8_t& each : bytes) each = static_cast<uint8_t>(random());
    if (!bytes.empty()) send(others.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_EQ(*client->add("count", 1), i + 1);
  }
  EXPECT_TRUE(connect(*server)->set("key", "served beside them").isOk());
}

TEST(StreamStore, UnauthenticatedPeersThatSendNothingKeepNoRankOut) {
  const auto server = serve();
  std::vector<io::FileDescriptor> others;
  for (int i = 0; i < 300; ++i) others.push_back(unauthenticatedPeer(*server));
  EXPECT_TRUE(connect(*server)->set("key", "served beside them").isOk());
}

TEST(StreamStore, WaitsForAServerThatComesLaterAndForOneThatComesBack) {
  const uint16_t port = serve()->port();  // the server ends at once, so its port is free again
  std::unique_ptr<StoreServer> server;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server = serve(port);
  });
  const auto client = StreamStore::connect(addressOf(port), keyOf('k'), soon());
  late.join();
  ASSERT_TRUE(client.hasValue()) << client.status().toString();
  ASSERT_TRUE((*client)->set("key", "value").isOk());
  server = nullptr;
  EXPECT_EQ((*client)->tryGet("key").status().code(), StatusCode::kUnavailable);
  EXPECT_THAT((*client)->tryGet("key").status().message(), HasSubstr("no process serves a store at 127.0.0.1"));
  server = serve(port);
  EXPECT_EQ(*(*client)->tryGet("key"), std::nullopt);
}

TEST(StreamStore, GivesUpAtTheDeadline) {
  const uint16_t port = serve()->port();
  const auto client = StreamStore::connect(addressOf(port), keyOf('k'), std::chrono::steady_clock::now());
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
}

TEST(StreamStore, TakesNoMoreThanTheStoreHolds) {
  const auto server = serve();
  const auto client = connect(*server);
  EXPECT_EQ(client->set("key", std::string(Store::kMaxValueBytes + 1, 'x')).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client->add(std::string(5000, 'k'), 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(client->set("key", "").isOk());
  EXPECT_EQ(*client->tryGet("key"), "");
}

TEST(StoreChannel, WhatIsChangedRepeatedOrSentBackDoesNotOpen) {
  const security::SealKey key = {};
  StoreChannel client(key, StoreChannel::End::kClient), server(key, StoreChannel::End::kServer);
  const StoreBytes request = client.seal(encode(StoreRequest{.key = "key", .value = "value"}));
  StoreBytes arrived = request, back = request;
  EXPECT_FALSE(StoreChannel(key, StoreChannel::End::kClient).take(back).hasValue());
  const auto body = server.take(arrived);
  ASSERT_TRUE(body.hasValue() && body->has_value() && arrived.empty());
  EXPECT_EQ(decodeStoreRequest(**body)->value, "value");
  arrived = request;
  EXPECT_FALSE(server.take(arrived).hasValue());
  for (size_t i = 0; i < request.size(); ++i) {
    StoreBytes changed = request;
    changed[i] ^= std::byte{1};
    StoreChannel other(key, StoreChannel::End::kServer);
    const auto taken = other.take(changed);
    EXPECT_FALSE(taken.hasValue() && taken->has_value()) << "byte " << i;
  }
}

TEST(StoreProtocol, NoBytesAreReadBeyondTheirEnd) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const StoreBytes good = encode(StoreRequest{.operation = StoreRequest::Operation::kSet, .key = "abc", .value = "d"});
  for (size_t size = 0; size < good.size(); ++size) decodeStoreRequest(std::span(good).first(size));
  for (int i = 0; i < fuzzCount(10000); ++i) {
    StoreBytes bytes(random() % 40);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random() % 8);
    decodeStoreRequest(bytes);
    decodeStoreReply(bytes);
  }
  EXPECT_EQ(decodeStoreRequest(good)->key, "abc");
}

TEST(StoreProtocol, AValueThatIsTooLongIsRefused) {
  StoreRequest request = {.operation = StoreRequest::Operation::kSet, .key = "k"};
  request.value.assign(Store::kMaxValueBytes, 'x');
  EXPECT_EQ(decodeStoreRequest(encode(request))->value, request.value);
  request.value += 'x';
  EXPECT_FALSE(decodeStoreRequest(encode(request)).has_value());
}

TEST(StoreAddress, IsAHostAndAPort) {
  EXPECT_EQ(StoreAddress::parse("[::1]:80")->system.ss_family, AF_INET6);
  EXPECT_EQ(StoreAddress::parse("127.0.0.1:80")->system.ss_family, AF_INET);
  for (const char* text : {"", "127.0.0.1", ":80", "host:", "host:x", "host:123456", "host:70000"}) {
    EXPECT_THAT(StoreAddress::parse(text).status().message(), HasSubstr("write HOST:PORT")) << text;
  }
}

}  // namespace
}  // namespace agspeed::comm::rendezvous
