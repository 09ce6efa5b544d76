// SPDX-License-Identifier: Apache-2.0
// Which network interfaces carry the job, as people write it: one list for agspeed's, NCCL's and Gloo's variables.
//
//   eth0,eth1        names that begin so (NCCL's rule; a full name is a beginning of itself)
//   =eth0            exactly this name; a leading = makes the whole list exact
//   10.0.0.0/8       interfaces with an address in this network; IPv6 alike
//   ^docker,lo       all but these; a leading ^ turns the whole list round
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

/// An interface's address.
struct Interface {
  std::string name;
  IpAddress address;
  int prefixBits = 0;
  bool isUp = false;  ///< administratively and by carrier
};

/// An interface, and why it carries the job or does not, as part of a sentence: "it is down".
struct InterfaceChoice {
  Interface interface;
  bool isSelected = false;
  std::string reason;
};

/// A parsed list.
class InterfaceSelector {
 public:
  /// Empty text selects everything that is neither loopback, link-local nor a container's bridge (docker*, virbr*),
  /// or loopback where there is nothing else. An empty or malformed entry is an invalid argument that names it.
  static StatusOr<InterfaceSelector> parse(std::string_view text);

  /// The interfaces of `all` that are up and selected, in their order, one address each: IPv4 before IPv6. Nothing
  /// selected is an invalid argument that lists what there is.
  StatusOr<std::vector<Interface>> select(const std::vector<Interface>& all) const;
  /// What select() does with each of `all`, in their order.
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
