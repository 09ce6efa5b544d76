// SPDX-License-Identifier: Apache-2.0
#include "comm/io/fd_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "runtime/base/log.h"

namespace agspeed::comm::io {
namespace {

/// Descriptors per peer. kPerRail: one connection per direction. kPerLocalPeer: shared memory needs two local sockets,
/// the eventfd of the peer's doorbell, and a pidfd.
constexpr size_t kPerRail = 2, kPerLocalPeer = 4;
/// The limit should be kReserve times the number of descriptors for connections, because the process needs descriptors
/// for other purposes, too.
constexpr size_t kReserve = 2;

std::mutex reservationMutex;
size_t numWantedByAll = 0;  ///< descriptors that all reservations want; guarded by reservationMutex

rlimit descriptorLimit() {
  rlimit limit = {};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

}  // namespace

int64_t flowsWithin(size_t numDescriptors, size_t numInterfaces, size_t numPeers) {
  const size_t numPerFlow = kPerRail * std::max<size_t>(numInterfaces * numPeers, 1);
  return static_cast<int64_t>(std::max<size_t>(numDescriptors / kReserve / numPerFlow, 1));
}

size_t mostDescriptors() { return descriptorLimit().rlim_max; }

FdReservation::FdReservation(size_t numRails, size_t numPeers)
    : numWanted_(kReserve * numPeers * (kPerRail * numRails + kPerLocalPeer)) {
  std::lock_guard lock(reservationMutex);
  numWantedByAll += numWanted_;
  rlimit limit = descriptorLimit();
  if (numWantedByAll <= limit.rlim_cur) return;
  limit.rlim_cur = std::min<rlim_t>(numWantedByAll, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  AG_LOG(kInfo, "the process's limit of open descriptors cannot be raised to {}: {}", limit.rlim_cur,
         std::strerror(errno));
}

FdReservation::~FdReservation() {
  std::lock_guard lock(reservationMutex);
  numWantedByAll -= numWanted_;
}

}  // namespace agspeed::comm::io
