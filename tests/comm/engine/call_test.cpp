// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/call.h"

#include <gtest/gtest.h>

namespace agspeed::comm::engine {
namespace {

std::byte memory[1024];
std::span<std::byte> bytes(size_t size, size_t at = 0) { return std::span(memory).subspan(at, size); }

void expectWrong(const CollectiveCall& call, const std::string& words, int rank = 0) {
  const Status status = validate(call, rank, 2);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(words), std::string::npos) << status.toString();
}

TEST(CollectiveCall, CallsThatFitAreAccepted) {
  EXPECT_TRUE(validate({.collective = schedule::Collective::kBarrier}, 0, 2).isOk());
  EXPECT_TRUE(validate({.collective = schedule::Collective::kBroadcast, .output = {bytes(8)}, .root = 1}, 0, 2).isOk());
  EXPECT_TRUE(validate({.collective = schedule::Collective::kReduce, .input = {bytes(8)}, .root = 1}, 0, 2).isOk());
  EXPECT_TRUE(
      validate({.collective = schedule::Collective::kAllGather, .input = {bytes(8)}, .output = {bytes(8), bytes(4, 8)}},
               0, 2)
          .isOk());
}

TEST(CollectiveCall, WhatDoesNotFitIsASentence) {
  expectWrong({.collective = schedule::Collective::kAllReduce, .input = {bytes(8)}},
              "needs 1 output buffer, and got 0");
  expectWrong({.collective = schedule::Collective::kAllToAll, .input = {bytes(8)}},
              "needs 2 input buffers, one per rank");
  expectWrong(
      {.collective = schedule::Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes(6)}, .output = {bytes(6)}},
      "6 bytes, which is no whole number of f32");
  expectWrong({.collective = schedule::Collective::kAllReduce, .input = {bytes(8)}, .output = {bytes(4)}},
              "must be equal");
  expectWrong({.collective = schedule::Collective::kBroadcast, .output = {bytes(4)}, .root = 2},
              "root 2 is not one of the 2");
  expectWrong({.collective = schedule::Collective::kAllReduce,
               .dtype = DType::kF32,
               .input = {bytes(8)},
               .output = {bytes(8)},
               .op = reduce::ReduceOp::kBitAnd},
              "not defined for tensors of f32");
  expectWrong({.collective = schedule::Collective::kAllGather,
               .input = {bytes(4)},
               .output = {bytes(4), bytes(4, 8)},
               .isContiguous = true},
              "does not lie right behind");
}

TEST(CallSignature, DiffersWhereCallsDiffer) {
  const CollectiveCall call{
      .collective = schedule::Collective::kAllReduce, .dtype = DType::kF32, .input = {bytes(8)}, .output = {bytes(8)}};
  CollectiveCall dtype = call, op = call, size = call;
  dtype.dtype = DType::kI32;
  op.op = reduce::ReduceOp::kMax;
  size.input = size.output = {bytes(12)};
  for (const CollectiveCall& other : {dtype, op, size}) {
    EXPECT_NE(signatureOf(call), signatureOf(other));
    EXPECT_NE(toString(signatureOf(call)), toString(signatureOf(other)));
    EXPECT_NE(extendChain(1, signatureOf(call)), extendChain(1, signatureOf(other)));
  }
  EXPECT_NE(extendChain(1, signatureOf(call)), extendChain(2, signatureOf(call)));
  EXPECT_EQ(toString(signatureOf(call)), "all_reduce(2 x f32, sum)");
}

TEST(CallSignature, IsTheSameAtTheRootAndElsewhere) {
  const CollectiveCall root{
      .collective = schedule::Collective::kBroadcast, .input = {bytes(8)}, .output = {bytes(8)}, .root = 1};
  const CollectiveCall other{.collective = schedule::Collective::kBroadcast, .output = {bytes(8, 8)}, .root = 1};
  EXPECT_EQ(signatureOf(root), signatureOf(other));
}

}  // namespace
}  // namespace agspeed::comm::engine
