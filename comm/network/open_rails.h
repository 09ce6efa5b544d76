// SPDX-License-Identifier: Apache-2.0
// Which rails a rank has, and of what kind: one for each selected interface and flow, those of one flow side by side.
// No other file names a kind of rail; a new one costs a line in openRail().
#pragma once

#include <memory>
#include <vector>

#include "comm/io/fd_limit.h"
#include "comm/io/poller.h"
#include "comm/network/network_options.h"
#include "comm/rendezvous/directory.h"
#include "comm/transport/rail.h"

namespace agspeed::comm {

struct OpenRails {
  std::unique_ptr<FdReservation> reservation;  ///< of what their connections may take; lives as long as they do
  Rails rails;
};

/// Those that options name or select, one address each. Invalid argument: none is selected.
StatusOr<std::vector<Interface>> selectedInterfaces(const NetworkOptions& options);

/// They listen when this returns; poller and directory outlive them. Invalid argument: no interface is selected, or too
/// many flows. Unavailable: one of the addresses cannot be listened at.
StatusOr<OpenRails> openRails(const NetworkOptions& options, Poller& poller, Directory& directory);

}  // namespace agspeed::comm
