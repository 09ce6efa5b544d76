// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/loopback_messenger.h"
#include "runtime/base/format.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>

namespace agspeed::comm::messaging {

namespace {

/// A message that is not matched with a receive yet. It has a copy of its bytes if it is eager. Otherwise its bytes are
/// in the memory of its send.
struct Message {
  int source;
  wire::MessageId id;
  std::vector<std::byte> copy;
  Transfer* send = nullptr;  ///< null: the message is eager

  std::span<const std::byte> bytes() const { return send ? std::span<const std::byte>(send->bytes) : copy; }
};

/// A transfer that has completed. Its owner is notified later, outside the lock.
struct Completion {
  Transfer* transfer;
  Status status;
};

std::string describe(const wire::MessageId& id) {
  return formatText("communicator {}, sequence {}, step {}", id.communicator, id.sequence, id.step);
}

}  // namespace

class LoopbackMessenger final : public Messenger {
 public:
  LoopbackMessenger(LoopbackGroup& group, int rank) : group_(group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.ranks_.size()); }

  void send(Transfer& transfer) override {
    AG_CHECK(isPeer(transfer.peer), "peer {}", transfer.peer);
    const bool isEager = transfer.bytes.size() <= group_.options_.eagerBytes;
    Status status;
    {
      std::lock_guard lock(group_.mutex_);
      if (status = deadPeer(transfer); status.isOk()) {
        Message message{rank_, transfer.id, {}, isEager ? nullptr : &transfer};
        group_.numBytesSent_[static_cast<size_t>(rank_)][static_cast<size_t>(transfer.peer)] += transfer.bytes.size();
        if (isEager) message.copy.assign(transfer.bytes.begin(), transfer.bytes.end());
        group_.ranks_[transfer.peer]->arrive(std::move(message));
      }
    }
    if (isEager || !status.isOk()) transfer.finished(status);
  }

  void receive(Transfer& transfer) override {
    AG_CHECK(isPeer(transfer.peer), "peer {}", transfer.peer);
    {
      std::lock_guard lock(group_.mutex_);
      Status status = deadPeer(transfer);
      if (status.isOk()) {
        posted_.push_back(&transfer);
        match();
      } else {
        completions_.push_back({&transfer, status});
      }
    }
    notifyOwners();
  }

  void cancel(Transfer& transfer, const Status& reason) override {
    {
      std::lock_guard lock(group_.mutex_);
      if (auto at = std::find(posted_.begin(), posted_.end(), &transfer); at != posted_.end()) {
        posted_.erase(at);
        discarded_.push_back({transfer.peer, transfer.id});
      }
      std::erase_if(group_.ranks_[transfer.peer]->arrived_,
                    [&](const Message& message) { return message.send == &transfer; });
      std::erase_if(completions_, [&](const Completion& completion) { return completion.transfer == &transfer; });
    }
    transfer.finished(reason);
  }

  void dropCommunicator(uint32_t communicator) override {
    std::lock_guard lock(group_.mutex_);
    dropped_.insert(communicator);
    std::erase_if(arrived_, [&](const Message& message) {
      if (message.id.communicator != communicator) return false;
      if (message.send) acknowledge(message);
      return true;
    });
    std::erase_if(discarded_, [&](const auto& entry) { return entry.second.communicator == communicator; });
  }

  bool probe(int peer, const wire::MessageId& id) const override {
    std::lock_guard lock(group_.mutex_);
    return std::any_of(arrived_.begin(), arrived_.end(),
                       [&](const Message& message) { return message.source == peer && message.id == id; });
  }

  bool progress(io::Clock::time_point until) override {
    {
      std::unique_lock lock(group_.mutex_);
      match();
      // Do not wait if `until` has passed, because such a wait would still sleep for a scheduler's tick.
      if (completions_.empty() && !isAwake_ && until > io::Clock::now()) {
        wakeUp_.wait_until(lock, until, [&] { return isAwake_ || !completions_.empty() || match(); });
      }
      isAwake_ = false;
    }
    return notifyOwners();
  }

  uint64_t numBytesMoved(const Transfer&) const override { return 0; }  // bytes move when the transfer completes
  bool hasUnsent() const override { return false; }

  bool isRemote(int) const override { return group_.options_.isRemote; }
  double bytesPerSecond() const override {
    const auto& rates = group_.options_.bytesPerSecond;
    return rates.empty() ? 0 : rates[static_cast<size_t>(rank_)];
  }

  double roundTripSeconds(int) const override { return group_.options_.roundTripSeconds; }

  uint32_t host() const override {
    const auto& hosts = group_.options_.hosts;
    return hosts.empty() ? 0 : hosts[static_cast<size_t>(rank_)];
  }

  void wake() override {
    std::lock_guard lock(group_.mutex_);
    isAwake_ = true;
    wakeUp_.notify_all();
  }

 private:
  friend class LoopbackGroup;

  bool isPeer(int peer) const { return peer >= 0 && peer < size() && peer != rank_; }

  /// Returns the error of a transfer if this rank or the peer has ended, or ok if both are alive. Requires: the lock.
  Status deadPeer(const Transfer& transfer) const {
    const int dead = group_.isDead_[rank_] ? rank_ : transfer.peer;
    if (!group_.isDead_[dead]) return {};
    return unavailable("rank {}: rank {} is gone; no message can pass ({})", rank_, dead, describe(transfer.id));
  }

