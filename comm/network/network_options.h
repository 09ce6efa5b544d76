// SPDX-License-Identifier: Apache-2.0
// What a rank says of how it reaches the others. Values; the store and the ranks found in it are not among them.
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
  std::string interfaces;      ///< as in comm/topology/interface_selector.h
  std::string interfacesFrom;  ///< the variable or the file that says so; empty: the caller does
  /// integrity, authenticated, encrypted or opportunistic; empty: authenticated with a key, opportunistic without.
  std::string mode;
  JobKey key;
  std::chrono::milliseconds peerTimeout{10000};
  /// Rails on each interface; 0: one, but more where one connection cannot fill it (connectionsToFill).
  int64_t flowsPerInterface = 0;
  bool sharesMemory = true;  ///< with ranks of this host and network namespace
  /// Addresses to use as rails instead of selected interfaces.
  std::vector<Interface> rails;
  /// Names of the interfaces that carry first; the others carry what would take much longer there. Empty: all alike.
  std::vector<std::string> home;
  /// Wraps each rail; for tests.
  std::function<std::unique_ptr<Rail>(std::unique_ptr<Rail>)> decorate;

  /// What the settings say: job key, mode, interfaces, timeout. Fails where they must not be used (checkSettings).
  static StatusOr<NetworkOptions> fromSettings(int rank, int size);
  /// `mode` with its default applied; invalid argument: there is no such mode, or no key for it.
  StatusOr<std::string> resolvedMode() const;
  /// How frames are protected in that mode.
  static Protection protectionIn(const std::string& mode);
};

}  // namespace agspeed::comm
