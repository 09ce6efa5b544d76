// SPDX-License-Identifier: Apache-2.0
#include "comm/topology/interface_selector.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace agspeed::comm::topology {
namespace {

constexpr std::string_view kContainerBridges[] = {"docker", "virbr"};

bool isContainerBridge(const Interface& interface) {
  return std::any_of(std::begin(kContainerBridges), std::end(kContainerBridges),
                     [&](std::string_view bridge) { return interface.name.starts_with(bridge); });
}

std::string describe(const std::vector<Interface>& all) {
  std::string text;
  for (const Interface& interface : all) {
    text += (text.empty() ? "" : ", ") + interface.name + " " + toString(interface.address) +
            (interface.isUp ? "" : " (down)");
  }
  return text.empty() ? "none" : text;
}

/// Keeps one selected address per interface name: an IPv4 address if there is one.
void keepOnePerName(std::vector<InterfaceChoice>& choices) {
  for (InterfaceChoice& choice : choices) {
    if (!choice.isSelected) continue;
    for (InterfaceChoice& other : choices) {
      const bool isRival = &other != &choice && other.isSelected && other.interface.name == choice.interface.name;
      if (!isRival || (other.interface.address.isV6 < choice.interface.address.isV6)) continue;
      other.isSelected = false;
      other.reason = "its address " + toString(choice.interface.address) + " is used";
    }
  }
}

}  // namespace

StatusOr<InterfaceSelector::Entry> InterfaceSelector::parseEntry(std::string_view text) {
  const std::string quoted = "'" + std::string(text) + "'";
  if (text.empty()) return invalidArgument("an empty entry selects no interface: remove the extra comma");
  const size_t slash = text.find('/');
  const std::optional<IpAddress> address = parseIpAddress(text.substr(0, slash));
  if (slash == std::string_view::npos) {
    return Entry{std::string(text), address, address && address->isV6 ? 128 : 32};
  }
  const std::string_view digits = text.substr(slash + 1);
  int bits = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
  const bool isNumber = error == std::errc() && end == digits.data() + digits.size();
  if (!address || !isNumber || bits < 0 || bits > (address->isV6 ? 128 : 32)) {
    return invalidArgument(quoted + " is not a network: write it like 10.0.0.0/8 or fd00::/64");
  }
  return Entry{"", address, bits};
}

StatusOr<InterfaceSelector> InterfaceSelector::parse(std::string_view text) {
  InterfaceSelector selector;
  selector.text_ = text;
  if (text.empty()) return selector;
  selector.isExcluding_ = text.front() == '^';
  if (selector.isExcluding_) text.remove_prefix(1);
  selector.isExact_ = text.starts_with('=');
  if (selector.isExact_) text.remove_prefix(1);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    AG_ASSIGN_OR_RETURN(Entry entry, parseEntry(text.substr(begin, end - begin)));
    selector.entries_.push_back(std::move(entry));
    begin = end + 1;
  }
  return selector;
}

bool InterfaceSelector::matches(const Interface& interface) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    if (entry.network) return isSameNetwork(interface.address, *entry.network, entry.prefixBits);
    return isExact_ ? interface.name == entry.name : interface.name.starts_with(entry.name);
  });
}

InterfaceChoice InterfaceSelector::explain(const Interface& interface) const {
  const auto leftOut = [&](std::string reason) { return InterfaceChoice{interface, false, std::move(reason)}; };
  if (!interface.isUp) return leftOut("it is down");
  if (entries_.empty()) {
    if (interface.address.isLoopback()) return leftOut("loopback carries a job only where there is nothing else");
    if (interface.address.isLinkLocal()) return leftOut("its address is link-local");
    if (isContainerBridge(interface)) return leftOut("its name is that of a container's bridge");
    return {interface, true, "a real interface that is up"};
  }
  if (isExcluding_ == matches(interface)) return leftOut((isExcluding_ ? "excluded by '" : "not in '") + text_ + "'");
  if (isExcluding_ && interface.address.isLinkLocal()) return leftOut("its address is link-local");
  return {interface, true, (isExcluding_ ? "not excluded by '" : "selected by '") + text_ + "'"};
}

std::vector<InterfaceChoice> InterfaceSelector::explain(const std::vector<Interface>& all) const {
  std::vector<InterfaceChoice> choices;
  for (const Interface& interface : all) choices.push_back(explain(interface));
  const auto isSelected = [](const InterfaceChoice& choice) { return choice.isSelected; };
  if (entries_.empty() && std::none_of(choices.begin(), choices.end(), isSelected)) {
    for (InterfaceChoice& choice : choices) {
      if (!choice.interface.isUp || !choice.interface.address.isLoopback()) continue;
      choice = {choice.interface, true, "there is nothing but loopback"};
    }
  }
  keepOnePerName(choices);
  return choices;
}

StatusOr<std::vector<Interface>> InterfaceSelector::select(const std::vector<Interface>& all) const {
  std::vector<Interface> chosen;
  for (InterfaceChoice& choice : explain(all)) {
    if (choice.isSelected) chosen.push_back(std::move(choice.interface));
  }
  if (chosen.empty()) {
    return invalidArgument("'" + text_ + "' selects no interface that is up; there are: " + describe(all));
  }
  return chosen;
}

}  // namespace agspeed::comm::topology