  /// Queues a message for its receive. Discards it if its receive was cancelled, or if its communicator was dropped.
  /// Requires: the lock.
  void arrive(Message message) {
    if (dropped_.contains(message.id.communicator)) {
      if (message.send) acknowledge(message);
      return;
    }
    const std::pair key(message.source, message.id);
    if (auto at = std::find(discarded_.begin(), discarded_.end(), key); at != discarded_.end()) {
      discarded_.erase(at);
      if (message.send) acknowledge(message);
      return;
    }
    const size_t limit = arrived_.size() + 1;
    const size_t at = group_.options_.shuffleSeed ? group_.random_() % limit : limit - 1;
    arrived_.insert(arrived_.begin() + static_cast<ptrdiff_t>(at), std::move(message));
    wakeUp_.notify_all();
  }

  /// Completes the send of a message that its receiver has received or discarded. Requires: the lock.
  void acknowledge(const Message& message) {
    LoopbackMessenger& sender = *group_.ranks_[message.source];
    sender.completions_.push_back({message.send, {}});
    sender.wakeUp_.notify_all();
  }

  /// Delivers arrived messages to the receives that wait for them. Returns true if a receive has completed. Requires:
  /// the lock.
  bool match() {
    const size_t before = completions_.size();
    for (auto message = arrived_.begin(); message != arrived_.end();) {
      auto at = std::find_if(posted_.begin(), posted_.end(), [&](const Transfer* receive) {
        return receive->peer == message->source && receive->id == message->id;
      });
      if (at == posted_.end()) {
        ++message;
        continue;
      }
      deliver(*message, **at);
      posted_.erase(at);
      message = arrived_.erase(message);
    }
    return completions_.size() != before;
  }

  /// Copies the message to its receive and completes the receive. Also completes the send, unless it was eager.
  /// Requires: the lock.
  void deliver(const Message& message, Transfer& receive) {
    Status status;
    const size_t sent = message.bytes().size(), room = receive.bytes.size();
    if (sent == room || (receive.acceptsShorter() && sent < room)) {
      if (sent > 0) std::memcpy(receive.bytes.data(), message.bytes().data(), sent);
      receive.numReceived = sent;
    } else {
      status = invalidArgument("rank {} expected {} bytes from rank {}, which sent {} ({})", rank_, room, receive.peer,
                               sent, describe(receive.id));
    }
    completions_.push_back({&receive, std::move(status)});
    if (message.send) acknowledge(message);
  }

  /// Fails all transfers in flight with `dead`. Requires: the lock.
  void drop(int dead) {
    for (size_t i = posted_.size(); i-- > 0;) {
      if (Status status = deadPeer(*posted_[i]); !status.isOk()) {
        completions_.push_back({posted_[i], std::move(status)});
        posted_.erase(posted_.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    for (size_t i = arrived_.size(); i-- > 0;) {
      const Message& message = arrived_[i];
      if (!message.send || (message.source != dead && rank_ != dead)) continue;
      LoopbackMessenger& sender = *group_.ranks_[message.source];
      sender.completions_.push_back({message.send, sender.deadPeer(*message.send)});
      arrived_.erase(arrived_.begin() + static_cast<ptrdiff_t>(i));
    }
    wakeUp_.notify_all();
  }

  /// Calls finished() for all completed transfers of this rank. Takes them out of the list one at a time, because
  /// finished() may cancel another transfer. Returns false if there were none.
  bool notifyOwners() {
    for (bool any = false;; any = true) {
      Completion completion;
      {
        std::lock_guard lock(group_.mutex_);
        if (completions_.empty()) return any;
        completion = std::move(completions_.front());
        completions_.erase(completions_.begin());
      }
      completion.transfer->finished(completion.status);
    }
  }

  LoopbackGroup& group_;
  const int rank_;
  // Guarded by the group's lock.
  std::vector<Transfer*> posted_;
  std::vector<Message> arrived_;
  std::vector<std::pair<int, wire::MessageId>>
      discarded_;  ///< names of cancelled receives whose message has not arrived
  std::unordered_set<uint32_t> dropped_;
  std::vector<Completion> completions_;
  bool isAwake_ = false;
  std::condition_variable wakeUp_;
};

LoopbackGroup::LoopbackGroup(int size, LoopbackOptions options)
    : options_(options),
      random_(options.shuffleSeed),
      isDead_(static_cast<size_t>(size), false),
      numBytesSent_(static_cast<size_t>(size), std::vector<uint64_t>(static_cast<size_t>(size), 0)) {
  for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<LoopbackMessenger>(*this, rank));
}

LoopbackGroup::~LoopbackGroup() = default;

Messenger& LoopbackGroup::messenger(int rank) { return *ranks_.at(static_cast<size_t>(rank)); }

uint64_t LoopbackGroup::numBytesSent(int rank) {
  std::lock_guard lock(mutex_);
  const auto& sent = numBytesSent_.at(static_cast<size_t>(rank));
  return std::accumulate(sent.begin(), sent.end(), uint64_t{0});
}

uint64_t LoopbackGroup::numBytesSent(int rank, int peer) {
  std::lock_guard lock(mutex_);
  return numBytesSent_.at(static_cast<size_t>(rank)).at(static_cast<size_t>(peer));
}

void LoopbackGroup::kill(int rank) {
  std::lock_guard lock(mutex_);
  isDead_.at(static_cast<size_t>(rank)) = true;
  for (auto& messenger : ranks_) messenger->drop(rank);
}

}  // namespace agspeed::comm::messaging
