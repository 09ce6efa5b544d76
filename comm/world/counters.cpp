// SPDX-License-Identifier: Apache-2.0
#include "comm/world/counters.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "comm/topology/interfaces.h"

namespace agspeed::comm::world {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string interfaceOf(const topology::IpAddress& address) {
  const StatusOr<std::vector<topology::Interface>> all = topology::listInterfaces();
  if (!all.hasValue()) return {};
  const auto found = std::find_if(all->begin(), all->end(),
                                  [&](const topology::Interface& interface) { return interface.address == address; });
  return found == all->end() ? std::string() : found->name;
}

std::string countersJson(const network::NetworkMessenger& messenger, const engine::WireCoder::Counters& coded,
                         FlightRecorder& recorder) {
  const multirail::MultirailCounters& counters = messenger.counters();
  const shm::ShmCounters* local = messenger.sharedMemoryCounters();
  Json document = {{"rank", messenger.rank()},
                   {"world_size", messenger.size()},
                   {"frames_resent", counters.numResent},
                   {"frames_duplicate", counters.numDuplicates},
                   {"acknowledgements_sent", counters.numAcks},
                   {"connections_refused", messenger.numRefused()},
                   {"shared_memory_bytes_sent", local == nullptr ? 0 : local->numBytes},
                   {"bytes_before_coding", coded.numValueBytes},
                   {"bytes_after_coding", coded.numCodeBytes},
                   {"rails", Json::array()},
                   {"operations", Json::array()}};
  for (size_t i = 0; i < counters.rails.size(); ++i) {
    const multirail::MultirailCounters::Rail& rail = counters.rails[i];
    const topology::IpAddress& address = messenger.rails()[i].address;
    document["rails"].push_back(Json::object({{"interface", interfaceOf(address)},
                                              {"address", toString(address)},
                                              {"frames_sent", rail.numFrames},
                                              {"bytes_sent", rail.numBytes},
                                              {"bytes_received", rail.numBytesReceived},
                                              {"bytes_per_second", messenger.bytesPerSecondOf(static_cast<int>(i))},
                                              {"failovers", rail.numLosses},
                                              {"stalls", rail.numStalls}}));
  }
  for (const auto& [name, totals] : recorder.totals()) {
    document["operations"].push_back(Json::object({{"operation", name},
                                                   {"started", totals.numStarted},
                                                   {"ended", totals.numEnded},
                                                   {"failed", totals.numFailed},
                                                   {"bytes", totals.numBytes},
                                                   {"seconds", totals.seconds}}));
  }
  return document.dump();
}

}  // namespace agspeed::comm::world
