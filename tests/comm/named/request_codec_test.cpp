// SPDX-License-Identifier: Apache-2.0
#include "comm/named/request_codec.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/comm/named/requests.h"

namespace agspeed::comm::named {
namespace {

Bytes exampleMessage() {
  Request request = requestFor("layer.weight", {3, 4});
  request.splits = {1, 2};
  request.prescale = 0.5;
  request.priority = -3;
  Response response;
  response.kind = NamedKind::kAllGather;
  response.lastJoined = 2;
  response.evicted = {4, 5};
  response.areKindsDifferent = true;
  response.items.push_back({7, true, std::make_shared<Agreement>(Agreement{request, {{1, 2}, {3}}})});
  response.items.push_back({8, false, nullptr});
  Bytes message;
  encode(request, message);
  encode(CachedRequests{{9, 10, 3, 4000000000}}, message);
  encode(response, message);
  encode(Farewell{true, "rank 1 is lost"}, message);
  encode(Forgotten{{4, 5}}, message);
  return message;
}

TEST(RequestCodec, WhatIsEncodedIsDecoded) {
  const auto notes = decode(exampleMessage());
  ASSERT_TRUE(notes.hasValue()) << notes.status().toString();
  ASSERT_EQ(notes->size(), 5u);
  const auto& request = std::get<Request>((*notes)[0]);
  EXPECT_EQ(request.name, "layer.weight");
  EXPECT_EQ(request.shapes, (std::vector<Dimensions>{{3, 4}}));
  EXPECT_EQ(request.prescale, 0.5);
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(std::get<CachedRequests>((*notes)[1]).ids, (std::vector<uint32_t>{9, 10, 3, 4000000000}));
  const auto& response = std::get<Response>((*notes)[2]);
  EXPECT_EQ(response.items[0].agreement->request, request);
  EXPECT_EQ(response.items[0].agreement->rows, (std::vector<Dimensions>{{1, 2}, {3}}));
  EXPECT_EQ(response.items[0].id, 7u);
  EXPECT_FALSE(response.items[1].isFull);
  EXPECT_EQ(response.items[1].id, 8u);
  EXPECT_EQ(response.evicted, (std::vector<uint32_t>{4, 5}));
  EXPECT_TRUE(response.areKindsDifferent);
  EXPECT_EQ(std::get<Farewell>((*notes)[3]).reason, "rank 1 is lost");
  EXPECT_EQ(std::get<Forgotten>((*notes)[4]).ids, (std::vector<uint32_t>{4, 5}));
}

/// Returns the bytes of the worked example of message_format.md.
Bytes workedExample() {
  std::ifstream file(AG_MESSAGE_FORMAT_MD);
  std::string line;
  while (std::getline(file, line) && line != "## Worked example") continue;
  while (std::getline(file, line) && line != "```") continue;
  Bytes bytes;
  while (std::getline(file, line) && line != "```") {
    std::istringstream words(line.substr(0, line.find("  ")));
    for (std::string word; words >> word;) bytes.push_back(std::byte(std::stoi(word, nullptr, 16)));
  }
  return bytes;
}

TEST(RequestCodec, TheWorkedExampleIsEncodedAndDecodedAsDescribed) {
  const Request request = requestFor("w", {2});
  Bytes message;
  encode(request, message);
  encode(CachedRequests{{1, 2, 5}}, message);
  EXPECT_EQ(message, workedExample());
  const auto notes = decode(workedExample());
  ASSERT_TRUE(notes.hasValue()) << notes.status().toString();
  EXPECT_EQ(std::get<Request>(notes->at(0)), request);
  EXPECT_EQ(std::get<CachedRequests>(notes->at(1)).ids, (std::vector<uint32_t>{1, 2, 5}));
}

TEST(RequestCodec, IdsThatFollowEachOtherTakeAByteEach) {
  CachedRequests few, many;
  for (uint32_t id = 1; id <= 500; ++id) (id <= 100 ? few : many).ids.push_back(id);
  Bytes fewBytes, manyBytes;
  encode(few, fewBytes);
  many.ids.insert(many.ids.begin(), few.ids.begin(), few.ids.end());
  encode(many, manyBytes);
  EXPECT_EQ(manyBytes.size() - fewBytes.size(), 400u);
}

TEST(RequestCodec, CutMessagesAreDataLoss) {
  const Bytes message = exampleMessage();
  size_t numGood = 0;
  for (size_t size = 1; size < message.size(); ++size) {
    const auto notes = decode(std::span(message).first(size));
    if (notes.hasValue()) {
      ++numGood;  // the text ends where a note ends
    } else {
      EXPECT_EQ(notes.status().code(), StatusCode::kDataLoss);
    }
  }
  EXPECT_EQ(numGood, 4u);
}

TEST(RequestCodec, NoBytesMakeItReadOrAllocateBeyondThem) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  const Bytes message = exampleMessage();
  for (int round = 0; round < 2000; ++round) {
    Bytes changed = message;
    for (int i = 0; i < 4; ++i) changed[random() % changed.size()] = static_cast<std::byte>(random());
    const auto notes = decode(changed);
    if (notes.hasValue()) continue;
    EXPECT_EQ(notes.status().code(), StatusCode::kDataLoss) << "seed " << kSeed << " round " << round;
  }
}

}  // namespace
}  // namespace agspeed::comm::named
