// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/torch_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

namespace agspeed::comm {
namespace {

constexpr std::chrono::milliseconds kLongestPause{50};

/// What `action` returns, or its exception as a sentence.
template <typename Action>
auto guarded(const std::string& what, const Action& action) -> StatusOr<decltype(action())> {
  try {
    return action();
  } catch (const c10::Error& error) {
    return unavailable("torch's store could not " + what + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return unavailable("torch's store could not " + what + ": " + error.what());
  }
}

using Values = Store::Values;

std::string textOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytesOf(const std::string& text) { return {text.begin(), text.end()}; }

/// The values of `keys` where all are set, else those of its halves. `keys` is not empty.
void readAll(::c10d::Store& store, const std::vector<std::string>& keys, Values& values) {
  if (store.check(keys)) {
    if (store.hasExtendedApi()) {
      for (const auto& bytes : store.multiGet(keys)) values.emplace_back(textOf(bytes));
    } else {
      for (const std::string& key : keys) values.emplace_back(textOf(store.get(key)));
    }
  } else if (keys.size() == 1) {
    values.emplace_back();
  } else {
    const auto middle = keys.begin() + std::ssize(keys) / 2;
    readAll(store, {keys.begin(), middle}, values);
    readAll(store, {middle, keys.end()}, values);
  }
}

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
  AG_ASSIGN_OR_RETURN(Values values, reader()({key}));
  return std::move(values.front());
}

Store::Reader TorchStore::reader() {
  return [store = store_, prefix = prefix_](std::vector<std::string> keys) {
    for (std::string& key : keys) key.insert(0, prefix);
    return guarded("read " + keys.front(), [&] {
      Values values;
      readAll(*store, keys, values);
      return values;
    });
  };
}

StatusOr<int64_t> TorchStore::add(const std::string& key, int64_t amount) {
  return guarded("add to " + key, [&] { return store_->add(prefix_ + key, amount); });
}

StatusOr<std::string> TorchStore::setOnce(const std::string& key, const std::string& value) {
  return guarded("set " + key, [&] { return textOf(store_->compareSet(prefix_ + key, {}, bytesOf(value))); });
}

StatusOr<std::optional<std::string>> TorchStore::getUntil(const std::string& key,
                                                          std::chrono::steady_clock::time_point deadline) {
  for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    AG_ASSIGN_OR_RETURN(std::optional<std::string> value, tryGet(key));
    if (value.has_value() || std::chrono::steady_clock::now() >= deadline) return value;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace agspeed::comm
