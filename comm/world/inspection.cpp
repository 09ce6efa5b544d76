// SPDX-License-Identifier: Apache-2.0
#include "comm/world/inspection.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "comm/world/counters.h"

namespace agspeed::comm::world {
namespace {

using Json = nlohmann::ordered_json;

/// How long an inspection waits for the driver. The longest work that the driver does not interrupt is the reduction of
/// one segment.
constexpr std::chrono::milliseconds kDriverTimeout{1000};
/// The largest number of groups, and of peers, in a document.
constexpr size_t kMaxItems = 64;

double secondsSince(io::Clock::time_point time) {
  return std::chrono::duration<double>(io::Clock::now() - time).count();
}

std::mutex readerMutex;
StackReader stackReader;  // readerMutex guards it

std::vector<std::string> readStack() {
  StackReader reader;
  {
    const std::lock_guard lock(readerMutex);
    reader = stackReader;
  }
  return reader ? reader() : std::vector<std::string>();
}

Json documentOf(const WorldIdentity& identity, std::string_view state) {
  std::array<char, 256> host = {};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {};
  return {{"kind", "agspeed.inspection"}, {"version", 1},        {"process", getpid()},
          {"host", host.data()},          {"job", identity.job}, {"rank", identity.rank},
          {"world_size", identity.size},  {"state", state},      {"stack", readStack()}};
}

std::string textOf(const Json& document) { return document.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json toJson(const engine::OperationState& operation) {
  Json found = {{"call", operation.call},
                {"name", operation.name},
                {"seconds", secondsSince(operation.since)},
                {"bytes", operation.numBytes},
                {"bytes_moved", operation.numBytesMoved},
                {"blocked_by", operation.blockedBy},
                {"waits_for", operation.awaited}};
  if (operation.sequence) found["sequence"] = *operation.sequence;
  return found;
}

Json toJson(const std::vector<engine::OperationState>& operations) {
  Json found = Json::array();
  for (const engine::OperationState& operation : operations) found.push_back(toJson(operation));
  return found;
}

Json toJson(const engine::GroupState& group) {
  return {{"name", group.name},
          {"is_named", group.isNamed},
          {"ranks", group.members},
          {"calls", group.numCalls},
          {"last_call", group.lastCall},
          {"failure", group.failure},
          {"num_operations", group.numOperations},
          {"operations", toJson(group.operations)},
          {"not_started", toJson(group.notStarted)}};
}

Json routeTo(int peer, const network::NetworkMessenger& messenger) {
  Json found = {{"rank", peer},
                {"silent_s", std::chrono::duration<double>(messenger.silence(peer)).count()},
                {"shared_memory", messenger.sharesMemoryWith(peer)},
                {"rails", Json::array()}};
  const std::optional<multirail::RouteState> route = messenger.routeTo(peer);
  if (!route) return found;
  for (const multirail::RouteState::Rail& rail : route->rails) {
    found["rails"].push_back(Json::object({{"is_up", rail.isUp}, {"bytes_in_flight", rail.numBytesInFlight}}));
  }
  found["frames_to_resend"] = route->numToResend;
  found["unreached_s"] = std::chrono::duration<double>(route->unreachedFor).count();
  found["failure"] = route->lastFailure;
  found["is_lost"] = route->isLost;
  return found;
}

Json railsOf(const network::NetworkMessenger& messenger) {
  Json rails = Json::array();
  const multirail::MultirailCounters& counters = messenger.counters();
  for (size_t i = 0; i < counters.rails.size(); ++i) {
    const multirail::MultirailCounters::Rail& rail = counters.rails[i];
    const topology::IpAddress& address = messenger.rails()[i].address;
    rails.push_back(Json::object({{"interface", interfaceOf(address)},
                                  {"address", toString(address)},
                                  {"is_link_up", messenger.isLinkUp(static_cast<int>(i))},
                                  {"bytes_per_second", messenger.bytesPerSecondOf(static_cast<int>(i))},
                                  {"bytes_sent", rail.numBytes},
                                  {"bytes_received", rail.numBytesReceived},
                                  {"failovers", rail.numLosses},
                                  {"stalls", rail.numStalls}}));
  }
  return rails;
}

/// Adds the groups, the peers that they wait for, and the rails. Requires: the caller is the driver.
void describeOnDriver(Json& document, engine::Engine& engine, const network::NetworkMessenger& messenger) {
  std::set<int> awaited;
  Json groups = Json::array();
  for (const engine::EngineClient* client : engine.clients()) {
    if (groups.size() == kMaxItems) break;
    const engine::GroupState group = client->state();
    for (const engine::OperationState& operation : group.operations) {
      awaited.insert(operation.awaited.begin(), operation.awaited.end());
    }
    groups.push_back(toJson(group));
  }
  awaited.erase(messenger.rank());
  Json peers = Json::array();
  for (const int peer : awaited) {
    if (peers.size() < kMaxItems) peers.push_back(routeTo(peer, messenger));
  }
  document["groups"] = std::move(groups);
  document["peers"] = std::move(peers);
  document["rails"] = railsOf(messenger);
}

}  // namespace

void setStackReader(StackReader reader) {
  const std::lock_guard lock(readerMutex);
  stackReader = std::move(reader);
}

std::string joiningJson(const WorldIdentity& identity, io::Clock::time_point since) {
  Json document = documentOf(identity, "joining");
  document["seconds"] = secondsSince(since);
  return textOf(document);
}

std::string inspectionJson(const WorldIdentity& identity, engine::Engine& engine,
                           const network::NetworkMessenger& messenger, FlightRecorder& recorder) {
  // The action may run after this function has timed out, so both own the answer.
  struct Answer {
    Json document;
    std::atomic<bool> isDone = false;
  };
  const Json document = documentOf(identity, "busy");
  const auto answer = std::make_shared<Answer>();
  answer->document = document;
  answer->document["state"] = "joined";
  engine.enqueue([answer, &engine, &messenger] {
    describeOnDriver(answer->document, engine, messenger);
    answer->isDone = true;
    engine.wakeWaiting();
  });
  if (!engine.wait(answer->isDone, io::Clock::now() + kDriverTimeout)) return textOf(document);
  if (const std::optional<FinishedOperation> last = recorder.lastFinished()) {
    answer->document["last_finished"] = Json::object({{"group", last->group},
                                                      {"call", last->name},
                                                      {"sequence", last->sequence},
                                                      {"seconds", secondsSince(last->ended)}});
  }
  return textOf(answer->document);
}

}  // namespace agspeed::comm::world
