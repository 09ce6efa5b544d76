// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/torch_store.h"

#include <exception>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "comm/c10d/arguments.h"

namespace agspeed::comm::c10d {
namespace {

/// Calls `action`. Returns its result, or its exception as an error.
template <typename Action>
auto guarded(const std::string& what, const Action& action) -> StatusOr<decltype(action())> {
  try {
    return action();
  } catch (const std::exception& error) {
    return unavailable("torch's store could not {}: {}", what, messageOf(error));
  }
}

using Values = Store::Values;

std::string textOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytesOf(const std::string& text) { return {text.begin(), text.end()}; }

/// Appends the values of `keys` to `values`. Reads all values at once if all keys are set. Otherwise it splits the keys
/// into two halves and treats each half in the same way. Requires: `keys` is not empty.
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

using TorchStorePointer = c10::intrusive_ptr<::c10d::Store>;

/// Keeps our connections to the servers of torch's clients. Thread-safe.
class Connections {
 public:
  /// Returns our connection to the server of `client`. Makes a new connection if there is none, or if it does not
  /// answer.
  TorchStorePointer beside(const TorchStorePointer& client) {
    TorchStorePointer own = take(client);
    if (own == nullptr || !answers(*own)) own = client->clone();
    const std::lock_guard lock(mutex_);
    connections_.push_back({c10::weak_intrusive_ptr<::c10d::Store>(client), own});
    return own;
  }

 private:
  struct Connection {
    c10::weak_intrusive_ptr<::c10d::Store> client;
    TorchStorePointer own;
  };

  /// Removes and returns our connection for `client`, or null. Also removes connections for clients that no longer
  /// exist.
  TorchStorePointer take(const TorchStorePointer& client) {
    TorchStorePointer found;
    const std::lock_guard lock(mutex_);
    std::erase_if(connections_, [&](Connection& each) {
      const TorchStorePointer living = each.client.lock();
      if (living == client) found = each.own;
      return living == nullptr || living == client;
    });
    return found;
  }

  static bool answers(::c10d::Store& store) {
    try {
      store.getNumKeys();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  std::mutex mutex_;
  std::vector<Connection> connections_;
};

/// Gives access to the prefix of torch's PrefixStore, which has no accessor.
struct OpenPrefixStore : ::c10d::PrefixStore {
  static const std::string& prefixOf(const ::c10d::PrefixStore& store) { return store.*&OpenPrefixStore::prefix_; }
};

/// Returns a client of the same store and with the same prefixes, but with a separate connection.
TorchStorePointer connected(const TorchStorePointer& store) {
  static Connections connections;
  if (auto* prefixed = dynamic_cast<::c10d::PrefixStore*>(store.get())) {
    return c10::make_intrusive<::c10d::PrefixStore>(OpenPrefixStore::prefixOf(*prefixed),
                                                    connected(prefixed->getUnderlyingStore()));
  }
  const bool isConnection = dynamic_cast<::c10d::TCPStore*>(store.get()) != nullptr;
  return isConnection ? connections.beside(store) : store->clone();
}

}  // namespace

std::shared_ptr<TorchStore> TorchStore::onOwnConnection(const TorchStorePointer& store) {
  try {
    return std::make_shared<TorchStore>(connected(store));
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

}  // namespace agspeed::comm::c10d
