// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_net/process_pair.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <set>

namespace agspeed::comm::nccl {
namespace {

using Time = std::chrono::steady_clock;
constexpr std::chrono::seconds kTimeout{40};
constexpr unsigned kProcessSeconds = 90;

/// Calls `attempt` until it is true.
void retry(const std::string& what, const std::function<bool()>& attempt) {
  const Time::time_point limit = Time::now() + kTimeout;
  while (!attempt()) {
    require(Time::now() < limit, what + " had no end in 40 s");
    sched_yield();
  }
}

/// Makes all traffic of the test's processes use the loopback interface.
void keepOnLoopback() {
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
  setenv("AGSPEED_SOCKET_IFNAME", "=lo", 0);
  setenv("AGSPEED_FLOWS_PER_INTERFACE", "2", 0);
  setenv("AGSPEED_PEER_TIMEOUT_MS", "4000", 0);
}

/// Writes the error of the body to `report`.
void runChild(const TableSource& source, int report, const std::function<void(NetTable&)>& body) {
  alarm(kProcessSeconds);
  keepOnLoopback();
  std::string failure;
  try {
    const LoadedTable loaded = loadTable(source);
    if (loaded.table == nullptr) {
      failure = "skip: " + loaded.whyNot;
    } else {
      requireOk(loaded.table->init(), "init");
      body(*loaded.table);
      requireOk(loaded.table->finalize(), "finalize");
    }
  } catch (const std::exception& problem) {
    failure = problem.what();
  }
  if (write(report, failure.data(), failure.size()) < 0) _exit(2);
  _exit(0);
}

struct Child {
  pid_t process = 0;
  int report = -1;
};

Child startChild(const TableSource& source, const std::vector<int>& otherEnds,
                 const std::function<void(NetTable&)>& body) {
  std::array<int, 2> report;
  require(pipe(report.data()) == 0, "pipe");
  const pid_t process = fork();
  if (process == 0) {
    for (const int each : otherEnds) close(each);
    runChild(source, report[1], body);
  }
  close(report[1]);
  return {process, report[0]};
}

std::string endOf(const Child& child) {
  std::string text;
  std::array<char, 4096> part;
  pollfd report = {.fd = child.report, .events = POLLIN, .revents = 0};
  while (true) {
    // A process that was stopped (SIGSTOP) does not end by its alarm.
    if (poll(&report, 1, 1000 * (kProcessSeconds + 10)) == 0) {
      kill(child.process, SIGKILL);
      text += "its process had no end";
    }
    const ssize_t size = read(child.report, part.data(), part.size());
    if (size <= 0) break;
    text.append(part.data(), static_cast<size_t>(size));
  }
  close(child.report);
  int status = 0;
  waitpid(child.process, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
    text += "its process ended by signal " + std::to_string(WTERMSIG(status));
  }
  return text;
}

}  // namespace

void require(bool isTrue, const std::string& what) {
  if (!isTrue) throw SideFailure(what);
}

void requireOk(Result result, const std::string& call) {
  if (result == Result::kOk) return;
  std::string text = call + " returned " + std::to_string(static_cast<int>(result));
  for (const std::string& line : loggedLines()) text += "\n  logged: " + line;
  throw SideFailure(text);
}

void requireLogged(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& line : loggedLines()) {
    const bool hasAll = std::all_of(texts.begin(), texts.end(),
                                    [&](const std::string& text) { return line.find(text) != std::string::npos; });
    if (hasAll) return;
    all += "\n  " + line;
  }
  std::string wanted;
  for (const std::string& text : texts) wanted += " '" + text + "'";
  require(false, "no line was logged with" + wanted + "; there were:" + all);
}

void Side::tell(std::span<const std::byte> bytes) const {
  require(write(socket_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "the other side is gone");
}

void Side::hear(std::span<std::byte> bytes) const {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t size = read(socket_, bytes.data() + at, bytes.size() - at);
    require(size > 0, "the other side is gone");
    at += static_cast<size_t>(size);
  }
}

void Side::barrier() const {
  std::array<std::byte, 1> one{};
  tell(one);
  hear(one);
}

std::string Side::exchangeNames() const {
  std::array<char, 256> name = {};
  require(gethostname(name.data(), name.size() - 1) == 0, "gethostname");
  int process = getpid();
  tell(std::as_bytes(std::span(&process, 1)));
  hear(std::as_writable_bytes(std::span(&process, 1)));
  return "process " + std::to_string(process) + " on " + name.data();
}

void* Side::listen(Handle& handle, int device) {
  void* comm = nullptr;
  requireOk(table_.listen(device, handle, comm), "listen");
  require(comm != nullptr, "listen gave no listener");
  return comm;
}

void* Side::connect(Handle handle, int device) {
  void* comm = nullptr;
  retry("connect", [&] {
    requireOk(table_.connect(device, handle, comm), "connect");
    return comm != nullptr;
  });
  return comm;
}

void* Side::accept(void* listenComm) {
  void* comm = nullptr;
  retry("accept", [&] {
    requireOk(table_.accept(listenComm, comm), "accept");
    return comm != nullptr;
  });
  return comm;
}

void* Side::openSend(int device) {
  Handle handle;
  hear(handle);
  return connect(handle, device);
}

