// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/control_mailbox.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm {

namespace {

constexpr uint32_t kControlStep = UINT32_MAX;
constexpr int kAtOnce = INT32_MIN;

}  // namespace

ControlMailbox::ControlMailbox(Engine& engine, ControlListener& listener, std::span<const int> members, int rank,
                               uint32_t communicator)
    : engine_(engine),
      listener_(listener),
      members_(members),
      rank_(rank),
      communicator_(communicator),
      numSent_(members.size(), 0),
      numReceived_(members.size(), 0) {}

void ControlMailbox::open() {
  isOpen_ = true;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    if (rank == rank_) continue;
    letters_.push_back(makeTransfer(rank, false));
    post(*letters_.back());
  }
}

void ControlMailbox::close() {
  isOpen_ = false;
  engine_.removeWork(*this);
  for (auto& letter : letters_) {
    if (std::exchange(letter->isPending, false))
      engine_.messenger().cancel(*letter, unavailable("the group is closed"));
  }
  letters_.clear();
}

void ControlMailbox::send(int rank, const ControlMessage& message) {
  letters_.push_back(makeTransfer(rank, true));
  ControlTransfer& letter = *letters_.back();
  letter.message = message;
  post(letter);
}

std::unique_ptr<ControlMailbox::ControlTransfer> ControlMailbox::makeTransfer(int rank, bool isSend) {
  auto letter = std::make_unique<ControlTransfer>();
  letter->owner = this;
  letter->rank = rank;
  letter->isSend = isSend;
  letter->isBackground = true;
  letter->peer = members_[static_cast<size_t>(rank)];
  letter->bytes = std::as_writable_bytes(std::span(&letter->message, 1));
  return letter;
}

void ControlMailbox::post(ControlTransfer& letter) {
  auto& count = letter.isSend ? numSent_ : numReceived_;
  letter.id = {communicator_, kControlStep, ++count[static_cast<size_t>(letter.rank)]};
  letter.isPending = true;
  letter.isSend ? engine_.messenger().send(letter) : engine_.messenger().receive(letter);
}

void ControlMailbox::letterFinished(ControlTransfer& letter, const Status& status) {
  if (!std::exchange(letter.isPending, false)) return;  // being cancelled
  letter.status = status;
  engine_.addWork(*this, reinterpret_cast<uintptr_t>(&letter), kAtOnce);
}

void ControlMailbox::work(uint64_t token) {
  auto* letter = reinterpret_cast<ControlTransfer*>(token);
  if (letter->isSend) {
    std::erase_if(letters_, [&](const auto& other) { return other.get() == letter; });
    return;
  }
  if (!letter->status) return;
  const ControlMessage message = letter->message;
  const int rank = letter->rank;
  post(*letter);
  listener_.noticeArrived(rank, message);
}

}  // namespace agspeed::comm
