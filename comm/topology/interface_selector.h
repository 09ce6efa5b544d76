// SPDX-License-Identifier: Apache-2.0
// Selects the network interfaces that carry the job by a list, in one syntax for the variables of agspeed, NCCL and
// Gloo.
//
//   eth0,eth1        names that begin with these (NCCL's rule)
//   =eth0            exactly this name; a leading = makes the whole list exact
//   10.0.0.0/8       interfaces with an address in this network; IPv6 alike
//   ^docker,lo       all but these; a leading ^ inverts the whole list
//
// Pure functions over text and addresses; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/topology/ip_address.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// An interface with one of its addresses.
struct Interface {
  std::string name;
  IpAddress address;
  int prefixBits = 0;
  bool isUp = false;  ///< administratively up and with carrier
};

/// An interface and whether it carries the job. `reason` is part of a sentence: "it is down".
struct InterfaceChoice {
  Interface interface;
  bool isSelected = false;
  std::string reason;
};

/// A parsed list.
class InterfaceSelector {
 public:
  /// Empty text selects everything that is neither loopback, link-local nor a container's bridge (docker*, virbr*). If
  /// there is nothing else, it selects loopback. An empty or malformed entry is an invalid argument that names it.
  static StatusOr<InterfaceSelector> parse(std::string_view text);

  /// The interfaces of `all` that are up and selected, in their order, with one address each: IPv4 before IPv6. Fails
  /// with invalid argument if none is selected; the error lists all interfaces.
  StatusOr<std::vector<Interface>> select(const std::vector<Interface>& all) const;
  /// How select() decides about each of `all`, in their order.
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

}  // namespace agspeed::comm