void* Side::openReceive(void** listenComm, int device) {
  Handle handle = {};
  void* listener = listen(handle, device);
  tell(handle);
  void* comm = accept(listener);
  if (listenComm != nullptr) {
    *listenComm = listener;
  } else {
    requireOk(table_.closeListen(listener), "closeListen");
  }
  return comm;
}

void* Side::memory(void* comm, std::span<std::byte> bytes) {
  void* registration = nullptr;
  requireOk(table_.registerMemory(comm, bytes, kPointerHost, registration), "regMr");
  requireOk(table_.deregisterMemory(comm, registration), "deregMr");
  return registration;
}

Pending Side::send(void* comm, std::span<std::byte> bytes, int tag) {
  Pending pending;
  pending.comm = comm;
  void* registration = memory(comm, bytes);
  retry("isend", [&] {
    requireOk(table_.send(comm, bytes, tag, registration, pending.request), "isend");
    return pending.request != nullptr;
  });
  pending.sizes.resize(1);
  return pending;
}

Pending Side::receive(void* comm, std::vector<std::span<std::byte>> targets, std::vector<int> tags, void* hint) {
  Pending pending;
  pending.comm = comm;
  std::vector<void*> registrations;
  for (const std::span<std::byte> target : targets) registrations.push_back(memory(comm, target));
  retry("irecv", [&] {
    pending.request = hint;
    requireOk(table_.receive(comm, targets, tags, registrations, pending.request), "irecv");
    require(hint == nullptr || pending.request != hint, "irecv left the hint in *request");
    return pending.request != nullptr;
  });
  pending.sizes.resize(targets.size(), -1);
  return pending;
}

void Side::wait(std::span<Pending> pending) {
  retry("test", [&] {
    std::set<void*> busy;
    for (Pending& each : pending) {
      if (each.isDone || busy.contains(each.comm)) continue;
      requireOk(table_.test(each.request, each.isDone, each.sizes.data()), "test");
      if (!each.isDone) busy.insert(each.comm);
    }
    return std::all_of(pending.begin(), pending.end(), [](const Pending& each) { return each.isDone; });
  });
}

Result Side::testFor(Pending& pending, std::chrono::milliseconds time) {
  const Time::time_point limit = Time::now() + time;
  Result result = Result::kOk;
  while (result == Result::kOk && !pending.isDone && Time::now() < limit) {
    result = table_.test(pending.request, pending.isDone, pending.sizes.data());
    usleep(20);
  }
  return result;
}

Result Side::waitForFailure(Pending& pending) {
  const Result result = testFor(pending, kTimeout);
  require(!pending.isDone, "what cannot be done is done");
  require(result != Result::kOk, "nothing had failed after 40 s");
  return result;
}

std::string runTwo(const TableSource& source, const SideBody& first, const SideBody& second) {
  std::array<int, 2> sockets;
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0, "socketpair");
  const auto withSide = [](int socket, const SideBody& body) {
    return [socket, &body](NetTable& table) {
      Side side(table, socket);
      body(side);
    };
  };
  const Child a = startChild(source, {sockets[1]}, withSide(sockets[0], first));
  const Child b = startChild(source, {sockets[0]}, withSide(sockets[1], second));
  for (const int each : sockets) close(each);
  const std::string fromFirst = endOf(a), fromSecond = endOf(b);
  if (fromFirst.empty() && fromSecond.empty()) return "";
  if (fromFirst.starts_with("skip: ")) return fromFirst;
  return "first: " + fromFirst + "\nsecond: " + fromSecond;
}

std::string runOne(const TableSource& source, const std::function<void(NetTable&)>& body) {
  return endOf(startChild(source, {}, body));
}

Group::Group(NetTable& table, size_t rank, const std::vector<int>& sockets) : rank_(rank) {
  for (const int each : sockets) sides_.emplace_back(table, each);
}

void Group::barrier() {
  for (size_t peer = 0; peer < size(); ++peer) {
    if (peer != rank_) sides_[peer].barrier();
  }
}

std::string runGroup(const TableSource& source, size_t size, const std::function<void(Group&)>& body) {
  std::vector<std::vector<int>> sockets(size, std::vector<int>(size, -1));
  for (size_t a = 0; a < size; ++a) {
    for (size_t b = a + 1; b < size; ++b) {
      std::array<int, 2> ends;
      require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair");
      sockets[a][b] = ends[0];
      sockets[b][a] = ends[1];
    }
  }
  const auto endsOfOthers = [&](size_t rank) {
    std::vector<int> ends;
    for (size_t other = 0; other < size; ++other) {
      if (other != rank) ends.insert(ends.end(), sockets[other].begin(), sockets[other].end());
    }
    return ends;
  };
  std::vector<Child> children;
  for (size_t rank = 0; rank < size; ++rank) {
    children.push_back(startChild(source, endsOfOthers(rank), [&, rank](NetTable& table) {
      Group group(table, rank, sockets[rank]);
      body(group);
    }));
  }
  for (const std::vector<int>& ends : sockets) {
    for (const int each : ends) close(each);
  }
  std::string failures;
  for (size_t rank = 0; rank < size; ++rank) {
    const std::string failure = endOf(children[rank]);
    if (!failure.empty()) failures += "process " + std::to_string(rank) + ": " + failure + "\n";
  }
  return failures;
}

std::vector<std::byte> patternOf(uint64_t seed, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((seed * 1009 + i * 2654435761u + i / 251) >> 3);
  }
  return bytes;
}

}  // namespace agspeed::comm::nccl
