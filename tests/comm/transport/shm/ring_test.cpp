// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <vector>

namespace agspeed::comm::shm {
namespace {

/// Both ends, each with its own mapping.
struct Pair {
  Pair() : Pair(SharedMemory::create(sizeof(Ring)).value()) {}
  explicit Pair(SharedMemory memory)
      : reader(SharedMemory::open(memory.descriptor(), sizeof(Ring)).value()),
        raw(SharedMemory::open(memory.descriptor(), sizeof(Ring)).value()),
        writer(std::move(memory)) {}

  Ring& ring() { return *reinterpret_cast<Ring*>(raw.data()); }

  RingReader reader;
  SharedMemory raw;  ///< for tests that write bytes that no correct writer writes
  RingWriter writer;
};

wire::FrameHeader headerOf(size_t length, uint64_t sequence) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kData;
  header.length = static_cast<uint32_t>(length);
  header.total = length;
  header.id.sequence = sequence;
  return header;
}

std::vector<std::byte> patternOf(size_t size, uint64_t salt) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = std::byte((i * 31 + salt * 17 + i / 253) & 255);
  return bytes;
}

TEST(Ring, RecordsOfAllSizesPassWholeAndInOrderAroundTheEnd) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Pair pair;
  std::deque<std::vector<std::byte>> underWay;
  uint64_t numWritten = 0, numRead = 0;
  for (int round = 0; round < 20000; ++round) {
    const size_t size = random() % (random() % 8 == 0 ? 60000 : 300);
    if (random() % 2 == 0 && pair.writer.room() >= RingWriter::kHeadBytes + size + 8) {
      underWay.push_back(patternOf(size, numWritten));
      size == 0 ? pair.writer.cut() : pair.writer.frame(headerOf(size, numWritten), underWay.back());
      ++numWritten;
    } else if (!pair.reader.isEmpty()) {
      const std::optional<Record> record = pair.reader.peek();
      ASSERT_TRUE(record);
      ASSERT_EQ(record->length, underWay.front().size());
      std::vector<std::byte> bytes(record->length);
      pair.reader.copy(*record, bytes);
      ASSERT_EQ(bytes, underWay.front());
      ASSERT_TRUE(bytes.empty() || record->header.id.sequence == numRead);
      (void)pair.reader.pass(*record);
      underWay.pop_front();
      ++numRead;
    }
    (void)pair.writer.readPosition();
  }
  EXPECT_GT(numRead, 1000u);
}

TEST(Ring, AWriterAndAReaderInThreadsOfTheirOwnNeverDisagree) {
  constexpr uint64_t kRecords = 20000;
  Pair pair;
  std::thread writer([&] {
    for (uint64_t i = 0; i < kRecords; ++i) {
      const std::vector<std::byte> bytes = patternOf(1 + i * 7919 % 5000, i);
      while (pair.writer.room() < RingWriter::kHeadBytes + bytes.size() + 8) {
        (void)pair.writer.readPosition();
        std::this_thread::yield();
      }
      pair.writer.frame(headerOf(bytes.size(), i), bytes);
    }
  });
  uint64_t numWrong = 0;
  for (uint64_t i = 0; i < kRecords; ++i) {
    while (pair.reader.isEmpty()) std::this_thread::yield();
    const std::optional<Record> record = pair.reader.peek();
    const std::vector<std::byte> expected = patternOf(1 + i * 7919 % 5000, i);
    std::vector<std::byte> bytes(record ? record->length : 0);
    if (record) pair.reader.copy(*record, bytes);
    numWrong += bytes != expected;
    if (!record) break;
    (void)pair.reader.pass(*record);
  }
  writer.join();
  EXPECT_EQ(numWrong, 0u);
}

TEST(Ring, AnOfferIsEndedByTheQuickerSideOnly) {
  Pair pair;
  const std::vector<std::byte> payload(1000);
  const uint64_t first = pair.writer.position();
  pair.writer.offer(headerOf(1000, 0), payload);
  const uint64_t second = pair.writer.position();
  pair.writer.offer(headerOf(1000, 1), payload);

  Record record = pair.reader.peek().value();
  EXPECT_EQ(record.kind, RecordKind::kOffer);
  EXPECT_EQ(record.address, reinterpret_cast<uintptr_t>(payload.data()));
  EXPECT_TRUE(pair.reader.end(RecordKind::kTaken));
  pair.writer.cancelSend(first);
  EXPECT_EQ(pair.writer.kindAt(first), RecordKind::kTaken);
  (void)pair.reader.pass(record);

  record = pair.reader.peek().value();
  pair.writer.cancelSend(second);
  EXPECT_FALSE(pair.reader.end(RecordKind::kTaken));
  EXPECT_EQ(pair.writer.kindAt(second), RecordKind::kCancelled);
}

TEST(Ring, AWriterIsWokenOnceTheReaderIsFarEnough) {
  Pair pair;
  for (uint64_t i = 0; i < 3; ++i) pair.writer.frame(headerOf(8, i), patternOf(8, i));
  const uint64_t size = pair.writer.position() / 3;
  pair.writer.wakeAt(2 * size);
  EXPECT_FALSE(pair.reader.pass(pair.reader.peek().value()));
  EXPECT_TRUE(pair.reader.pass(pair.reader.peek().value()));
}

TEST(Ring, WhatNoWriterWritesIsNotARecord) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    Pair pair;
    pair.writer.frame(headerOf(100, 1), patternOf(100, 1));
    // Some bytes of the head, or the published length, become random.
    const bool isLengthWrong = random() % 4 == 0;
    if (isLengthWrong) pair.ring().written.store(random() % 3 == 0 ? random() : random() % 300);
    for (int i = 0; !isLengthWrong && i < 4; ++i) pair.ring().bytes[random() % 24] = std::byte(random());
    if (pair.reader.isEmpty()) continue;
    const std::optional<Record> record = pair.reader.peek();
    if (!record) continue;
    ASSERT_LE(record->length, Ring::kBytes);
    std::vector<std::byte> bytes(record->length);
    pair.reader.copy(*record, bytes);
  }
}

TEST(SharedMemory, OnlySealedMemoryOfTheRightSizeIsOpened) {
  const SharedMemory memory = SharedMemory::create(8192).value();
  EXPECT_TRUE(SharedMemory::open(memory.descriptor(), 8192).hasValue());
  EXPECT_FALSE(SharedMemory::open(memory.descriptor(), 4096).hasValue());
  EXPECT_NE(ftruncate(memory.descriptor().get(), 100), 0);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const io::FileDescriptor in(pipes[0]), out(pipes[1]);
  EXPECT_FALSE(SharedMemory::open(in, 0).hasValue());
  const io::FileDescriptor file(open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(file.get(), 8192), 0);
  EXPECT_FALSE(SharedMemory::open(file, 8192).hasValue()) << "its owner may cut it at any time";
}

}  // namespace
}  // namespace agspeed::comm::shm
