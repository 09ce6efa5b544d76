// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/base/system_error.h"

namespace agspeed::comm::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

StatusOr<std::span<std::byte>> mapWhole(int descriptor, size_t size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) {
    return unavailable("cannot map {} bytes of shared memory: {}", size, std::strerror(errno));
  }
  // A forked child does not inherit the mapping.
  (void)madvise(address, size, MADV_DONTFORK);
  return std::span(static_cast<std::byte*>(address), size);
}

}  // namespace

StatusOr<SharedMemory> SharedMemory::create(size_t size) {
  io::FileDescriptor descriptor(memfd_create("agspeed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.isOpen() || ftruncate(descriptor.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) {
    return unavailable("cannot make {} bytes of shared memory: {}", size, describeError(errno));
  }
  AG_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, mapWhole(descriptor.get(), size));
  return SharedMemory(bytes, std::move(descriptor));
}

StatusOr<SharedMemory> SharedMemory::open(const io::FileDescriptor& descriptor, size_t size) {
  struct stat info = {};
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  const bool isSealed = seals >= 0 && (seals & kSeals) == kSeals;
  if (!isSealed || fstat(descriptor.get(), &info) != 0 || static_cast<size_t>(info.st_size) != size) {
    return invalidArgument("the received descriptor is not shared memory of {} bytes", size);
  }
  AG_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, mapWhole(descriptor.get(), size));
  return SharedMemory(bytes, io::FileDescriptor());
}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace agspeed::comm::shm
