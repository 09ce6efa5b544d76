// SPDX-License-Identifier: Apache-2.0
// InterfaceSelector: selects the network interfaces that carry the job, by a list. The variables of agspeed, NCCL and
// Gloo have the same syntax:
//
//   eth0,eth1        names that begin with these (NCCL's rule)
//   =eth0            exactly this name; a leading = makes the whole list exact
//   10.0.0.0/8       interfaces with an address in this network; IPv6 alike
//   ^docker,lo       all interfaces except these; a leading ^ inverts the whole list
//
// All functions are pure and thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/topology/ip_address.h"
#include "runtime/base/status.h"

namespace agspeed::comm::topology {

/// An interface with one of its addresses.
struct Interface {
  std::string name;
  IpAddress address;
  int prefixBits = 0;
  bool isUp = false;  ///< the interface is administratively up and has its carrier
};

/// An interface and whether it is selected. `reason` is part of a sentence: "it is down".
struct InterfaceChoice {
  Interface interface;
  bool isSelected = false;
  std::string reason;
};

/// A parsed list of rules by which interfaces are selected.
class InterfaceSelector {
 public:
  /// Parses a list. An empty list selects all interfaces that are neither loopback, link-local nor a container's bridge
  /// (docker*, virbr*), or loopback if there is nothing else. Invalid argument: an entry is empty or malformed; the
  /// message names it.
  static StatusOr<InterfaceSelector> parse(std::string_view text);

  /// Returns the interfaces of `all` that are up and selected, in the order of `all`. Each interface appears once, with
  /// an IPv4 address if one is selected. Invalid argument: none is selected; the message lists all interfaces.
  StatusOr<std::vector<Interface>> select(const std::vector<Interface>& all) const;
  /// Returns for each interface of `all` whether select() selects it, and why. Keeps the order of `all`.
  std::vector<InterfaceChoice> explain(const std::vector<Interface>& all) const;

 private:
  struct Entry {
    std::string name;
    std::optional<IpAddress> network;
    int prefixBits = 0;
  };
  static StatusOr<Entry> parseEntry(std::string_view text);
  bool matches(const Interface& interface) const;
  InterfaceChoice explain(const Interface& interface) const;

  std::string text_;
  bool isExcluding_ = false;
  bool isExact_ = false;
  std::vector<Entry> entries_;
};

}  // namespace agspeed::comm::topology
