// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/control_mailbox.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm::collective {

namespace {

constexpr uint32_t kControlStep = UINT32_MAX;
constexpr int kAtOnce = INT32_MIN;  ///< the priority of work that runs before all other work

}  // namespace

ControlMailbox::ControlMailbox(engine::Engine& engine, ControlListener& listener, std::span<const int> members,
                               int rank, uint32_t communicator)
    : engine_(engine),
      listener_(listener),
      members_(members),
      rank_(rank),
      communicator_(communicator),
      numSent_(members.size(), 0),
      numReceived_(members.size(), 0) {}

void ControlMailbox::open() {
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    if (rank == rank_) continue;
    transfers_.push_back(makeTransfer(rank, false));
    post(*transfers_.back());
  }
}

void ControlMailbox::close() {
  engine_.removeWork(*this);
  for (auto& transfer : transfers_) {
    if (std::exchange(transfer->isPending, false))
      engine_.messenger().cancel(*transfer, unavailable("the group is closed"));
  }
  transfers_.clear();
}

void ControlMailbox::send(int rank, const ControlMessage& message) {
  transfers_.push_back(makeTransfer(rank, true));
  ControlTransfer& transfer = *transfers_.back();
  transfer.message = message;
  post(transfer);
}

std::unique_ptr<ControlMailbox::ControlTransfer> ControlMailbox::makeTransfer(int rank, bool isSend) {
  auto transfer = std::make_unique<ControlTransfer>();
  transfer->owner = this;
  transfer->rank = rank;
  transfer->isSend = isSend;
  transfer->isBackground = true;
  transfer->peer = members_[static_cast<size_t>(rank)];
  transfer->bytes = std::as_writable_bytes(std::span(&transfer->message, 1));
  return transfer;
}

void ControlMailbox::post(ControlTransfer& transfer) {
  auto& count = transfer.isSend ? numSent_ : numReceived_;
  transfer.id = {communicator_, kControlStep, ++count[static_cast<size_t>(transfer.rank)]};
  transfer.isPending = true;
  transfer.isSend ? engine_.messenger().send(transfer) : engine_.messenger().receive(transfer);
}

void ControlMailbox::transferFinished(ControlTransfer& transfer, const Status& status) {
  if (!std::exchange(transfer.isPending, false)) return;  // the transfer is being cancelled
  transfer.status = status;
  engine_.addWork(*this, reinterpret_cast<uintptr_t>(&transfer), kAtOnce);
}

void ControlMailbox::work(uint64_t token) {
  auto* transfer = reinterpret_cast<ControlTransfer*>(token);
  if (transfer->isSend) {
    std::erase_if(transfers_, [&](const auto& other) { return other.get() == transfer; });
    return;
  }
  if (!transfer->status.isOk()) return;
  const ControlMessage message = transfer->message;
  const int rank = transfer->rank;
  post(*transfer);
  listener_.controlMessageArrived(rank, message);
}

}  // namespace agspeed::comm::collective
