// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/coalescing.h"

#include <atomic>
#include <map>
#include <utility>

namespace agspeed::comm::c10d {
namespace {

/// The works that this thread has collected, by the serial number of the Coalescing.
thread_local std::map<uint64_t, std::vector<Work::Handle>> collections;

std::atomic<uint64_t> numMade = 0;

}  // namespace

Coalescing::Coalescing() : serial_(++numMade) {}

void Coalescing::start() { collections[serial_].clear(); }

bool Coalescing::isActive() const { return collections.contains(serial_); }

void Coalescing::add(const Work::Handle& work) {
  const auto found = collections.find(serial_);
  if (found != collections.end()) found->second.push_back(work);
}

std::vector<Work::Handle> Coalescing::end() {
  auto ended = collections.extract(serial_);
  return ended.empty() ? std::vector<Work::Handle>() : std::move(ended.mapped());
}

}  // namespace agspeed::comm::c10d
