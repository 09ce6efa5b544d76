// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/process_group.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "comm/c10d/arguments.h"
#include "comm/c10d/monitored_barrier.h"
#include "comm/c10d/profiling.h"
#include "comm/c10d/sparse_sum.h"
#include "comm/c10d/torch_store.h"
#include "runtime/base/format.h"

namespace agspeed::comm::c10d {
namespace {

using ::c10d::OpType;

/// Tags for the messages of sparse sums, above all tags that torch can pass. Each sum takes the next tag. After
/// kNumSparseTags sums, the first tag is used again.
constexpr uint32_t kFirstSparseTag = 1u << 31, kNumSparseTags = 1024;

/// Returns the id in `world` of a group that torch makes. All members agree on it through the store.
uint32_t agreedIdOf(World& world, const ::c10d::DistributedBackendOptions& options) {
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout);
  PrefixStore store = world.within(std::make_shared<TorchStore>(options.store));
  // Torch may reuse the name of a destroyed group. So every rank counts the groups of this name, and the count is part
  // of the key.
  const int64_t count = valueOrThrow(store.add(formatText("made/{}", options.group_rank), 1));
  return valueOrThrow(world.agreeOnId(store, formatText("group/{}", count),
                                      {.name = options.group_id, .rank = options.group_rank, .timeout = timeout}));
}

}  // namespace

c10::intrusive_ptr<ProcessGroup> ProcessGroup::create(const ::c10d::DistributedBackendOptions& options) {
  auto own =
      c10::make_intrusive<Options>("agspeed", std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout));
  own->group_name = options.group_id;
  std::vector<int> members(options.global_ranks_in_group.begin(), options.global_ranks_in_group.end());
  const bool isDefault = members.empty();
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  if (options.enable_reconfigure) return withoutMembers(options, isDefault, std::move(own));
#endif
  std::shared_ptr<World> world = isDefault ? nullptr : World::ofDefaultGroup();
  if (world != nullptr) checkNotForked(*world);
  if (world == nullptr) {
    world = valueOrThrow(World::create(TorchStore::onOwnConnection(options.store), options.group_rank,
                                       options.group_size, own->timeout));
    if (isDefault) World::setOfDefaultGroup(world);
    return join(std::move(world), 0, {}, std::move(own));
  }
  const uint32_t id = agreedIdOf(*world, options);
  return join(std::move(world), id, std::move(members), std::move(own));
}

ProcessGroup::~ProcessGroup() = default;

// --- collectives

