// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/coalescing.h"

#include <atomic>
#include <map>
#include <utility>

namespace agspeed::comm {
namespace {

/// By serial number; null before the first work.
thread_local std::map<uint64_t, Coalescing::Handle> collections;

std::atomic<uint64_t> numMade = 0;

}  // namespace

Coalescing::Coalescing() : serial_(++numMade) {}

void Coalescing::start() { collections[serial_] = nullptr; }

bool Coalescing::isActive() const { return collections.contains(serial_); }

Coalescing::Handle Coalescing::add(Handle work) {
  const auto found = collections.find(serial_);
  if (found == collections.end()) {
    work->handOut();
    return work;
  }
  if (found->second == nullptr) {
    found->second = std::move(work);
  } else {
    found->second->absorb(*work);
  }
  return found->second;
}

Coalescing::Handle Coalescing::collected() const { return collections.at(serial_); }

Coalescing::Handle Coalescing::end() {
  const auto ended = collections.extract(serial_);
  if (ended.empty() || ended.mapped() == nullptr) return nullptr;
  ended.mapped()->handOut();
  return ended.mapped();
}

}  // namespace agspeed::comm
