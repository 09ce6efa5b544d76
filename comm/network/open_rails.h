// SPDX-License-Identifier: Apache-2.0
// Opens the rails of a rank. Each selected interface has one or more flows, which are parallel connections to a peer,
// and each flow is a rail. The rails are ordered by flow, then by interface. Only open_rails.cpp names the kinds of
// rails, so a new kind is one more line in openRail().
#pragma once

#include <memory>
#include <vector>

#include "comm/io/fd_limit.h"
#include "comm/io/poller.h"
#include "comm/network/network_options.h"
#include "comm/rendezvous/directory.h"
#include "comm/transport/rail.h"

namespace agspeed::comm::network {

struct OpenRails {
  std::unique_ptr<io::FdReservation>
      reservation;  ///< descriptors for the rails' connections; lives as long as the rails
  transport::Rails rails;
};

/// Returns the interfaces that the options name or select, with one address each. Invalid argument: none is selected.
StatusOr<std::vector<topology::Interface>> selectedInterfaces(const NetworkOptions& options);

/// Opens the rails, which listen when this function returns. The poller and the directory outlive them. Invalid
/// argument: no interface is selected, or there are too many flows. Unavailable: a rail cannot listen at its address.
StatusOr<OpenRails> openRails(const NetworkOptions& options, io::Poller& poller, rendezvous::Directory& directory);

}  // namespace agspeed::comm::network
