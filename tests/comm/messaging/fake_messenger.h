// SPDX-License-Identifier: Apache-2.0
// A messenger without a network. Tests override its functions to determine how a transfer ends.
#pragma once

#include "comm/messaging/messenger.h"

namespace agspeed::comm::messaging {

/// Rank 0 of `size` ranks. Every transfer succeeds as soon as it starts, and no unexpected message ever arrives.
class FakeMessenger : public Messenger {
 public:
  explicit FakeMessenger(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  void send(Transfer& transfer) override { transfer.finished({}); }
  void receive(Transfer& transfer) override {
    transfer.numReceived = transfer.bytes.size();
    transfer.finished({});
  }
  void cancel(Transfer& transfer, const Status& reason) override { transfer.finished(reason); }
  void dropCommunicator(uint32_t) override {}
  bool probe(int, const wire::MessageId&) const override { return false; }
  uint64_t numBytesMoved(const Transfer&) const override { return 0; }
  bool progress(io::Clock::time_point) override { return false; }
  bool hasUnsent() const override { return false; }
  double bytesPerSecond() const override { return 0; }
  bool isRemote(int) const override { return false; }
  double roundTripSeconds(int) const override { return 0; }
  uint32_t host() const override { return 0; }
  void wake() override {}

 private:
  const int size_;
};

}  // namespace agspeed::comm::messaging
