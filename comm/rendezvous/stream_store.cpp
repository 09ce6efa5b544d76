// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/stream_store.h"

#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/system_error.h"

namespace agspeed::comm::rendezvous {
namespace {

using std::chrono::milliseconds;

/// The timeout of one read or write. A live server answers at once.
constexpr std::chrono::seconds kIoTimeout{10};
/// A server with another key always closes the connection during the handshake. A server that ends or is overloaded may
/// do the same. So the client concludes that the keys differ only after this number of closed handshakes in a row.
constexpr int kMaxClosed = 5;
constexpr milliseconds kFirstPause{10}, kLongestPause{250};

}  // namespace

class StreamStore::Connection {
 public:
  Connection(StoreAddress address, const security::JobKey& key)
      : address_(std::move(address)), secret_(storeSecret(key)) {}

  /// Connects and does the handshake. Unavailable: the caller may try again.
  Status open() {
    const std::lock_guard lock(mutex_);
    return openLocked();
  }

  StatusOr<StoreReply> ask(const StoreRequest& request) {
    if (request.key.size() > kMaxStoreKeyBytes || request.value.size() > kMaxValueBytes) {
      return invalidArgument("the store takes keys of {} and values of {} bytes, not of {} and {}", kMaxStoreKeyBytes,
                             kMaxValueBytes, request.key.size(), request.value.size());
    }
    const std::lock_guard lock(mutex_);
    if (!socket_.isOpen()) AG_RETURN_IF_ERROR(openLocked());
    StatusOr<StoreReply> reply = askLocked(request);
    if (!reply.hasValue()) close();
    if (reply.hasValue() && !reply->status.isOk()) return reply->status;
    return reply;
  }

 private:
  Status openLocked() {
    close();
    socket_ = address_.socket();
    if (!socket_.isOpen()) return unavailable("cannot reach the store at {}: {}", address_.text, describeError(errno));
    const timeval timeout{.tv_sec = kIoTimeout.count(), .tv_usec = 0};
    for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO}) {
      setsockopt(socket_.get(), SOL_SOCKET, option, &timeout, sizeof(timeout));
    }
    const auto* target = reinterpret_cast<const sockaddr*>(&address_.system);
    if (::connect(socket_.get(), target, address_.systemBytes) != 0) {
      const int error = errno;
      close();
      return unavailable("no process serves a store at {}: {}", address_.text, std::strerror(error));
    }
    const Status status = shakeHands();
    if (!status.isOk()) close();
    return status;
  }

  Status shakeHands() {
    const wire::Initiator initiator({.protection = security::Protection::kAuthenticated, .to = kStoreRank}, secret_);
    AG_RETURN_IF_ERROR(write(initiator.request()));
    std::array<std::byte, wire::kReplyBytes> reply;
    for (size_t size = 0; size < reply.size();) {
      AG_ASSIGN_OR_RETURN(const size_t count, read(std::span(reply).subspan(size)));
      if (count == 0) return closed();
      size += count;
    }
    const std::optional<wire::ConfirmBytes> confirm = initiator.confirm(reply);
    if (!confirm.has_value()) return refused();
    AG_RETURN_IF_ERROR(write(*confirm));
    channel_.emplace(initiator.frameKey(reply), StoreChannel::End::kClient);
    numClosed_ = 0;
    return {};
  }

  Status closed() {
    if (++numClosed_ >= kMaxClosed) return refused();
    return unavailable("the store at {} closed the connection before it had proven the job key", address_.text);
  }

  Status refused() const {
    return invalidArgument(
        "the store at {} has another job key, or it is not a store of agspeed: give all ranks the key of one job",
        address_.text);
  }

  StatusOr<StoreReply> askLocked(const StoreRequest& request) {
    AG_RETURN_IF_ERROR(write(channel_->seal(encode(request))));
    std::array<std::byte, 4096> buffer;
    while (true) {
      AG_ASSIGN_OR_RETURN(const std::optional<StoreBytes> body, channel_->take(arrived_));
      if (body.has_value()) {
        std::optional<StoreReply> reply = decodeStoreReply(*body);
        if (!reply.has_value()) return dataLoss("the store at {} sent an answer that cannot be parsed", address_.text);
        return *std::move(reply);
      }
      AG_ASSIGN_OR_RETURN(const size_t count, read(buffer));
      if (count == 0) return unavailable("the store at {} closed the connection", address_.text);
      arrived_.insert(arrived_.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(count));
    }
  }

  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return unavailable("cannot write to the store at {}: {}", address_.text, std::strerror(errno));
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return {};
  }

  /// Reads some bytes. Returns: the number of bytes read; 0 if the other end has closed the connection.
  StatusOr<size_t> read(std::span<std::byte> bytes) {
    while (true) {
      const ssize_t count = recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno == ECONNRESET) return size_t{0};
      if (errno == EINTR) continue;
      return unavailable("the store at {} does not answer: {}", address_.text, std::strerror(errno));
    }
  }

  void close() {
    socket_ = io::FileDescriptor();
    channel_.reset();
    arrived_.clear();
  }

  const StoreAddress address_;
  const security::Digest secret_;
  std::mutex mutex_;
  io::FileDescriptor socket_;
  std::optional<StoreChannel> channel_;
  int numClosed_ = 0;  ///< how many handshakes in a row the server has closed
  StoreBytes arrived_;
};

