// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/domain.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "comm/network/open_rails.h"
#include "runtime/base/log.h"

namespace agspeed::comm::channel {
namespace {

using std::chrono::milliseconds;

/// A call of test() always drives the association that its caller waits for. Only one of this many calls also drives
/// all other associations.
constexpr uint64_t kDrivesPerTurn = 8;
/// kTimers is the interval at which the timers of all associations run. kIdle is how long the domain's thread sleeps if
/// there are no associations and no hello is awaited.
constexpr io::Clock::duration kTimers = milliseconds(10), kIdle = milliseconds(200);
/// The domain's thread does not drive if a caller has driven within this time, because the caller will probably drive
/// again.
constexpr io::Clock::duration kCallersTurn = milliseconds(4);
/// The longest time for which an unused association of a connector is kept because it has bytes to send.
constexpr io::Clock::duration kFlushTimeout = milliseconds(1000);
/// How long an unused association of a listener is kept. Its connector may have sent a hello for another channel just
/// before the last channel was closed here.
constexpr io::Clock::duration kHelloInFlight = milliseconds(3000);
/// The maximum number of associations, more than any job needs. A hello that needs another one is refused.
constexpr size_t kMaxAssociations = 4096;

uint64_t randomNumber() {
  uint64_t value = 0;
  security::fillRandom(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::string hostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unnamed host";
}

}  // namespace

StatusOr<std::unique_ptr<Domain>> Domain::open() {
  AG_ASSIGN_OR_RETURN(network::NetworkOptions options, network::NetworkOptions::fromSettings(0, 2));
  options.sharesMemory = false;  // NCCL moves bytes within a host by itself
  AG_ASSIGN_OR_RETURN(std::string mode, options.resolvedMode());
  AG_ASSIGN_OR_RETURN(options.rails, selectedInterfaces(options));
  std::unique_ptr<Domain> domain(new Domain(std::move(options), std::move(mode)));
  AG_RETURN_IF_ERROR(domain->poller_.status());
  AG_ASSIGN_OR_RETURN(domain->server_, HelloServer::open(domain->poller_, domain->interfaces_, *domain));
  domain->thread_ = std::thread([raw = domain.get()] { raw->runThread(); });
  return domain;
}

Domain::Domain(network::NetworkOptions options, std::string mode)
    : id_(randomNumber()),
      mode_(std::move(mode)),
      options_(std::move(options)),
      host_(hostName()),
      interfaces_(options_.rails),
      endedTraffic_(interfaces_.size()) {}

Domain::~Domain() {
  {
    const std::lock_guard lock(mutex_);
    isStopping_ = true;
  }
  stopped_.notify_all();
  poller_.wake();
  if (thread_.joinable()) thread_.join();
  connectors_.clear();
  listeners_.clear();
  channels_.clear();
  leaving_.clear();
  associations_.clear();
}

std::string Domain::describe() const {
  std::string text = mode_ + " over ";
  for (size_t i = 0; i < interfaces_.size(); ++i) {
    text += (i > 0 ? ", " : "") + toString(interfaces_[i].address) + " (" + interfaces_[i].name + ")";
  }
  return text;
}

std::vector<InterfaceTraffic> Domain::traffic() {
  const std::lock_guard lock(mutex_);
  std::vector<InterfaceTraffic> traffic = endedTraffic_;
  for (const auto& each : associations_) each.association->addTraffic(interfaces_, traffic);
  return traffic;
}

// --- Set-up ---------------------------------------------------------------------------------------------------------

Listener* Domain::listen(Ticket::Bytes out, Home home) {
  const std::lock_guard lock(mutex_);
  auto listener = std::make_unique<Listener>();
  listener->id = ++numListeners_;
  listener->home = std::move(home);
  security::fillRandom(listener->secret);
  Ticket ticket;
  ticket.protection = network::NetworkOptions::protectionIn(mode_);
  ticket.process = static_cast<uint32_t>(getpid());
  ticket.domain = id_;
  ticket.listener = listener->id;
  ticket.secret = listener->secret;
  ticket.addresses = server_->addresses();
  ticket.encode(options_.key, out);
  return (listeners_[listener->id] = std::move(listener)).get();
}

StatusOr<std::unique_ptr<Association>> Domain::openAssociation(Association::Role role, uint32_t number,
                                                               const Home& home) {
  network::NetworkOptions options = options_;
  options.home = home;
  return Association::open(poller_, std::move(options), role, number);
}

StatusOr<Association*> Domain::associationTo(const Ticket& ticket, const Home& home) {
  // Reuse an association only if it is in use. The peer may already have dropped its end of an unused association.
  const Destination destination(ticket.domain, home);
  const auto known = outgoing_.find(destination);
  if (known != outgoing_.end() && known->second->isUsed()) return known->second;
  AG_ASSIGN_OR_RETURN(auto opened, openAssociation(Association::Role::kConnector, ++numAssociations_, home));
  Association* association = opened.get();
  associations_.push_back({std::move(opened), {}});
  outgoing_[destination] = association;
  return association;
}

Introduction Domain::introduce(const Association& association) const {
  return {id_, static_cast<uint32_t>(getpid()), host_, association.record()};
}

StatusOr<std::unique_ptr<Connector>> Domain::startConnector(Ticket ticket, const Home& home) {
  if (const security::Protection own = network::NetworkOptions::protectionIn(mode_); ticket.protection != own) {
    return invalidArgument("process {} protects frames by " + std::string(toString(ticket.protection)) +
                           ", this process by " + std::string(toString(own)) +
                           ": set AGSPEED_COMM_MODE alike on all hosts");
  }
  AG_ASSIGN_OR_RETURN(Association * association, associationTo(ticket, home));
  Hello hello = {ticket.listener, association->number(), association->nextChannel(), introduce(*association)};
  ControlLine::Owner& owner = *this;
  return std::make_unique<Connector>(poller_, *association, std::move(ticket), std::move(hello), options_.key, owner,
                                     io::Clock::now() + options_.peerTimeout);
}

StatusOr<Channel*> Domain::connect(Ticket::Bytes bytes, const Home& home) {
  const std::lock_guard lock(mutex_);
  AG_ASSIGN_OR_RETURN(Ticket ticket, Ticket::decode(bytes, options_.key));
  uint64_t note = Ticket::note(bytes);
  // The proof does not cover the note, so another process may have changed it.
  if (const auto known = connectors_.find(note); known == connectors_.end() || known->second->ticket() != ticket) {
    AG_ASSIGN_OR_RETURN(auto connector, startConnector(std::move(ticket), home));
    note = ++numConnectors_;
    Ticket::setNote(bytes, note);
    connectors_[note] = std::move(connector);
  }
  drive(nullptr);
  const auto found = connectors_.find(note);
  const std::optional<Status> status = found->second->advance(io::Clock::now());
  if (!status) return nullptr;
  Ticket::setNote(bytes, 0);
  const std::unique_ptr<Connector> connector = std::move(found->second);
  connectors_.erase(found);
  if (!status->isOk()) return *status;
  return adopt(std::make_unique<Channel>(connector->association(), Channel::Direction::kSend, connector->channel(),
                                         connector->takeLine()));
}

Channel* Domain::adopt(std::unique_ptr<Channel> channel) {
  Channel* raw = channel.get();
  channels_[raw] = std::move(channel);
  return raw;
}

Channel* Domain::accept(Listener& listener) {
  const std::lock_guard lock(mutex_);
  drive(nullptr);
  if (listener.arrived.empty()) return nullptr;
  std::unique_ptr<Channel> channel = std::move(listener.arrived.front());
  listener.arrived.pop_front();
  return adopt(std::move(channel));
}

StatusOr<Association*> Domain::associationFor(const Hello& hello, const Home& home) {
  const PeerKey key(hello.from.domain, hello.association);
  if (const auto known = incoming_.find(key); known != incoming_.end()) return known->second;
  // Check the record now, so that the connector gets the reason of a failure before it sends its first message.
  AG_RETURN_IF_ERROR(rendezvous::decodePeerRecord(hello.from.record, options_.key).status());
  if (associations_.size() >= kMaxAssociations) return resourceExhausted("this process has too many connections");
  AG_ASSIGN_OR_RETURN(auto opened, openAssociation(Association::Role::kListener, hello.association, home));
  opened->introduce(hello.from);
  Association* association = opened.get();
  associations_.push_back({std::move(opened), {}});
  incoming_[key] = association;
  return association;
}

void Domain::welcome(HelloServer::Caller caller) {
  const std::optional<uint64_t> id = listenerOf(caller.hello);
  const auto listener = id ? listeners_.find(*id) : listeners_.end();
  if (listener == listeners_.end()) return;
  const Ticket::Secret& secret = listener->second->secret;
  const std::optional<Hello> hello = decodeHello(caller.hello, secret, options_.key);
  if (!hello) {
    AG_LOG(kInfo, "a connection was refused: it does not prove to have the listener's ticket");
    return;
  }
  Welcome answer;
  answer.from = {id_, static_cast<uint32_t>(getpid()), host_, ""};
  StatusOr<Association*> association = associationFor(*hello, listener->second->home);
  if (association.hasValue()) {
    answer.from = introduce(**association);
  } else {
    answer.refusal = association.status().message();
  }
  caller.line->send(encodeWelcome(answer, caller.hello, secret, options_.key));
  if (!association.hasValue()) return caller.line->finish();
  listener->second->arrived.push_back(
      std::make_unique<Channel>(**association, Channel::Direction::kReceive, hello->channel, std::move(caller.line)));
}

// --- Messages -------------------------------------------------------------------------------------------------------

ChannelRequest* Domain::send(Channel& channel, std::span<std::byte> bytes, int tag) {
  const std::lock_guard lock(mutex_);
  return channel.send(bytes, tag);
}

ChannelRequest* Domain::receive(Channel& channel, std::span<const ReceiveTarget> targets) {
  const std::lock_guard lock(mutex_);
  return channel.receive(targets);
}

std::optional<Status> Domain::test(ChannelRequest& request, int* sizes) {
  const std::lock_guard lock(mutex_);
  if (std::optional<Status> status = request.channel().test(request, sizes)) return status;
  drive(&request.channel().association());
  return request.channel().test(request, sizes);
}

// --- The end --------------------------------------------------------------------------------------------------------

void Domain::leave(std::unique_ptr<Channel> channel) {
  Association& association = channel->association();
  channel->close();
  std::unique_ptr<ControlLine> line = channel->takeLine();
  if (channel->direction() != Channel::Direction::kReceive || line == nullptr || !line->isOpen()) return;
  association.addUser();
  leaving_.push_back({std::move(line), &association});
}

void Domain::close(Channel& channel) {
  const std::lock_guard lock(mutex_);
  const auto found = channels_.find(&channel);
  if (found == channels_.end()) return;
  leave(std::move(found->second));
  channels_.erase(found);
}

void Domain::close(Listener& listener) {
  const std::lock_guard lock(mutex_);
  for (auto& channel : listener.arrived) leave(std::move(channel));
  listeners_.erase(listener.id);
}

void Domain::dropUnused(io::Clock::time_point now) {
  for (size_t i = associations_.size(); i-- > 0;) {
    auto& [association, unusedSince] = associations_[i];
    if (association->isUsed()) {
      unusedSince.reset();
      continue;
    }
    if (!unusedSince) unusedSince = now;
    const bool isOfPeer = association->role() == Association::Role::kListener;
    const bool isKept =
        isOfPeer ? now < *unusedSince + kHelloInFlight : association->hasUnsent() && now < *unusedSince + kFlushTimeout;
    if (isKept) continue;
    std::erase_if(outgoing_, [&](const auto& each) { return each.second == association.get(); });
    std::erase_if(incoming_, [&](const auto& each) { return each.second == association.get(); });
    association->addTraffic(interfaces_, endedTraffic_);
    associations_.erase(associations_.begin() + static_cast<ptrdiff_t>(i));
  }
}

// --- Driving --------------------------------------------------------------------------------------------------------

void Domain::drive(Association* first) {
  const io::Clock::time_point now = io::Clock::now();
  drivenAt_ = now;
  if (first != nullptr) first->progress();
  const bool isTimerDue = now >= nextTimers_;
  if (first != nullptr && ++numDrives_ % kDrivesPerTurn != 0 && !isTimerDue) return;
  (void)poller_.wait({});
  if (isTimerDue) {
    nextTimers_ = now + kTimers;
    for (const auto& each : associations_) each.association->progress();
    dropUnused(now);
  }
  if (isTimerDue || isLineChanged_) handleLines(now);
  if (isTimerDue) {
    for (const auto& each : associations_) each.association->countLosses();
  }
}

void Domain::handleLines(io::Clock::time_point now) {
  isLineChanged_ = false;
  for (HelloServer::Caller& caller : server_->takeCallers(now)) welcome(std::move(caller));
  for (const auto& [raw, channel] : channels_) channel->readLine();
  std::erase_if(leaving_, [](const Leaving& each) {
    while (each.line->receive()) continue;
    if (each.line->isOpen()) return false;
    each.association->removeUser();
    return true;
  });
}

void Domain::runThread() {
  std::unique_lock lock(mutex_);
  while (!isStopping_) {
    const io::Clock::time_point now = io::Clock::now();
    if (now < drivenAt_ + kCallersTurn) {
      stopped_.wait_for(lock, kCallersTurn);
      continue;
    }
    const bool isIdle = associations_.empty() && !server_->isAwaitingHellos();
    const auto timeout = std::chrono::duration_cast<milliseconds>(isIdle ? kIdle : kTimers);
    lock.unlock();
    pollfd ready = {poller_.descriptor(), POLLIN, 0};
    (void)poll(&ready, 1, static_cast<int>(timeout.count()));
    lock.lock();
    const io::Clock::time_point drivenByCallers = drivenAt_;
    if (!isStopping_) drive(nullptr);
    drivenAt_ = drivenByCallers;
  }
}

}  // namespace agspeed::comm::channel
