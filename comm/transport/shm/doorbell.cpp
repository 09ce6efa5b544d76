// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <string>

#include "runtime/base/system_error.h"

namespace agspeed::comm::shm {
namespace {

constexpr size_t kPageBytes = 4096;
static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share nothing but memory");

}  // namespace

StatusOr<Doorbell> Doorbell::create() {
  AG_ASSIGN_OR_RETURN(SharedMemory page, SharedMemory::create(kPageBytes));
  io::FileDescriptor bell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!bell.isOpen()) return unavailable("cannot make an eventfd: {}", describeError(errno));
  new (page.data()) std::atomic<uint32_t>(0);
  return Doorbell(std::move(page), std::move(bell));
}

StatusOr<Doorbell> Doorbell::open(const io::FileDescriptor& page, io::FileDescriptor bell) {
  AG_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::open(page, kPageBytes));
  return Doorbell(std::move(memory), std::move(bell));
}

bool Doorbell::ring() {
  if (flag().load() == 0 || flag().exchange(0) == 0) return false;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof(one));
  return true;
}

}  // namespace agspeed::comm::shm
