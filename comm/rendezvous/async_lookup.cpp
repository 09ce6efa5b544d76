// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/async_lookup.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace agspeed::comm::rendezvous {
namespace {

constexpr std::chrono::milliseconds kShortWait{2};   ///< how long find() waits for the answer
constexpr std::chrono::milliseconds kLastWait{100};  ///< how long the destructor waits for the thread

}  // namespace

struct AsyncLookup::Shared {
  explicit Shared(Store::Reader from) : reader(std::move(from)) {}

  const Store::Reader reader;
  std::mutex mutex;  ///< guards the members below
  std::condition_variable changed;
  std::vector<std::string> wanted;  ///< keys that the next request will read
  bool isReading = false;
  std::map<std::string, std::optional<Result>> results;
  bool isStopping = false;
  bool hasStopped = false;
};

AsyncLookup::AsyncLookup(Store::Reader reader) : shared_(std::make_shared<Shared>(std::move(reader))) {}

AsyncLookup::~AsyncLookup() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mutex);
  shared_->isStopping = true;
  shared_->changed.notify_all();
  const bool hasStopped = shared_->changed.wait_for(lock, kLastWait, [&] { return shared_->hasStopped; });
  lock.unlock();
  hasStopped ? thread_.join() : thread_.detach();
}

std::optional<AsyncLookup::Result> AsyncLookup::find(const std::string& key) {
  std::unique_lock lock(shared_->mutex);
  const auto [entry, isNew] = shared_->results.try_emplace(key);
  if (isNew) {
    const bool isPrompt = shared_->wanted.empty() && !shared_->isReading;
    shared_->wanted.push_back(key);
    shared_->changed.notify_all();
    if (!thread_.joinable()) thread_ = std::thread([shared = shared_] { run(shared); });
    if (isPrompt) shared_->changed.wait_for(lock, kShortWait, [&] { return entry->second.has_value(); });
  }
  if (!entry->second) return std::nullopt;
  std::optional<Result> result = std::move(entry->second);
  shared_->results.erase(entry);
  return result;
}

void AsyncLookup::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (!shared->isStopping) {
    if (shared->wanted.empty()) {
      shared->changed.wait(lock);
      continue;
    }
    const std::vector<std::string> keys = std::exchange(shared->wanted, {});
    shared->isReading = true;
    lock.unlock();
    StatusOr<Store::Values> values = shared->reader(keys);
    lock.lock();
    shared->isReading = false;
    for (size_t i = 0; i < keys.size(); ++i) {
      shared->results[keys[i]] = values.hasValue() ? Result(std::move((*values)[i])) : Result(values.status());
    }
    shared->changed.notify_all();
  }
  shared->hasStopped = true;
  shared->changed.notify_all();
}

}  // namespace agspeed::comm::rendezvous
