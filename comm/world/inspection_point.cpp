// SPDX-License-Identifier: Apache-2.0
#include "comm/world/inspection_point.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "comm/io/clock.h"
#include "comm/security/keys.h"
#include "comm/transport/shm/local_socket.h"
#include "runtime/base/log.h"
#include "runtime/base/system_error.h"

namespace agspeed::comm::world {
namespace {

using std::chrono::milliseconds;

/// If a caller has not read its document after this time, it gets only a part of the document.
constexpr milliseconds kSendTimeout{1000};
/// The pause after a failed accept(), for example while the process has no free descriptors.
constexpr milliseconds kPauseAfterFailure{100};
/// A document is sent in packets of this size, which fits the default buffers of every kernel.
constexpr size_t kPacketBytes = 32768;

/// Waits until the descriptor has one of the events. Returns false if `until` has passed.
bool waitFor(const io::FileDescriptor& descriptor, short events, io::Clock::time_point until) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(until - io::Clock::now()).count();
    if (left <= 0) return false;
    pollfd watched = {descriptor.get(), events, 0};
    const int count = poll(&watched, 1, static_cast<int>(left));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
}

}  // namespace

std::unique_ptr<InspectionPoint> InspectionPoint::open(const WorldIdentity& identity,
                                                       std::function<std::string()> describe) {
  StatusOr<io::FileDescriptor> listener = shm::listenAt(
      formatText("agspeed-inspect-{}-{}-{}-{}", identity.job, identity.rank, identity.size, security::randomDigits(8)));
  io::FileDescriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::string reason = listener.hasValue() ? describeError(errno) : std::string(listener.status().message());
  if (listener.hasValue() && stop.isOpen()) {
    try {
      return std::unique_ptr<InspectionPoint>(
          new InspectionPoint(std::move(*listener), std::move(stop), std::move(describe)));
    } catch (const std::system_error& error) {
      reason = error.what();
    }
  }
  AG_LOG(kInfo, "`agspeed comm inspect` cannot inspect this rank: {}", reason);
  return nullptr;
}

InspectionPoint::InspectionPoint(io::FileDescriptor listener, io::FileDescriptor stop,
                                 std::function<std::string()> describe)
    : listener_(std::move(listener)),
      stop_(std::move(stop)),
      describe_(std::move(describe)),
      thread_([this] { serve(); }) {}

InspectionPoint::~InspectionPoint() {
  (void)eventfd_write(stop_.get(), 1);
  thread_.join();
}

void InspectionPoint::serve() {
  while (true) {
    std::array<pollfd, 2> watched = {pollfd{listener_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    if (poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) return;
    if (watched[1].revents != 0) return;
    if (watched[0].revents == 0) continue;
    const io::FileDescriptor connection = shm::acceptAt(listener_);
    if (connection.isOpen()) {
      answer(connection);
    } else if (waitFor(stop_, POLLIN, io::Clock::now() + kPauseAfterFailure)) {
      return;
    }
  }
}

void InspectionPoint::answer(const io::FileDescriptor& connection) {
  const std::optional<shm::Process> caller = shm::processAt(connection);
  if (!caller || (caller->user != geteuid() && caller->user != 0)) return;
  const std::string document = describe_();
  ByteView left = std::as_bytes(std::span(document));
  const io::Clock::time_point until = io::Clock::now() + kSendTimeout;
  while (!left.empty()) {
    const ByteView packet = left.first(std::min(left.size(), kPacketBytes));
    if (shm::sendMessage(connection, packet, {})) {
      left = left.subspan(packet.size());
    } else if (errno != EAGAIN || !waitFor(connection, POLLOUT, until)) {
      return;
    }
  }
}

}  // namespace agspeed::comm::world
