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

namespace agspeed::comm {
namespace {

constexpr size_t kReadBytes = 16384;
constexpr int kBacklog = 256;
/// One more unauthenticated connection replaces the oldest: a real rank needs only one round trip for its proof.
constexpr ptrdiff_t kMaxUnauthenticated = 128;
constexpr std::chrono::seconds kHandshakeTime{3};
constexpr std::chrono::milliseconds kPauseWithoutDescriptors{100};

uint16_t portOf(const FileDescriptor& socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  // Both kinds of address have the port in the same place.
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
  FileDescriptor socket;
  Clock::time_point until;  ///< the deadline of its handshake
  std::optional<Responder> responder;
  std::optional<StoreChannel> channel;  ///< set when the client has proven the key
  StoreBytes arrived, unsent;
};

StatusOr<std::unique_ptr<StoreServer>> StoreServer::start(const StoreAddress& address, const JobKey& key) {
  if (key.empty()) {
    return invalidArgument(
        "a store at {} needs a job key, which its clients prove: set AGSPEED_JOB_KEY_FILE at all ranks", address.text);
  }
  FileDescriptor listener = address.socket(SOCK_NONBLOCK);
  const int on = 1;
  if (listener.isOpen()) setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto* target = reinterpret_cast<const sockaddr*>(&address.system);
  if (!listener.isOpen() || bind(listener.get(), target, address.systemBytes) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return unavailable("cannot listen at {}: {}; rank 0 needs an address of its own host and a free port", address.text,
                       describeError(errno));
  }
  FileDescriptor wakeUp(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
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

StoreServer::StoreServer(FileDescriptor listener, FileDescriptor wakeUp, uint16_t port, const JobKey& key)
    : listener_(std::move(listener)), wakeUp_(std::move(wakeUp)), port_(port), secret_(storeSecret(key)) {}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wakeUp_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void StoreServer::serve() {
  while (true) {
    const auto isUnauthenticated = [](const auto& each) { return !each->channel.has_value(); };
    std::vector<pollfd> watched = {{wakeUp_.get(), POLLIN, 0}};
    watched.push_back({listener_.get(), POLLIN, 0});
    for (const auto& each : connections_) {
      watched.push_back({each->socket.get(), static_cast<int16_t>(each->unsent.empty() ? POLLIN : POLLOUT), 0});
    }
    const bool hasTimer = std::any_of(connections_.begin(), connections_.end(), isUnauthenticated);
    poll(watched.data(), watched.size(), hasTimer ? static_cast<int>(kPauseWithoutDescriptors.count()) : -1);
    if (watched[0].revents != 0) return;
    const auto now = Clock::now();
    for (size_t i = 2; i < watched.size(); ++i) {
      std::unique_ptr<Connection>& each = connections_[i - 2];
      bool isOfUse = each->channel.has_value() || now < each->until;
      if (isOfUse && watched[i].revents != 0) isOfUse = each->unsent.empty() ? read(*each) : write(*each);
      if (!isOfUse) each = nullptr;
    }
    std::erase(connections_, nullptr);
    if (watched[1].revents == 0) continue;
    accept();
    if (std::count_if(connections_.begin(), connections_.end(), isUnauthenticated) > kMaxUnauthenticated) {
      connections_.erase(std::find_if(connections_.begin(), connections_.end(), isUnauthenticated));
    }
  }
}

void StoreServer::accept() {
  FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.isOpen()) {
    // Without this pause poll() would report the same waiting connection again at once.
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kPauseWithoutDescriptors);
    return;
  }
  auto made = std::make_unique<Connection>();
  made->socket = std::move(socket);
  made->until = Clock::now() + kHandshakeTime;
  connections_.push_back(std::move(made));
}

bool StoreServer::read(Connection& connection) {
  const size_t before = connection.arrived.size();
  connection.arrived.resize(before + kReadBytes);
  const ssize_t count = recv(connection.socket.get(), connection.arrived.data() + before, kReadBytes, 0);
  connection.arrived.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  return count > 0 && answer(connection) && write(connection);
}

bool StoreServer::answer(Connection& connection) {
  if (!connection.channel.has_value() && !answerHandshake(connection)) return false;
  while (connection.channel.has_value()) {
    const auto body = connection.channel->take(connection.arrived);
    if (!body) return false;
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
    if (connection.arrived.size() < kRequestBytes) return true;
    const RequestBytes request = takeFirst<kRequestBytes>(connection.arrived);
    const std::optional<Claim> claim = readClaim(request);
    if (!claim.has_value() || claim->to != kStoreRank) return false;
    connection.responder = Responder::answer(request, secret_);
    if (!connection.responder.has_value()) return false;
    const ReplyBytes& reply = connection.responder->reply();
    connection.unsent.assign(reply.begin(), reply.end());
  }
  if (connection.arrived.size() < kConfirmBytes) return true;
  if (!connection.responder->isConfirmedBy(takeFirst<kConfirmBytes>(connection.arrived))) return false;
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
      found ? void(reply.value = std::move(*found)) : void(reply.status = found.status());
      break;
    }
    case StoreRequest::Operation::kAdd: {
      const auto sum = store_->add(request.key, request.amount);
      sum ? void(reply.number = *sum) : void(reply.status = sum.status());
      break;
    }
    case StoreRequest::Operation::kSetOnce: {
      auto kept = store_->setOnce(request.key, request.value);
      kept ? void(reply.value = std::move(*kept)) : void(reply.status = kept.status());
      break;
    }
  }
  return reply;
}

}  // namespace agspeed::comm
