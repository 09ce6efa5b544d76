// SPDX-License-Identifier: Apache-2.0
// The functions of ProcessGroup about its members: it enters a group, leaves it, and gets other members.
#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "comm/c10d/arguments.h"
#include "comm/c10d/process_group.h"
#include "comm/c10d/torch_store.h"

namespace agspeed::comm::c10d {
namespace {

constexpr const char* kNoMembers = "agspeed: the process group has no members: call reconfigure() at all of them first";

/// Returns the numbers of all ranks of a world of this size.
std::vector<int> allOf(int size) {
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

}  // namespace

c10::intrusive_ptr<ProcessGroup> ProcessGroup::join(std::shared_ptr<World> world, uint32_t id, std::vector<int> members,
                                                    c10::intrusive_ptr<Options> options) {
  if (members.empty()) members = allOf(world->size());
  auto communicator = makeCommunicator(*world, id, members, *options);
  auto group = c10::intrusive_ptr<ProcessGroup>::unsafe_steal_from_new(
      new ProcessGroup(communicator->rank(), communicator->size(), std::move(options)));
  group->enter(std::move(world), id, std::move(communicator), std::move(members));
  return group;
}

std::unique_ptr<Communicator> ProcessGroup::makeCommunicator(World& world, uint32_t id, const std::vector<int>& members,
                                                             const Options& options) {
  GroupOptions group;
  group.id = id;
  group.members = members;
  group.timeout = options.timeout;
  if (!options.group_name.empty()) group.name = options.group_name;
  return valueOrThrow(Communicator::create(world.engine(), std::move(group)));
}

ProcessGroup::ProcessGroup(int rank, int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size), options_(std::move(options)), calls_(rank, size) {}

void ProcessGroup::enter(std::shared_ptr<World> world, uint32_t id, std::unique_ptr<Communicator> communicator,
                         std::vector<int> members) {
  id_ = id;
  members_ = std::move(members);
  calls_ = Calls(communicator->rank(), communicator->size());
  plan_ = Plan();
  sequence_ = numSplits_ = numMonitoredBarriers_ = 0;
  numSparseSums_ = 0;
  const std::lock_guard lock(mutex_);
  recorder_ = world->recorder();
  ring_ = recorder_->addGroup(communicator->name(), members_);
  membership_ = std::make_shared<Membership>(std::move(world), std::move(communicator));
}

ProcessGroup::Membership::~Membership() {
  if (world->isForked()) (void)communicator.release();
}

void ProcessGroup::shutdown() {
  std::shared_ptr<Membership> ended;  // destroyed after the lock is released, because it waits for threads
  const std::lock_guard lock(mutex_);
  ended.swap(membership_);
}

std::shared_ptr<ProcessGroup::Membership> ProcessGroup::membershipIfAny() const {
  const std::lock_guard lock(mutex_);
  return membership_ != nullptr && !membership_->world->isForked() ? membership_ : nullptr;
}

std::shared_ptr<ProcessGroup::Membership> ProcessGroup::membership() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, membership_ != nullptr,
                   reconfigurable_ != nullptr ? kNoMembers : "agspeed: the process group was shut down");
  checkNotForked(*membership_->world);
  return membership_;
}

std::string ProcessGroup::flightRecordJson() {
  std::shared_ptr<FlightRecorder> recorder;
  {
    const std::lock_guard lock(mutex_);
    recorder = recorder_;
  }
  TORCH_CHECK_WITH(DistBackendError, recorder != nullptr, kNoMembers);
  return recorder->toJson("requested by the caller");
}

// --- other members

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace {

/// Returns the handles in the order of the ranks, which is the same at all members.
std::vector<std::string> handlesByRank(const ::c10d::ReconfigureOptions& options) {
  if (const auto* ordered = std::get_if<std::vector<std::string>>(&options.handles)) return *ordered;
  const auto& unordered = std::get<std::unordered_set<std::string>>(options.handles);
  std::vector<std::string> handles(unordered.begin(), unordered.end());
  std::sort(handles.begin(), handles.end());
  return handles;
}

}  // namespace

c10::intrusive_ptr<ProcessGroup> ProcessGroup::withoutMembers(const ::c10d::DistributedBackendOptions& options,
                                                              bool isDefault, c10::intrusive_ptr<Options> own) {
  auto store = TorchStore::onOwnConnection(options.store);
  std::string handle = valueOrThrow(makeHandle(*store));
  auto group = c10::intrusive_ptr<ProcessGroup>::unsafe_steal_from_new(
      new ProcessGroup(options.group_rank, options.group_size, std::move(own)));
  group->reconfigurable_ =
      std::make_unique<const Reconfigurable>(Reconfigurable{std::move(store), std::move(handle), isDefault});
  return group;
}

const ProcessGroup::Reconfigurable& ProcessGroup::reconfigurable() const {
  TORCH_CHECK_WITH(DistBackendError, reconfigurable_ != nullptr,
                   "agspeed: this process group keeps its members; make it by init_process_group() with "
                   "enable_reconfigure=True");
  return *reconfigurable_;
}

::c10d::ReconfigureHandle ProcessGroup::get_reconfigure_handle() const { return reconfigurable().handle; }

ProcessGroup::TorchWork ProcessGroup::reconfigure(const ::c10d::ReconfigureOptions& options) {
  const Reconfigurable& own = reconfigurable();
  TORCH_CHECK_VALUE(options.hints.empty(), "agspeed: reconfigure() knows no hint '", options.hints.begin()->first,
                    "'; pass no hints");
  const NewMembers members{options.uuid, handlesByRank(options), own.handle};
  const StatusOr<int> rank = claimRank(*own.store, members);
  if (!rank.hasValue()) raise(rank.status().withContext("agspeed: reconfigure()"));
  const auto size = static_cast<int>(members.handles.size());
  shutdown();
  std::shared_ptr<World> world =
      valueOrThrow(World::create(std::make_shared<PrefixStore>(own.store, groupPrefix(members.uuid)), *rank, size,
                                 options.timeout.value_or(options_->timeout)));
  if (own.isDefault) World::setOfDefaultGroup(world);
  std::vector<int> all = allOf(size);
  auto communicator = makeCommunicator(*world, 0, all, *options_);
  rank_ = *rank;
  size_ = size;
  enter(std::move(world), 0, std::move(communicator), std::move(all));
  return together({});
}

#endif

}  // namespace agspeed::comm::c10d
