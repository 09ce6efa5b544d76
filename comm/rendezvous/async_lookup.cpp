// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/async_lookup.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace agspeed::comm {
namespace {

constexpr std::chrono::milliseconds kShortWait{2};
constexpr std::chrono::milliseconds kLastWait{100};

}  // namespace

struct Lookups::Shared {
  explicit Shared(Store::Reader from) : reader(std::move(from)) {}

  const Store::Reader reader;
  std::mutex mutex;  ///< guards what follows
  std::condition_variable changed;
  std::vector<std::string> questions;  ///< to be asked
  bool isAsking = false;
  std::map<std::string, std::optional<Answer>> answers;
  bool isStopping = false;
  bool hasStopped = false;
};

Lookups::Lookups(Store::Reader reader) : shared_(std::make_shared<Shared>(std::move(reader))) {}

Lookups::~Lookups() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mutex);
  shared_->isStopping = true;
  shared_->changed.notify_all();
  const bool hasStopped = shared_->changed.wait_for(lock, kLastWait, [&] { return shared_->hasStopped; });
  lock.unlock();
  hasStopped ? thread_.join() : thread_.detach();
}

std::optional<Lookups::Answer> Lookups::ask(const std::string& key) {
  std::unique_lock lock(shared_->mutex);
  const auto [entry, isNew] = shared_->answers.try_emplace(key);
  if (isNew) {
    const bool isPrompt = shared_->questions.empty() && !shared_->isAsking;
    shared_->questions.push_back(key);
    shared_->changed.notify_all();
    if (!thread_.joinable()) thread_ = std::thread([shared = shared_] { run(shared); });
    if (isPrompt) shared_->changed.wait_for(lock, kShortWait, [&] { return entry->second.has_value(); });
  }
  if (!entry->second) return std::nullopt;
  std::optional<Answer> answer = std::move(entry->second);
  shared_->answers.erase(entry);
  return answer;
}

void Lookups::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (!shared->isStopping) {
    if (shared->questions.empty()) {
      shared->changed.wait(lock);
      continue;
    }
    const std::vector<std::string> keys = std::exchange(shared->questions, {});
    shared->isAsking = true;
    lock.unlock();
    StatusOr<Store::Values> values = shared->reader(keys);
    lock.lock();
    shared->isAsking = false;
    for (size_t i = 0; i < keys.size(); ++i) {
      shared->answers[keys[i]] = values ? Answer(std::move((*values)[i])) : Answer(values.status());
    }
    shared->changed.notify_all();
  }
  shared->hasStopped = true;
  shared->changed.notify_all();
}

}  // namespace agspeed::comm
