// SPDX-License-Identifier: Apache-2.0
#include "comm/io/poller.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include "runtime/base/check.h"
#include "runtime/base/system_error.h"

namespace agspeed::comm::io {
namespace {

constexpr uint64_t kWakeUp = UINT64_MAX;
constexpr int kMaxEvents = 64;
/// While every poll of the memory finds changes, wait() polls the descriptors only once in this many calls.
constexpr uint32_t kMemoryPollsPerWait = 16;
/// If the last change of the memory came within kQuick after arm(), the next change will probably come soon, too. So
/// wait() first yields the processor for up to kYieldFor before it sleeps. A sleep and its wake-up would cost both
/// processes more time than this.
constexpr std::chrono::microseconds kYieldFor{60}, kQuick{1000};
/// A yield that takes longer than kLongYield shows that other processes use the processor. A process that sleeps then
/// gets the processor back sooner than a process that yields. So wait() stops yielding for the time noYieldFor_. Each
/// long yield doubles this time, and each short yield reduces it by 1/64. So it grows if more than about one yield in
/// 45 is long.
constexpr std::chrono::microseconds kLongYield{500};
constexpr Clock::duration kMinNoYield = std::chrono::milliseconds(1), kMaxNoYield = std::chrono::milliseconds(100);
constexpr int kShortYieldsPerLong = 64;
/// wait() coalesces events only if `coalesceUntil` is at least this far away, because coalescing costs a system call.
constexpr std::chrono::microseconds kMinCoalesce{100};

uint64_t keyOf(Poller::Id id, uint32_t generation) { return uint64_t{generation} << 32 | id; }

timespec toTimespec(Clock::duration duration) {
  const auto nanoseconds = std::max<int64_t>(0, std::chrono::nanoseconds(duration).count());
  return {static_cast<time_t>(nanoseconds / 1'000'000'000), static_cast<long>(nanoseconds % 1'000'000'000)};
}

/// Calls epoll_wait with a timeout that is finer than a millisecond, if the kernel supports it.
int waitFor(int epoll, epoll_event* events, Clock::duration timeout) {
  const timespec limit = toTimespec(timeout);
  const int count = epoll_pwait2(epoll, events, kMaxEvents, &limit, nullptr);
  if (count >= 0 || errno != ENOSYS) return count;
  return epoll_wait(epoll, events, kMaxEvents,
                    static_cast<int>(limit.tv_sec * 1'000 + (limit.tv_nsec + 999'999) / 1'000'000));
}

}  // namespace

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wakeUp_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWakeUp;
  if (epoll_ < 0 || wakeUp_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wakeUp_, &event) != 0) {
    status_ = unavailable("cannot wait for the network: {}", describeError(errno));
  }
}

Poller::~Poller() {
  if (wakeUp_ >= 0) close(wakeUp_);
  if (epoll_ >= 0) close(epoll_);
}

Poller::Id Poller::add(int descriptor, uint32_t events, Handler& handler) {
  if (freeSlots_.empty()) {
    freeSlots_.push_back(static_cast<Id>(slots_.size()));
    slots_.emplace_back();
  }
  const Id id = freeSlots_.back();
  freeSlots_.pop_back();
  slots_[id].handler = &handler;
  epoll_event event = {};
  event.events = events;
  event.data.u64 = keyOf(id, slots_[id].generation);
  AG_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0, "cannot poll: {}", describeError(errno));
  return id;
}

void Poller::remove(Id id, int descriptor) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
  slots_[id].handler = nullptr;
  ++slots_[id].generation;  // waitForDescriptors() then ignores events that it has already fetched for this handler
  freeSlots_.push_back(id);
}

bool Poller::wait(Clock::time_point until, Clock::time_point coalesceUntil) {
  const bool hasCoalesced = until != Clock::time_point() && !isMoreReady_ && coalesce(coalesceUntil);
  if (memory_ == nullptr) return waitForDescriptors(until);
  if (memory_->poll()) return (hasCoalesced || ++numPolls_ % kMemoryPollsPerWait == 0) && waitForDescriptors({});
  if (until == Clock::time_point() || (isAnswerQuick_ && yieldToWriters(until))) return waitForDescriptors({});
  const Clock::time_point since = Clock::now();
  memory_->arm();
  const bool hasChangedAtOnce = memory_->poll();
  const bool isWoken = waitForDescriptors(hasChangedAtOnce ? Clock::time_point() : until);
  if (memory_ != nullptr) {
    const Clock::time_point now = Clock::now();
    memory_->disarm();
    const bool hasChanged = memory_->poll();
    isAnswerQuick_ = (hasChangedAtOnce || (hasChanged && now - since < kQuick)) && now >= noYieldUntil_;
  }
  return isWoken;
}

bool Poller::yieldToWriters(Clock::time_point until) {
  const Clock::time_point since = Clock::now();
  Clock::time_point now = since;
  bool hasChanged = false;
  for (until = std::min(until, since + kYieldFor); !hasChanged && !isWakeDue_ && now < until;) {
    sched_yield();
    now = Clock::now();
    hasChanged = memory_->poll();
  }
  if (now - since > kLongYield) {
    isAnswerQuick_ = false;
    noYieldFor_ = std::clamp(2 * noYieldFor_, kMinNoYield, kMaxNoYield);
    noYieldUntil_ = now + noYieldFor_;
  } else {
    noYieldFor_ -= noYieldFor_ / kShortYieldsPerLong;
  }
  return hasChanged;
}

bool Poller::coalesce(Clock::time_point until) const {
  const Clock::duration left = until - Clock::now();
  if (left < kMinCoalesce) return false;
  const timespec limit = toTimespec(left);
  pollfd woken = {wakeUp_, POLLIN, 0};
  ppoll(&woken, 1, &limit, nullptr);
  return true;
}

bool Poller::waitForDescriptors(Clock::time_point until) {
  std::array<epoll_event, kMaxEvents> events;
  const bool isInThePast = until == Clock::time_point();
  const int count = waitFor(epoll_, events.data(), isInThePast ? Clock::duration::zero() : until - Clock::now());
  isMoreReady_ = count == kMaxEvents;
  bool isWoken = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t key = events[static_cast<size_t>(i)].data.u64;
    if (key == kWakeUp) {
      uint64_t value = 0;
      isWoken = read(wakeUp_, &value, sizeof(value)) > 0 || isWoken;
      isWakeDue_ = false;
      continue;
    }
    const Slot slot = slots_[key & UINT32_MAX];
    if (slot.handler != nullptr && slot.generation == key >> 32) {
      slot.handler->ready(events[static_cast<size_t>(i)].events);
    }
  }
  return isWoken;
}

void Poller::wake() {
  isWakeDue_ = true;
  const uint64_t one = 1;
  // Ignore a failure. It means that the counter is full, so an earlier wake-up is still pending and has the same
  // effect.
  [[maybe_unused]] const ssize_t written = write(wakeUp_, &one, sizeof(one));
}

}  // namespace agspeed::comm::io
