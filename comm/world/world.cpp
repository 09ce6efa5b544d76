// SPDX-License-Identifier: Apache-2.0
#include "comm/world/world.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/world/agreement.h"
#include "comm/world/counters.h"
#include "comm/world/inspection.h"
#include "comm/world/inspection_point.h"
#include "runtime/base/log.h"
#include "runtime/base/settings.h"

namespace agspeed::comm::world {
namespace {

std::mutex defaultMutex;
std::weak_ptr<World> defaultWorld;  // defaultMutex guards it

Status rankZeroIsMissing(const NewGroup& group) {
  return resourceExhausted(
      "rank {} of group '{}' timed out: rank 0 of it did not make the group within {:g} s; all ranks of the group have "
      "to make it",
      group.rank, group.name, std::chrono::duration<double>(group.timeout).count());
}

engine::WireCoding codingFromSettings() {
  const std::string& coding = settings().wireCoding;
  if (coding == "on") return engine::WireCoding::kOn;
  return coding == "off" ? engine::WireCoding::kOff : engine::WireCoding::kAuto;
}

/// Agrees on the epoch of a new world. While the rank waits for the other ranks, an inspection point answers `agspeed
/// comm inspect` with joiningJson().
StatusOr<uint32_t> join(rendezvous::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  const auto began = io::Clock::now();
  const WorldIdentity identity{rank, size, ""};
  const auto point = InspectionPoint::open(identity, [=] { return joiningJson(identity, began); });
  return agreeOnEpoch(store, rank, size, began + timeout);
}

/// Agrees with the other ranks on the job's name: hexadecimal digits that no other world has. `agspeed comm inspect`
/// distinguishes jobs by this name.
StatusOr<std::string> agreeOnJob(rendezvous::Store& store) {
  const std::string own = security::randomDigits(4);
  AG_ASSIGN_OR_RETURN(std::string job, store.setOnce("job", own));
  const bool isValid = job.size() == own.size() && job.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!isValid) return dataLoss("the store's job is '{}', not {} hexadecimal digits", job, own.size());
  return job;
}

/// Returns a number that changes in a forked process. Every operation calls this function, so it avoids getpid(), which
/// is a system call.
uint64_t processMark() {
  static std::atomic<uint64_t> numForks = 0;
  static const bool isCounted = pthread_atfork(nullptr, nullptr, [] { ++numForks; }) == 0;
  return isCounted ? numForks.load(std::memory_order_relaxed) : static_cast<uint64_t>(getpid());
}

}  // namespace

StatusOr<std::shared_ptr<World>> World::create(const std::shared_ptr<rendezvous::Store>& jobStore, int rank, int size,
                                               std::chrono::milliseconds timeout) {
  AG_ASSIGN_OR_RETURN(network::NetworkOptions options, network::NetworkOptions::fromSettings(rank, size));
  AG_ASSIGN_OR_RETURN(options.epoch, join(*jobStore, rank, size, timeout));
  std::string prefix = formatText("agspeed/{}/{}/", size, options.epoch);
  auto own = std::make_unique<rendezvous::PrefixStore>(jobStore, prefix);
  AG_ASSIGN_OR_RETURN(std::string job, agreeOnJob(*own));
  AG_ASSIGN_OR_RETURN(std::unique_ptr<network::NetworkMessenger> messenger,
                      network::NetworkMessenger::create(*own, options));
  return std::shared_ptr<World>(new World(std::move(prefix), std::move(own), std::move(messenger), std::move(job)),
                                &World::end);
}

void World::end(World* world) {
  if (world->isForked()) return;
  const bool isInspecting = world->inspectionPoint_ != nullptr && world->inspectionPoint_->isOwnThread();
  if (!isInspecting && !world->engine_.isOwnThread()) {
    delete world;
  } else {
    try {
      std::thread([world] { delete world; }).detach();
    } catch (const std::system_error& error) {
      AG_LOG(kWarn,
             "the connections of a group that has ended stay open, because no thread can be started to close them: {}",
             error.what());
    }
  }
}

StatusOr<std::string> World::describeAlone() {
  rendezvous::MemoryStore store;
  AG_ASSIGN_OR_RETURN(const network::NetworkOptions options, network::NetworkOptions::fromSettings(0, 1));
  AG_ASSIGN_OR_RETURN(const std::unique_ptr<network::NetworkMessenger> messenger,
                      network::NetworkMessenger::create(store, options));
  return messenger->describe();
}

std::shared_ptr<World> World::ofDefaultGroup() {
  const std::lock_guard lock(defaultMutex);
  return defaultWorld.lock();
}

void World::setOfDefaultGroup(const std::shared_ptr<World>& world) {
  const std::lock_guard lock(defaultMutex);
  defaultWorld = world;
}

World::World(std::string prefix, std::unique_ptr<rendezvous::Store> store,
             std::unique_ptr<network::NetworkMessenger> messenger, std::string job)
    : processMark_(processMark()),
      recorder_(std::make_shared<FlightRecorder>(messenger->rank(), messenger->size())),
      prefix_(std::move(prefix)),
      store_(std::move(store)),
      messenger_(std::move(messenger)),
      engine_(*messenger_, codingFromSettings()),
      inspectionPoint_(openInspectionPoint(std::move(job))) {}

World::~World() = default;

std::unique_ptr<InspectionPoint> World::openInspectionPoint(std::string job) {
  const WorldIdentity identity{rank(), size(), std::move(job)};
  return InspectionPoint::open(identity,
                               [this, identity] { return inspectionJson(identity, engine_, *messenger_, *recorder_); });
}

bool World::isForked() const { return processMark() != processMark_; }

std::string World::countersJson() {
  std::string text;
  engine_.runOnDriver([&] { text = comm::world::countersJson(*messenger_, engine_.coder().counters(), *recorder_); });
  return text;
}

StatusOr<uint32_t> World::agreeOnId(rendezvous::Store& store, const std::string& key, const NewGroup& group) {
  const auto deadline = std::chrono::steady_clock::now() + group.timeout;
  if (group.rank == 0) {
    AG_ASSIGN_OR_RETURN(const int64_t id, store_->add("groups", 1));
    AG_RETURN_IF_ERROR(store.set(key, std::to_string(id)));
    return static_cast<uint32_t>(id);
  }
  AG_ASSIGN_OR_RETURN(const std::optional<std::string> text, store.getUntil(key, deadline));
  if (!text.has_value()) return rankZeroIsMissing(group);
  return numberIn(key, *text);
}

}  // namespace agspeed::comm::world
