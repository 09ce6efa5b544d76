// SPDX-License-Identifier: Apache-2.0
// How a rank reaches the others, as plain values. The store and the ranks found in it are not among them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/security/job_key.h"
#include "comm/security/sealing.h"
#include "comm/topology/interfaces.h"
#include "comm/transport/rail.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

struct NetworkOptions {
  int rank = 0;
  int size = 1;
  uint32_t epoch = 0;          ///< incarnation of the group
  std::string interfaces;      ///< see comm/topology/interface_selector.h
  std::string interfacesFrom;  ///< the variable or file that set `interfaces`; empty: the caller did
  /// integrity, authenticated, encrypted or opportunistic. Empty: authenticated if there is a key, else opportunistic.
  std::string mode;
  JobKey key;
  std::chrono::milliseconds peerTimeout{10000};
  /// Rails on each interface. 0: one, or more if one connection cannot fill the interface (connectionsToFill).
  int64_t flowsPerInterface = 0;
  bool sharesMemory = true;  ///< with ranks of this host and network namespace
  /// Addresses to use as rails instead of selected interfaces.
  std::vector<Interface> rails;
  /// Names of the preferred interfaces. The others take a frame only if it would arrive much later on these. Empty: all
  /// interfaces are alike.
  std::vector<std::string> home;
  /// Wraps each rail; for tests.
  std::function<std::unique_ptr<Rail>(std::unique_ptr<Rail>)> decorate;

  /// Options from the settings: job key, mode, interfaces, timeout. Fails if checkSettings() refuses the settings.
  static StatusOr<NetworkOptions> fromSettings(int rank, int size);
  /// `mode` with its default applied. Invalid argument: the mode does not exist, or it needs a key and there is none.
  StatusOr<std::string> resolvedMode() const;
  /// How frames are protected in that mode.
  static Protection protectionIn(const std::string& mode);
};

}  // namespace agspeed::comm
