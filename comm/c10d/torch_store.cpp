// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/torch_store.h"

#include <c10/util/Exception.h>

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

std::shared_ptr<TorchStore> TorchStore::onOwnConnection(const c10::intrusive_ptr<::c10d::Store>& store) {
  try {
    return std::make_shared<TorchStore>(store->clone());
  } catch (const std::exception&) {
    return std::make_shared<TorchStore>(store);
  }
}

Status TorchStore::set(const std::string& key, const std::string& value) {
  return guarded("set " + key,
                 [&] {
                   store_->set(key, bytesOf(value));
                   return true;
                 })
      .status();
}

StatusOr<std::optional<std::string>> TorchStore::tryGet(const std::string& key) {
  AG_ASSIGN_OR_RETURN(Values values, reader()({key}));
  return std::move(values.front());
}

Store::Reader TorchStore::reader() {
  return [store = store_](const std::vector<std::string>& keys) {
    return guarded("read " + keys.front(), [&] {
      Values values;
      readAll(*store, keys, values);
      return values;
    });
  };
}

StatusOr<int64_t> TorchStore::add(const std::string& key, int64_t amount) {
  return guarded("add to " + key, [&] { return store_->add(key, amount); });
}

StatusOr<std::string> TorchStore::setOnce(const std::string& key, const std::string& value) {
  return guarded("set " + key, [&] { return textOf(store_->compareSet(key, {}, bytesOf(value))); });
}

}  // namespace agspeed::comm
