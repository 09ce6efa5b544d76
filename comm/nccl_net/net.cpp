// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_net/net.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <span>

#include "comm/topology/interfaces.h"
#include "runtime/base/format.h"
#include "runtime/base/log.h"
#include "runtime/base/settings.h"

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

channel::Ticket::Bytes ticketIn(void* handle) {
  return channel::Ticket::Bytes(static_cast<std::byte*>(handle), channel::Ticket::kBytes);
}

/// Describes the devices for the log, such as "agspeed 20000 Mbit/s".
std::string describe(const std::vector<Device>& devices) {
  std::string text;
  for (const Device& each : devices) {
    text += formatText("{}{} {} Mbit/s", text.empty() ? "" : ", ", each.name, each.speed);
  }
  return text;
}

}  // namespace

static_assert(channel::Ticket::kBytes == kHandleBytes);

Net& Net::get() {
  static Net& net = *new Net;
  return net;
}

void Net::log(LogLevel level, unsigned long subsystems, const std::string& message) const {
  const Logger logger = logger_;
  if (logger != nullptr) logger(level, subsystems, __FILE__, __LINE__, "NET/agspeed : %s", message.c_str());
}

void Net::logTraffic() {
  const std::vector<channel::InterfaceTraffic> traffic = domain_->traffic();
  for (size_t i = 0; i < traffic.size(); ++i) {
    const auto& [sent, received, losses] = traffic[i];
    log(LogLevel::kInfo, kSubsystemNet,
        formatText("{}: {} bytes sent, {} received, {} connections lost", domain_->interfaces()[i].name, sent, received,
                   losses));
  }
}

Result Net::fail(const Status& failure) {
  log(LogLevel::kWarn, kSubsystemNet, failure.message());
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
  if (logger != nullptr) {
    logger_ = logger;
    setLogSink([](agspeed::LogLevel level, const std::string& message) {
      const bool isWarning = level == agspeed::LogLevel::kWarn;
      Net::get().log(isWarning ? LogLevel::kWarn : LogLevel::kInfo, kSubsystemNet, message);
    });
  }
  if (domain_ == nullptr) {
    StatusOr<std::unique_ptr<channel::Domain>> opened = channel::Domain::open();
    if (!opened.hasValue()) {
      (void)fail(opened.status().withContext("the network plug-in is not used"));
      return Result::kSystemError;
    }
    domain_ = std::move(opened).value();
    process_ = getpid();
    // Make the devices only once, because NCCL keeps pointers into them.
    if (devices_.empty()) devices_ = devicesOf(domain_->interfaces(), settings().ncclDevices);
    // At exit, the domain's thread must end before libraries destroy their global objects.
    static const bool isRegistered = std::atexit([] {
                                       setLogSink(nullptr);
                                       Net::get().closeDomain();
                                     }) == 0;
    (void)isRegistered;
    log(LogLevel::kInfo, kSubsystemInit | kSubsystemNet, formatText("{}; {}", domain_->describe(), describe(devices_)));
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
  if (numUsers_ > 0 && --numUsers_ == 0) {
    if (process_ == getpid()) logTraffic();
    closeDomain();
  }
  return Result::kOk;
}

Result Net::devices(int* count) {
  *count = domain_ == nullptr ? 0 : static_cast<int>(devices_.size());
  return Result::kOk;
}

const Device* Net::device(int index) const {
  return index < 0 || index >= std::ssize(devices_) ? nullptr : &devices_[static_cast<size_t>(index)];
}

Result Net::checkDevice(int device) {
  if (domain_ == nullptr) return refuse("NCCL calls the network plug-in before init()");
  if (process_ != getpid()) {
    return refuse("this process was forked from one that uses the network plug-in: initialize NCCL after the fork");
  }
  if (this->device(device) == nullptr) {
    return refuse(formatText("there is no network device {}: the {} devices count from 0", device, devices_.size()));
  }
  return Result::kOk;
}

Result Net::listen(int device, void* handle, void** listenComm) {
  if (const Result result = checkDevice(device); result != Result::kOk) return result;
  *listenComm = domain_->listen(ticketIn(handle), this->device(device)->home);
  return Result::kOk;
}

Result Net::connect(int device, void* handle, void** sendComm) {
  *sendComm = nullptr;
  if (const Result result = checkDevice(device); result != Result::kOk) return result;
  const StatusOr<channel::Channel*> channel = domain_->connect(ticketIn(handle), this->device(device)->home);
  if (!channel.hasValue()) return fail(channel.status());
  *sendComm = channel.value();
  return Result::kOk;
}

Result Net::accept(void* listenComm, void** recvComm) {
  *recvComm = domain_->accept(*static_cast<channel::Listener*>(listenComm));
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
  auto& channel = *static_cast<channel::Channel*>(sendComm);
  *request = domain_->send(channel, std::span(static_cast<std::byte*>(data), size), tag);
  return Result::kOk;
}

Result Net::receive(void* recvComm, int count, void** data, const size_t* sizes, const int* tags, void** request) {
  *request = nullptr;
  if (count < 1 || count > static_cast<int>(channel::ChannelRequest::kMaxParts)) {
    return refuse(std::to_string(count) + " messages cannot be received together: 1 to 8 can");
  }
  std::array<channel::ReceiveTarget, channel::ChannelRequest::kMaxParts> targets;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    targets[i] = {std::span(static_cast<std::byte*>(data[i]), sizes[i]), tags[i]};
  }
  *request =
      domain_->receive(*static_cast<channel::Channel*>(recvComm), std::span(targets).first(static_cast<size_t>(count)));
  return Result::kOk;
}

Result Net::test(void* request, int* isDone, int* sizes) {
  const std::optional<Status> status = domain_->test(*static_cast<channel::ChannelRequest*>(request), sizes);
  *isDone = status && status->isOk() ? 1 : 0;
  return !status || status->isOk() ? Result::kOk : fail(*status);
}

Result Net::closeChannel(void* comm) {
  if (comm != nullptr) domain_->close(*static_cast<channel::Channel*>(comm));
  return Result::kOk;
}

Result Net::closeListener(void* comm) {
  if (comm != nullptr) domain_->close(*static_cast<channel::Listener*>(comm));
  return Result::kOk;
}

}  // namespace agspeed::comm::nccl
