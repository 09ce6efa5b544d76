// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_net/net.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <span>

#include "comm/nccl_net/device_facts.h"
#include "comm/topology/interfaces.h"

namespace agspeed::comm::nccl {
namespace {

Result resultOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return Result::kOk;
    case StatusCode::kInvalidArgument: return Result::kInvalidUsage;
    case StatusCode::kUnavailable:
    case StatusCode::kDataLoss: return Result::kRemoteError;
    case StatusCode::kUnsupported:
    case StatusCode::kResourceExhausted: return Result::kSystemError;
    case StatusCode::kInternal: break;
  }
  return Result::kInternalError;
}

Ticket::Bytes ticketIn(void* handle) { return Ticket::Bytes(static_cast<std::byte*>(handle), Ticket::kBytes); }

}  // namespace

static_assert(Ticket::kBytes == kHandleBytes);

Net& Net::get() {
  static Net& net = *new Net;
  return net;
}

Result Net::fail(const Status& failure) {
  if (logger_ != nullptr)
    logger_(LogLevel::kWarn, kSubsystemNet, __FILE__, __LINE__, "agspeed: %s", failure.message().c_str());
  return resultOf(failure.code());
}

Result Net::refuse(const std::string& why) {
  (void)fail(invalidArgument(why));
  return Result::kInvalidArgument;
}

Result Net::failInternally(const char* what) {
  return fail(internalError("this is a bug of the network plug-in: " + std::string(what)));
}

Result Net::init(Logger logger) {
  const std::lock_guard lock(mutex_);
  if (logger != nullptr) logger_ = logger;
  if (domain_ == nullptr) {
    StatusOr<std::unique_ptr<Domain>> opened = Domain::open();
    if (!opened) {
      (void)fail(opened.status().withContext("the network plug-in is not used"));
      return Result::kSystemError;
    }
    domain_ = std::move(opened).value();
    process_ = getpid();
    // NCCL keeps pointers into the first.
    if (facts_.name.empty()) facts_ = factsOf(domain_->interfaces());
    // Its thread must not outlive what libraries clean up at exit.
    static const bool isRegistered = std::atexit([] { Net::get().closeDomain(); }) == 0;
    (void)isRegistered;
    if (logger_ != nullptr) {
      logger_(LogLevel::kInfo, kSubsystemInit | kSubsystemNet, __FILE__, __LINE__, "NET/agspeed : %s, %d Mbit/s",
              domain_->describe().c_str(), facts_.speed);
    }
  }
  ++numUsers_;
  return Result::kOk;
}

void Net::closeDomain() {
  if (process_ == getpid()) {
    domain_.reset();
  } else {
    (void)domain_.release();
  }
}

Result Net::finalize() {
  const std::lock_guard lock(mutex_);
  if (numUsers_ > 0 && --numUsers_ == 0) closeDomain();
  return Result::kOk;
}

Result Net::devices(int* count) {
  *count = domain_ == nullptr ? 0 : 1;
  return Result::kOk;
}

Result Net::checkDevice(int device) {
  if (domain_ == nullptr) return refuse("the network plug-in is used before its init");
  if (process_ != getpid()) {
    return refuse("this process was forked from one that uses the network plug-in: begin with NCCL after the fork");
  }
  if (device != 0)
    return refuse("there is no network device " + std::to_string(device) + ": device 0 is all interfaces");
  return Result::kOk;
}

Result Net::listen(int device, void* handle, void** listenComm) {
  if (const Result result = checkDevice(device); result != Result::kOk) return result;
  *listenComm = domain_->listen(ticketIn(handle));
  return Result::kOk;
}

Result Net::connect(int device, void* handle, void** sendComm) {
  *sendComm = nullptr;
  if (const Result result = checkDevice(device); result != Result::kOk) return result;
  const StatusOr<Channel*> channel = domain_->connect(ticketIn(handle));
  if (!channel) return fail(channel.status());
  *sendComm = channel.value();
  return Result::kOk;
}

Result Net::accept(void* listenComm, void** recvComm) {
  *recvComm = domain_->accept(*static_cast<Listener*>(listenComm));
  return Result::kOk;
}

Result Net::registerMemory(void*, void* data, int type, void** registration) {
  if (type != kPointerHost) {
    return refuse("memory of type " + std::to_string(type) + " cannot be registered: only host memory (type 1) can");
  }
  *registration = data;
  return Result::kOk;
}

Result Net::send(void* sendComm, void* data, size_t size, int tag, void** request) {
  *request = nullptr;
  if (size > kMaxMessageBytes) {
    return refuse(std::to_string(size) +
                  " bytes are more than a message may have: " + std::to_string(kMaxMessageBytes));
  }
  auto& channel = *static_cast<Channel*>(sendComm);
  *request = domain_->send(channel, std::span(static_cast<std::byte*>(data), size), tag);
  return Result::kOk;
}

Result Net::receive(void* recvComm, int count, void** data, const size_t* sizes, const int* tags, void** request) {
  *request = nullptr;
  if (count < 1 || count > static_cast<int>(Request::kMaxParts)) {
    return refuse(std::to_string(count) + " messages cannot be received together: 1 to 8 can");
  }
  std::array<ReceiveTarget, Request::kMaxParts> targets;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    targets[i] = {std::span(static_cast<std::byte*>(data[i]), sizes[i]), tags[i]};
  }
  *request = domain_->receive(*static_cast<Channel*>(recvComm), std::span(targets).first(static_cast<size_t>(count)));
  return Result::kOk;
}

Result Net::test(void* request, int* isDone, int* sizes) {
  const std::optional<Status> status = domain_->test(*static_cast<Request*>(request), sizes);
  *isDone = status && status->isOk() ? 1 : 0;
  return !status || status->isOk() ? Result::kOk : fail(*status);
}

Result Net::closeChannel(void* comm) {
  if (comm != nullptr) domain_->close(*static_cast<Channel*>(comm));
  return Result::kOk;
}

Result Net::closeListener(void* comm) {
  if (comm != nullptr) domain_->close(*static_cast<Listener*>(comm));
  return Result::kOk;
}

}  // namespace agspeed::comm::nccl
