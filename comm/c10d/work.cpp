// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/work.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "comm/c10d/arguments.h"

namespace agspeed::comm::c10d {

Work::Work(WorkFacts facts, std::vector<OperationHandle> operations, Buffers buffers, std::function<void()> endEvent)
    : ::c10d::Work(facts.rank, facts.type),
      facts_(std::move(facts)),
      state_(std::make_shared<State>(facts_.ring, facts_.world)) {
  state_->operations = std::move(operations);
  if (buffers.staging() != nullptr) state_->stagings.push_back(buffers.staging());
  state_->buffers = std::move(buffers);
  endWith(std::move(endEvent));
}

Work::Work(const std::vector<Handle>& parts, std::function<void()> endEvent) : Work(parts.front()->facts_, {}, {}) {
  facts_.results.clear();
  for (const Handle& part : parts) {
    const State& state = *part->state_;
    state_->operations.insert(state_->operations.end(), state.operations.begin(), state.operations.end());
    state_->stagings.insert(state_->stagings.end(), state.stagings.begin(), state.stagings.end());
    state_->parts.push_back(part->state_);
    facts_.results.insert(facts_.results.end(), part->facts_.results.begin(), part->facts_.results.end());
    part->isPart_ = true;
  }
  endWith(std::move(endEvent));
}

void Work::endWith(std::function<void()> endEvent) {
  if (endEvent == nullptr) return;
  state_->endEvent = std::move(endEvent);
  whenDone(state_, [state = state_] { state->finish(); });
}

Work::~Work() {
  if (isPart_) return;
  if (state_->areDone()) {
    state_->finish();
  } else {
    whenDone(state_, [state = state_] { state->finish(); });
  }
}

bool Work::isCompleted() {
  if (!state_->areDone()) return false;
  state_->observe();
  return true;
}

int Work::sourceRank() const {
  const auto& operations = state_->operations;
  return operations.size() == 1 && operations[0]->isDone() ? operations[0]->sourceRank() : -1;
}

bool Work::isSuccess() const { return state_->areDone() && state_->observe().isOk(); }

std::exception_ptr Work::exception() const {
  if (!state_->areDone() || state_->observe().isOk()) return nullptr;
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, state_->observe().message()));
}

bool Work::wait(std::chrono::milliseconds timeout) {
  const auto deadline = timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
  const std::shared_ptr<World> world = state_->world.lock();  // keeps the engine alive while waitUntil() drives it
  for (const OperationHandle& operation : state_->operations) {
    if (operation->isDone()) continue;
    if (world != nullptr) checkNotForked(*world);
    if (operation->waitUntil(deadline)) continue;
    const std::string text =
        c10::str("agspeed: wait() for ", facts_.name, " (operation ", facts_.sequence, " of rank ", facts_.rank,
                 ") timed out after ", timeout.count(), " ms; the operation goes on until its own timeout");
    facts_.ring->failed(text);
    C10_THROW_ERROR(DistBackendError, text);
  }
  const Status& status = state_->observe();
  TORCH_CHECK_WITH(DistBackendError, status.isOk(), status.message());
  state_->join();
  return true;
}

void Work::abort() {
  TORCH_CHECK(false, "agspeed: a single operation cannot be aborted, as other ranks wait for it; abort the group");
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const std::lock_guard lock(futureMutex_);
  if (future_ == nullptr) {
    std::vector<c10::Device> devices;
    for (const auto& staging : state_->stagings) devices.push_back(staging->stream().device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::move(devices));
    whenDone(state_, [state = state_, future = future_, results = facts_.results] {
      const Status& status = state->observe();
      if (status.isOk()) {
        // The future records the current stream as the one that produces its value.
        std::optional<c10::StreamGuard> guard;
        if (!state->stagings.empty()) guard.emplace(state->stagings.front()->stream());
        state->join();
        future->markCompleted(c10::IValue(results));
      } else {
        future->setError(
            std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, status.message())));
      }
    });
  }
  return future_;
}

void Work::whenDone(const std::shared_ptr<State>& state, std::function<void()> action) {
  if (const std::shared_ptr<World> world = state->world.lock()) return whenDoneFrom(0, state, std::move(action));
  action();
}

void Work::whenDoneFrom(size_t next, const std::shared_ptr<State>& state, std::function<void()> action) {
  if (next == state->operations.size()) return action();
  state->operations[next]->whenDone([state, next, action = std::move(action)](const Status&) mutable {
    whenDoneFrom(next + 1, state, std::move(action));
  });
}

bool Work::State::areDone() const {
  return std::all_of(operations.begin(), operations.end(), [](const auto& operation) { return operation->isDone(); });
}

void Work::State::join() const {
  for (const auto& staging : stagings) staging->join();
}

const Status& Work::State::finish() {
  // Destroy the buffers after `mutex` is released. Releasing tensors may need Python's lock, and the thread that holds
  // Python's lock may wait for `mutex`.
  Buffers dropped;
  Status ofParts;
  for (const auto& part : parts) {
    const Status& each = part->finish();
    if (ofParts.isOk()) ofParts = each;
  }
  const std::lock_guard lock(mutex);
  if (isFinished) return status;
  isFinished = true;
  const auto failed = std::find_if(operations.begin(), operations.end(),
                                   [](const auto& operation) { return !operation->status().isOk(); });
  status = failed != operations.end() ? (*failed)->status() : ofParts;
  if (status.isOk()) status = copyBack();
  std::swap(dropped, buffers);
  if (endEvent != nullptr) std::exchange(endEvent, nullptr)();
  return status;
}

Status Work::State::copyBack() {
  try {
    buffers.finish();
    return {};
  } catch (const std::exception& error) {
    return unavailable("copying the results back failed: {}", messageOf(error));
  }
}

const Status& Work::State::observe() {
  if (!finish().isOk()) ring->failed(status.message());
  return status;
}

}  // namespace agspeed::comm::c10d
