// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/store_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "runtime/base/system_error.h"

namespace agspeed::comm::rendezvous {
namespace {

constexpr size_t kReadBytes = 16384;
constexpr int kBacklog = 256;
/// 3 s are enough, because a rank needs only one round trip for its proof.
constexpr PendingLimits kLimits = {128, wire::kRequestBytes, std::chrono::seconds(3)};
constexpr std::chrono::milliseconds kPauseWithoutDescriptors{100};

uint16_t portOf(const io::FileDescriptor& socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  // IPv4 and IPv6 addresses have the port in the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

template <size_t kSize>
std::array<std::byte, kSize> takeFirst(StoreBytes& bytes) {
  std::array<std::byte, kSize> first;
  std::copy_n(bytes.begin(), kSize, first.begin());
  bytes.erase(bytes.begin(), bytes.begin() + kSize);
  return first;
}

}  // namespace

struct StoreServer::Connection {
  io::FileDescriptor socket;
  std::optional<wire::Responder> responder;
  std::optional<StoreChannel> channel;  ///< set when the client has proven the key
  StoreBytes arrived, unsent;
};

StatusOr<std::unique_ptr<StoreServer>> StoreServer::start(const StoreAddress& address, const security::JobKey& key) {
  if (key.empty()) {
    return invalidArgument(
        "a store at {} needs a job key, which its clients prove: set AGSPEED_JOB_KEY_FILE at all ranks", address.text);
  }
  io::FileDescriptor listener = address.socket(SOCK_NONBLOCK);
  const int on = 1;
  if (listener.isOpen()) setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto* target = reinterpret_cast<const sockaddr*>(&address.system);
  if (!listener.isOpen() || bind(listener.get(), target, address.systemBytes) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return unavailable("cannot listen at {}: {}; rank 0 needs an address of its own host and a free port", address.text,
                       describeError(errno));
  }
  io::FileDescriptor wakeUp(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeUp.isOpen()) return unavailable("cannot serve a store: {}", describeError(errno));
  const uint16_t port = portOf(listener);
  std::unique_ptr<StoreServer> server(new StoreServer(std::move(listener), std::move(wakeUp), port, key));
  try {
    server->thread_ = std::thread([raw = server.get()] { raw->serve(); });
  } catch (const std::system_error& error) {
    return unavailable("cannot serve a store: {}", error.what());
  }
  return server;
}

StoreServer::StoreServer(io::FileDescriptor listener, io::FileDescriptor wakeUp, uint16_t port,
                         const security::JobKey& key)
    : listener_(std::move(listener)),
      wakeUp_(std::move(wakeUp)),
      port_(port),
      secret_(storeSecret(key)),
      pending_(kLimits) {}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wakeUp_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void StoreServer::serve() {
  while (true) {
    (void)pending_.takeLate(io::Clock::now());
    std::vector<Connection*> served;
    pending_.forEach([&](Connection& each) { served.push_back(&each); });
    for (const auto& each : connections_) served.push_back(each.get());
    std::vector<pollfd> watched = {{wakeUp_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection* each : served) {
      watched.push_back({each->socket.get(), static_cast<int16_t>(each->unsent.empty() ? POLLIN : POLLOUT), 0});
    }
    poll(watched.data(), watched.size(), pending_.isEmpty() ? -1 : static_cast<int>(pending_.kCheckInterval.count()));
    if (watched[0].revents != 0) return;
    for (size_t i = 0; i < served.size(); ++i) {
      if (watched[i + 2].revents != 0) proceed(*served[i]);
    }
    if (watched[1].revents != 0) accept();
  }
}

void StoreServer::accept() {
  io::FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.isOpen()) {
    // Without this pause poll() would report the same waiting connection again at once.
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kPauseWithoutDescriptors);
    return;
  }
  auto made = std::make_unique<Connection>();
  made->socket = std::move(socket);
  (void)pending_.add(std::move(made));
}

void StoreServer::proceed(Connection& connection) {
  const bool wasProven = connection.channel.has_value();
  const bool isOpen = connection.unsent.empty() ? read(connection) : write(connection);
  if (!wasProven && (!isOpen || connection.channel.has_value())) {
    std::unique_ptr<Connection> taken = pending_.take(connection);
    if (isOpen) connections_.push_back(std::move(taken));
  } else if (!isOpen) {
    std::erase_if(connections_, [&](const auto& each) { return each.get() == &connection; });
  }
}

bool StoreServer::read(Connection& connection) {
  const size_t before = connection.arrived.size();
  const size_t room = connection.channel.has_value() ? kReadBytes : pending_.limits().numBytes - before;
  connection.arrived.resize(before + room);
  const ssize_t count = recv(connection.socket.get(), connection.arrived.data() + before, room, 0);
  connection.arrived.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  return count > 0 && answer(connection) && write(connection);
}

bool StoreServer::answer(Connection& connection) {
  if (!connection.channel.has_value() && !answerHandshake(connection)) return false;
  while (connection.channel.has_value()) {
    const auto body = connection.channel->take(connection.arrived);
    if (!body.hasValue()) return false;
    if (!body->has_value()) return true;
    const std::optional<StoreRequest> request = decodeStoreRequest(**body);
    if (!request.has_value()) return false;
    const StoreBytes message = connection.channel->seal(encode(perform(*request)));
    connection.unsent.insert(connection.unsent.end(), message.begin(), message.end());
  }
  return true;
}

bool StoreServer::answerHandshake(Connection& connection) {
  if (!connection.responder.has_value()) {
    if (connection.arrived.size() < wire::kRequestBytes) return true;
    const wire::RequestBytes request = takeFirst<wire::kRequestBytes>(connection.arrived);
    const std::optional<wire::Claim> claim = wire::readClaim(request);
    if (!claim.has_value() || claim->to != kStoreRank) return false;
    connection.responder = wire::Responder::answer(request, secret_);
    if (!connection.responder.has_value()) return false;
    const wire::ReplyBytes& reply = connection.responder->reply();
    connection.unsent.assign(reply.begin(), reply.end());
  }
  if (connection.arrived.size() < wire::kConfirmBytes) return true;
  if (!connection.responder->isConfirmedBy(takeFirst<wire::kConfirmBytes>(connection.arrived))) return false;
  connection.channel.emplace(connection.responder->frameKey(), StoreChannel::End::kServer);
  return true;
}

bool StoreServer::write(Connection& connection) {
  StoreBytes& bytes = connection.unsent;
  if (bytes.empty()) return true;
  const ssize_t count = send(connection.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  bytes.erase(bytes.begin(), bytes.begin() + count);
  return true;
}

StoreReply StoreServer::perform(const StoreRequest& request) {
  StoreReply reply;
  switch (request.operation) {
    case StoreRequest::Operation::kSet: reply.status = store_->set(request.key, request.value); break;
    case StoreRequest::Operation::kTryGet: {
      auto found = store_->tryGet(request.key);
      found.hasValue() ? void(reply.value = std::move(*found)) : void(reply.status = found.status());
      break;
    }
    case StoreRequest::Operation::kAdd: {
      const auto sum = store_->add(request.key, request.amount);
      sum.hasValue() ? void(reply.number = *sum) : void(reply.status = sum.status());
      break;
    }
    case StoreRequest::Operation::kSetOnce: {
      auto kept = store_->setOnce(request.key, request.value);
      kept.hasValue() ? void(reply.value = std::move(*kept)) : void(reply.status = kept.status());
      break;
    }
  }
  return reply;
}

}  // namespace agspeed::comm::rendezvous
