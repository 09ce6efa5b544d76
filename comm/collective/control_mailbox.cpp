// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/control_mailbox.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm {

namespace {

constexpr uint32_t kNoticeStep = UINT32_MAX;
constexpr int kAtOnce = INT32_MIN;

}  // namespace

Notices::Notices(Engine& engine, NoticeListener& listener, std::span<const int> members, int rank,
                 uint32_t communicator)
    : engine_(engine),
      listener_(listener),
      members_(members),
      rank_(rank),
      communicator_(communicator),
      numSent_(members.size(), 0),
      numReceived_(members.size(), 0) {}

void Notices::open() {
  isOpen_ = true;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    if (rank == rank_) continue;
    letters_.push_back(makeLetter(rank, false));
    post(*letters_.back());
  }
}

void Notices::close() {
  isOpen_ = false;
  engine_.removeWork(*this);
  for (auto& letter : letters_) {
    if (std::exchange(letter->isPending, false))
      engine_.messenger().cancel(*letter, unavailable("the group is closed"));
  }
  letters_.clear();
}

void Notices::send(int rank, const Notice& notice) {
  letters_.push_back(makeLetter(rank, true));
  Letter& letter = *letters_.back();
  letter.notice = notice;
  post(letter);
}

std::unique_ptr<Notices::Letter> Notices::makeLetter(int rank, bool isSend) {
  auto letter = std::make_unique<Letter>();
  letter->owner = this;
  letter->rank = rank;
  letter->isSend = isSend;
  letter->isBackground = true;
  letter->peer = members_[static_cast<size_t>(rank)];
  letter->bytes = std::as_writable_bytes(std::span(&letter->notice, 1));
  return letter;
}

void Notices::post(Letter& letter) {
  auto& count = letter.isSend ? numSent_ : numReceived_;
  letter.id = {communicator_, kNoticeStep, ++count[static_cast<size_t>(letter.rank)]};
  letter.isPending = true;
  letter.isSend ? engine_.messenger().send(letter) : engine_.messenger().receive(letter);
}

void Notices::letterFinished(Letter& letter, const Status& status) {
  if (!std::exchange(letter.isPending, false)) return;  // being cancelled
  letter.status = status;
  engine_.addWork(*this, reinterpret_cast<uintptr_t>(&letter), kAtOnce);
}

void Notices::work(uint64_t token) {
  auto* letter = reinterpret_cast<Letter*>(token);
  if (letter->isSend) {
    std::erase_if(letters_, [&](const auto& other) { return other.get() == letter; });
    return;
  }
  if (!letter->status) return;
  const Notice notice = letter->notice;
  const int rank = letter->rank;
  post(*letter);
  listener_.noticeArrived(rank, notice);
}

}  // namespace agspeed::comm
