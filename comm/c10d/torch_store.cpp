// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/torch_store.h"

#include <exception>
#include <memory>
#include <utility>

namespace agspeed::comm {
namespace {

/// What `action` returns, or its exception as a sentence.
template <typename Action>
auto guarded(const std::string& what, const Action& action) -> StatusOr<decltype(action())> {
  try {
    return action();
  } catch (const std::exception& error) {
    return unavailable("torch's store could not " + what + ": " + error.what());
  }
}

std::string textOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytesOf(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

Status TorchStore::set(const std::string& key, const std::string& value) {
  return guarded("set " + key,
                 [&] {
                   store_->set(prefix_ + key, bytesOf(value));
                   return true;
                 })
      .status();
}

StatusOr<std::optional<std::string>> TorchStore::tryGet(const std::string& key) {
  return guarded("read " + key, [&]() -> std::optional<std::string> {
    if (!store_->check({prefix_ + key})) return std::nullopt;
    return textOf(store_->get(prefix_ + key));
  });
}

Store::Reader TorchStore::reader() {
  return [own = std::make_shared<TorchStore>(store_, prefix_)](const std::string& key) { return own->tryGet(key); };
}

StatusOr<int64_t> TorchStore::add(const std::string& key, int64_t amount) {
  return guarded("add to " + key, [&] { return store_->add(prefix_ + key, amount); });
}

StatusOr<std::string> TorchStore::setOnce(const std::string& key, const std::string& value) {
  return guarded("set " + key, [&] { return textOf(store_->compareSet(prefix_ + key, {}, bytesOf(value))); });
}

StatusOr<std::string> TorchStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  return guarded("wait for " + key, [&] {
    store_->wait({prefix_ + key}, timeout);
    return textOf(store_->get(prefix_ + key));
  });
}

}  // namespace agspeed::comm
