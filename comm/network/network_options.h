// SPDX-License-Identifier: Apache-2.0
// NetworkOptions: the settings by which a rank reaches other ranks, as plain values. The store, in which ranks publish
// their records, is not part of the options.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/rank_names.h"
#include "comm/security/job_key.h"
#include "comm/security/sealing.h"
#include "comm/topology/interfaces.h"
#include "comm/transport/rail.h"
#include "runtime/base/status.h"

namespace agspeed::comm::network {

struct NetworkOptions {
  int rank = 0;
  int size = 1;
  uint32_t epoch = 0;           ///< counts the re-formations of the group; frames of other epochs are dropped
  rendezvous::RankNames names;  ///< names of the group's ranks in errors and log lines
  std::string interfaces;       ///< list of interfaces; see comm/topology/interface_selector.h
  std::string interfacesFrom;   ///< the variable or file that set `interfaces`; empty: the caller set it
  /// The mode: integrity, authenticated, encrypted or opportunistic. Empty: authenticated if there is a key, else
  /// opportunistic.
  std::string mode;
  security::JobKey key;
  std::chrono::milliseconds peerTimeout{10000};
  /// The number of rails on each interface, which are parallel connections to each peer. 0: one, or more if one
  /// connection cannot saturate the interface (see connectionsToFill()).
  int64_t flowsPerInterface = 0;
  bool sharesMemory = true;  ///< whether to use shared memory with ranks of this host and network namespace
  /// Addresses to use as rails instead of selected interfaces.
  std::vector<topology::Interface> rails;
  /// Names of the preferred interfaces. Other interfaces take a frame only if it would arrive much later on a preferred
  /// one. Empty: no interface is preferred.
  std::vector<std::string> home;
  /// Wraps each rail in another one. Only tests set it.
  std::function<std::unique_ptr<transport::Rail>(std::unique_ptr<transport::Rail>)> decorate;

  /// Makes options from the settings: job key, mode, interfaces, flows, shared memory and timeout. Fails if
  /// checkSettings() refuses the settings.
  static StatusOr<NetworkOptions> fromSettings(int rank, int size);
  /// Returns `mode`, or the default mode if `mode` is empty. Invalid argument: the mode does not exist, or it needs a
  /// key and there is none.
  StatusOr<std::string> resolvedMode() const;
  /// Returns how frames are protected in `mode`, a result of resolvedMode().
  static security::Protection protectionIn(const std::string& mode);
};

}  // namespace agspeed::comm::network