StatusOr<std::unique_ptr<StreamStore>> StreamStore::connect(const StoreAddress& address, const security::JobKey& key,
                                                            std::chrono::steady_clock::time_point deadline) {
  if (key.empty()) {
    return invalidArgument("the store at {} serves only processes that prove the job key: set AGSPEED_JOB_KEY_FILE",
                           address.text);
  }
  auto connection = std::make_shared<Connection>(address, key);
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const Status status = connection->open();
    if (status.isOk()) return std::unique_ptr<StreamStore>(new StreamStore(std::move(connection)));
    const bool isFinal = status.code() != StatusCode::kUnavailable;
    if (isFinal || std::chrono::steady_clock::now() + pause > deadline) return status;
    std::this_thread::sleep_for(pause);
  }
}

StreamStore::StreamStore(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
StreamStore::~StreamStore() = default;

Status StreamStore::set(const std::string& key, const std::string& value) {
  return connection_->ask({.operation = StoreRequest::Operation::kSet, .key = key, .value = value}).status();
}

StatusOr<std::optional<std::string>> StreamStore::tryGet(const std::string& key) {
  AG_ASSIGN_OR_RETURN(StoreReply reply, connection_->ask({.operation = StoreRequest::Operation::kTryGet, .key = key}));
  return std::move(reply.value);
}

Store::Reader StreamStore::reader() {
  return [connection = connection_](const std::vector<std::string>& keys) -> StatusOr<Values> {
    Values values;
    for (const std::string& key : keys) {
      AG_ASSIGN_OR_RETURN(StoreReply reply,
                          connection->ask({.operation = StoreRequest::Operation::kTryGet, .key = key}));
      values.push_back(std::move(reply.value));
    }
    return values;
  };
}

StatusOr<int64_t> StreamStore::add(const std::string& key, int64_t amount) {
  AG_ASSIGN_OR_RETURN(const StoreReply reply,
                      connection_->ask({.operation = StoreRequest::Operation::kAdd, .key = key, .amount = amount}));
  return reply.number;
}

StatusOr<std::string> StreamStore::setOnce(const std::string& key, const std::string& value) {
  AG_ASSIGN_OR_RETURN(StoreReply reply,
                      connection_->ask({.operation = StoreRequest::Operation::kSetOnce, .key = key, .value = value}));
  return std::move(reply.value).value_or("");
}

}  // namespace agspeed::comm::rendezvous