ProcessGroup::TorchWork ProcessGroup::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
  return start(calls_.broadcast(tensors, options), tensors, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return sumSparse(tensors[0], options);
  return start(calls_.allreduce(tensors, options), tensors, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::allreduce_coalesced(Tensors& tensors,
                                                          const ::c10d::AllreduceCoalescedOptions& options) {
  return coalesced("all_reduce", tensors, [&](size_t i) {
    Tensors one = {tensors[i]};
    return start(calls_.allreduce(one, options), one, options.timeout);
  });
}

ProcessGroup::TorchWork ProcessGroup::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  return start(calls_.reduce(tensors, options), tensors, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const ::c10d::AllgatherOptions& options) {
  return start(calls_.allgather(outputs, inputs), inputs, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const ::c10d::AllgatherOptions& options) {
  return start(calls_.allgatherBase(output, input), input, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                          const ::c10d::AllgatherOptions& options) {
  checkCount(outputs.size(), static_cast<size_t>(getSize()), "allgather_coalesced", "lists of outputs");
  return coalesced("all_gather", inputs, [&](size_t i) {
    Tensors input = {inputs[i]};
    std::vector<Tensors> output(1);
    for (const Tensors& ofRank : outputs) output[0].push_back(ofRank.at(i));
    return start(calls_.allgather(output, input), input, options.timeout);
  });
}

ProcessGroup::TorchWork ProcessGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const ::c10d::AllgatherOptions& options) {
  checkPaired(outputs, inputs, "allgather_into_tensor_coalesced");
  return coalesced("all_gather", inputs, [&](size_t i) {
    return start(calls_.allgatherBase(outputs[i], inputs[i]), inputs[i], options.timeout);
  });
}

ProcessGroup::TorchWork ProcessGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const ::c10d::GatherOptions& options) {
  return start(calls_.gather(outputs, inputs, options), inputs, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const ::c10d::ScatterOptions& options) {
  return start(calls_.scatter(outputs, inputs, options), firstOf(inputs), options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const ::c10d::ReduceScatterOptions& options) {
  return start(calls_.reduceScatter(outputs, inputs, options), firstOf(inputs), options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const ::c10d::ReduceScatterOptions& options) {
  return start(calls_.reduceScatterBase(output, input, options), input, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const ::c10d::ReduceScatterOptions& options) {
  checkPaired(outputs, inputs, "reduce_scatter_tensor_coalesced");
  return coalesced("reduce_scatter", inputs, [&](size_t i) {
    return start(calls_.reduceScatterBase(outputs[i], inputs[i], options), inputs[i], options.timeout);
  });
}

ProcessGroup::TorchWork ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& outputSplits,
                                                    std::vector<int64_t>& inputSplits,
                                                    const ::c10d::AllToAllOptions& options) {
  return start(calls_.alltoallBase(output, input, outputSplits, inputSplits), input, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                               const ::c10d::AllToAllOptions& options) {
  return start(calls_.alltoall(outputs, inputs), inputs, options.timeout);
}

ProcessGroup::TorchWork ProcessGroup::barrier(const ::c10d::BarrierOptions& options) {
  return start(calls_.barrier(), {}, options.timeout);
}

void ProcessGroup::monitoredBarrier(const ::c10d::BarrierOptions& options, bool waitAllRanks) {
  const std::shared_ptr<Membership> member = membership();
  const bool isTimed = options.timeout != ::c10d::kUnsetTimeout;
  const Status status = runBarrier(member->world->store(), {.id = id_,
                                                            .number = ++numMonitoredBarriers_,
                                                            .rank = getRank(),
                                                            .size = getSize(),
                                                            .group = member->communicator->name(),
                                                            .timeout = isTimed ? options.timeout : options_->timeout,
                                                            .areAllNamed = waitAllRanks});
  if (!status.isOk()) raise(status);
}

// --- messages

ProcessGroup::TorchWork ProcessGroup::send(Tensors& tensors, int rank, int tag) {
  return startMessage(/*isSend=*/true, tensors, rank, checkedTag(tag, "send"));
}

ProcessGroup::TorchWork ProcessGroup::recv(Tensors& tensors, int rank, int tag) {
  return startMessage(/*isSend=*/false, tensors, rank, checkedTag(tag, "recv"));
}

ProcessGroup::TorchWork ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  return startMessage(/*isSend=*/false, tensors, kAnyRank, checkedTag(tag, "recv"));
}

Work::Handle ProcessGroup::startMessage(bool isSend, Tensors tensors, int rank, uint32_t tag) {
  const char* name = isSend ? "send" : "recv";
  const at::Tensor& tensor = single(tensors, name);
  const bool isToAnother = rank >= 0 && rank < getSize() && rank != getRank();
  TORCH_CHECK_VALUE(isToAnother || rank == kAnyRank, "agspeed: ", name, ": invalid rank ", rank, " at rank ", getRank(),
                    " of a group of ", getSize());
  Buffers buffers;
  const BufferList bytes = {isSend ? buffers.read(tensor) : buffers.write(tensor)};
  const OperationOptions options = optionsOf(buffers, ::c10d::kUnsetTimeout);
  const FlightFacts flight{.name = isSend ? "send" : "receive",
                           .sequence = ++sequence_,
                           .dtype = movableTypeOf(tensor),
                           .rank = rank,
                           .tag = tag,
                           .started = Clock::now(),
                           .timeout = options.timeout};
  const std::shared_ptr<Membership> member = membership();
  Communicator& communicator = *member->communicator;
  auto endEvent = beginEvent(rank == kAnyRank ? "recvAnySource" : name, tensors);
  OperationHandle operation =
      isSend ? communicator.send(rank, tag, bytes[0], options) : communicator.receive(rank, tag, bytes[0], options);
  ring_->add(flight, isSend ? bytes : BufferList(), isSend ? BufferList() : bytes, operation);
  const OpType type = isSend ? OpType::SEND : rank == kAnyRank ? OpType::RECVANYSOURCE : OpType::RECV;
  WorkFacts facts{getRank(), type,         flight.sequence, name, isSend ? Tensors() : std::move(tensors),
                  ring_,     member->world};
  auto work = c10::make_intrusive<Work>(std::move(facts), std::vector{std::move(operation)}, std::move(buffers),
                                        std::move(endEvent));
  coalescing_.add(work);
  return work;
}

// --- several at once

ProcessGroup::TorchWork ProcessGroup::together(const std::vector<Work::Handle>& parts, std::function<void()> endEvent) {
  if (!parts.empty()) return c10::make_intrusive<Work>(parts, std::move(endEvent));
  return c10::make_intrusive<Work>(WorkFacts{getRank(), OpType::COALESCED, sequence_, "coalesced", {}, ring_, {}},
                                   std::vector<OperationHandle>(), Buffers());
}

template <typename Start>
ProcessGroup::TorchWork ProcessGroup::coalesced(const char* name, const Tensors& inputs, const Start& start) {
  TORCH_CHECK_VALUE(!inputs.empty(), "agspeed: a coalesced operation requires non-empty tensor list");
  auto endEvent = beginEvent(name, inputs);
  const at::DisableRecordFunctionGuard oneEvent;
  std::vector<Work::Handle> parts;
  for (size_t i = 0; i < inputs.size(); ++i) parts.push_back(start(i));
  return together(parts, std::move(endEvent));
}

// --- sparse tensors

ProcessGroup::TorchWork ProcessGroup::sumSparse(const at::Tensor& tensor, const ::c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(static_cast<::c10d::ReduceOp::RedOpType>(options.reduceOp) == ::c10d::ReduceOp::SUM,
                    "agspeed: unsupported reduction operation: sparse tensors can only be summed up");
  TORCH_CHECK_VALUE(!coalescing_.isActive(), "agspeed: sparse tensors cannot be part of a coalesced operation");
  const uint32_t tag = kFirstSparseTag + numSparseSums_++ % kNumSparseTags;
  const auto self = c10::intrusive_ptr<ProcessGroup>::unsafe_reclaim_from_nonowning(this);
  SparseLinks links;
  links.rank = getRank();
  links.allGather = [self, timeout = options.timeout](Tensors& outputs, const at::Tensor& input) {
    const at::DisableRecordFunctionGuard noEvent;
    for (int rank = 0; rank < self->getSize(); ++rank) outputs.push_back(at::empty_like(input));
    std::vector<Tensors> lists = {outputs};
    Tensors inputs = {input};
    return self->allgather(lists, inputs, {.timeout = timeout});
  };
  links.exchange = [self, tag](const Tensors& own, const std::vector<Tensors>& others) {
    return self->exchange(own, others, tag);
  };
  return SparseSum::start(tensor, std::move(links));
}

ProcessGroup::TorchWork ProcessGroup::exchange(const Tensors& own, const std::vector<Tensors>& others, uint32_t tag) {
  const at::DisableRecordFunctionGuard noEvents;  // the sum has an event of its own, which includes these messages
  std::vector<Work::Handle> parts;
  for (int rank = 0; rank < getSize(); ++rank) {
    if (rank == getRank()) continue;
    for (const at::Tensor& each : own) {
      if (each.numel() > 0) parts.push_back(startMessage(/*isSend=*/true, {each}, rank, tag));
    }
    for (const at::Tensor& each : others[static_cast<size_t>(rank)]) {
      if (each.numel() > 0) parts.push_back(startMessage(/*isSend=*/false, {each}, rank, tag));
    }
  }
  return together(parts);
}

// --- the group itself

c10::intrusive_ptr<::c10d::Backend> ProcessGroup::split(const c10::intrusive_ptr<::c10d::Store>& store,
                                                        const std::vector<int>& ranks,
                                                        const c10::intrusive_ptr<Backend::Options>& options) {
  const std::shared_ptr<World> world = membership()->world;
  std::vector<int> members = membersOf(members_, ranks);
  ++numSplits_;  // equal at all ranks: ranks outside the part call split(), too
  const auto rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), getRank()) - ranks.begin());
  if (rank == std::ssize(ranks)) return nullptr;
  auto own = options != nullptr ? c10::make_intrusive<Options>(*options) : c10::make_intrusive<Options>(*options_);
  // The key contains the part's first member, because ranks may make different parts by the same call, with the same
  // number.
  const std::string key = formatText("split/{}/{}/{}", id_, numSplits_, members.front());
  const uint32_t id = valueOrThrow(
      world->agreeOnId(world->store(), key, {.name = own->group_name, .rank = rank, .timeout = own->timeout}));
  return join(world, id, std::move(members), own);
}

::c10d::ErrorType ProcessGroup::getError() {
  const std::shared_ptr<Membership> member = membershipIfAny();
  const bool isOk = member == nullptr || member->communicator->health().isOk();
  return isOk ? ::c10d::ErrorType::SUCCESS : ::c10d::ErrorType::COMM_ERROR;
}

void ProcessGroup::abort() {
  const std::shared_ptr<Membership> member = membershipIfAny();
  if (member != nullptr) member->communicator->abort(formatText("abort() was called on rank {}", getRank()));
}

std::string ProcessGroup::countersJson() { return membership()->world->countersJson(); }

void ProcessGroup::setAlgorithm(const std::string& collective, const std::string& algorithm) {
  chooseAlgorithm(plan_, collective, algorithm);
  membership()->communicator->setPlan(plan_);
}

OperationOptions ProcessGroup::optionsOf(const Buffers& buffers, std::chrono::milliseconds timeout) const {
  return {.timeout = timeout == ::c10d::kUnsetTimeout || timeout == kNoTimeout ? options_->timeout : timeout,
          .readiness = buffers.readiness()};
}

Work::Handle ProcessGroup::start(PreparedCall prepared, at::TensorList inputs, std::chrono::milliseconds timeout) {
  OperationOptions own = optionsOf(prepared.buffers, timeout);
  CollectiveCall& call = prepared.call;
  const FlightFacts flight{.name = toString(call.collective),
                           .sequence = ++sequence_,
                           .dtype = call.dtype,
                           .rank = hasRoot(call.collective) ? call.root : -1,
                           .started = Clock::now(),
                           .timeout = own.timeout};
  const BufferList input = call.input, output = call.output;
  const std::shared_ptr<Membership> member = membership();
  WorkFacts facts{getRank(), prepared.type, flight.sequence, flight.name, std::move(prepared.results),
                  ring_,     member->world};
  auto endEvent = beginEvent(flight.name, inputs);
  OperationHandle operation = member->communicator->start(std::move(call), std::move(own));
  ring_->add(flight, input, output, operation);
  // An invalid call has failed by now; throw its error here. If the group has failed, the work reports the error.
  if (operation->isDone() && operation->status().code() == StatusCode::kInvalidArgument &&
      member->communicator->health().isOk()) {
    raise(operation->status());
  }
  auto work = c10::make_intrusive<Work>(std::move(facts), std::vector{std::move(operation)},
                                        std::move(prepared.buffers), std::move(endEvent));
  coalescing_.add(work);
  return work;
}

}  // namespace agspeed::comm::c10d
