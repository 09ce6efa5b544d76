// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_net/net_table.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "tests/comm/nccl_net/nccl_socket.h"

namespace agspeed::comm::nccl {
namespace {

struct Log {
  std::mutex mutex;
  std::vector<std::string> lines;
};
Log& log() {
  static Log log;
  return log;
}

void keepLine(LogLevel, unsigned long, const char*, int, const char* format, ...) {
  std::array<char, 2048> line;
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
  const std::lock_guard lock(log().mutex);
  log().lines.emplace_back(line.data());
}

Result ignoreEvent(void**, int, void*, int64_t, void*) { return Result::kOk; }

/// A table of any version. The parameter types of the table's functions determine the arguments of the calls.
template <typename Table, int kVersion>
class VersionedTable final : public NetTable {
 public:
  explicit VersionedTable(const Table& table) : table_(table) {}

  std::string name() const override { return table_.name; }
  int version() const override { return kVersion; }

  Result init() override {
    if constexpr (kVersion >= 11) {
      CommConfig config = {-1};
      return table_.init(&context_, 0x1234, &config, keepLine, ignoreEvent);
    } else if constexpr (kVersion == 10) {
      return table_.init(keepLine, ignoreEvent);
    } else {
      return table_.init(keepLine);
    }
  }
  Result finalize() override {
    if constexpr (kVersion >= 11) return table_.finalize(context_);
    return Result::kOk;
  }
  Result devices(int& count) override { return table_.devices(&count); }
  Result properties(int device, DeviceProperties& properties) override {
    typename Table::Properties raw = {};
    const Result result = table_.getProperties(device, &raw);
    if (result != Result::kOk) return result;
    properties = {raw.name, raw.ptrSupport, raw.speed, raw.maxComms, raw.maxRecvs};
    if constexpr (kVersion >= 9) properties.maxP2pBytes = raw.maxP2pBytes;
    return result;
  }
  Result listen(int device, Handle& handle, void*& listenComm) override {
    if constexpr (kVersion >= 11)
      return table_.listen(context_, device, handle.data(), &listenComm);
    else
      return table_.listen(device, handle.data(), &listenComm);
  }
  Result connect(int device, Handle& handle, void*& sendComm) override {
    [[maybe_unused]] DeviceHandle* offload = nullptr;
    if constexpr (kVersion >= 11) {
      return table_.connect(context_, device, handle.data(), &sendComm, &offload);
    } else if constexpr (kVersion == 10) {
      CommConfig config = {-1};
      return table_.connect(device, &config, handle.data(), &sendComm, &offload);
    } else if constexpr (kVersion >= 7) {
      return table_.connect(device, handle.data(), &sendComm, &offload);
    } else {
      return table_.connect(device, handle.data(), &sendComm);
    }
  }
  Result accept(void* listenComm, void*& recvComm) override {
    [[maybe_unused]] DeviceHandle* offload = nullptr;
    if constexpr (kVersion >= 7)
      return table_.accept(listenComm, &recvComm, &offload);
    else
      return table_.accept(listenComm, &recvComm);
  }
  Result registerMemory(void* comm, std::span<std::byte> bytes, int type, void*& registration) override {
    if constexpr (kVersion >= 8)
      return table_.regMr(comm, bytes.data(), bytes.size(), type, &registration);
    else
      return table_.regMr(comm, bytes.data(), static_cast<int>(bytes.size()), type, &registration);
  }
  Result deregisterMemory(void* comm, void* registration) override { return table_.deregMr(comm, registration); }
  Result send(void* comm, std::span<std::byte> bytes, int tag, void* registration, void*& request) override {
    using Size = std::conditional_t<(kVersion >= 9), size_t, int>;
    const auto size = static_cast<Size>(bytes.size());
    if constexpr (kVersion >= 10)
      return table_.isend(comm, bytes.data(), size, tag, registration, nullptr, &request);
    else
      return table_.isend(comm, bytes.data(), size, tag, registration, &request);
  }
  Result receive(void* comm, std::span<const std::span<std::byte>> targets, std::span<const int> tags,
                 std::span<void* const> registrations, void*& request) override {
    using Size = std::conditional_t<(kVersion >= 9), size_t, int>;
    std::vector<void*> data, events(targets.size());
    std::vector<Size> sizes;
    for (const std::span<std::byte> target : targets) {
      data.push_back(target.data());
      sizes.push_back(static_cast<Size>(target.size()));
    }
    std::vector<int> ownTags(tags.begin(), tags.end());
    std::vector<void*> ownRegistrations(registrations.begin(), registrations.end());
    const int count = static_cast<int>(targets.size());
    if constexpr (kVersion >= 10) {
      return table_.irecv(comm, count, data.data(), sizes.data(), ownTags.data(), ownRegistrations.data(),
                          events.data(), &request);
    } else {
      return table_.irecv(comm, count, data.data(), sizes.data(), ownTags.data(), ownRegistrations.data(), &request);
    }
  }
  Result test(void* request, bool& isDone, int* sizes) override {
    int done = 0;
    const Result result = table_.test(request, &done, sizes);
    isDone = done != 0;
    return result;
  }
  Result closeSend(void* comm) override { return table_.closeSend(comm); }
  Result closeReceive(void* comm) override { return table_.closeRecv(comm); }
  Result closeListen(void* comm) override { return table_.closeListen(comm); }

  std::vector<std::string> missingFunctions() const override {
    std::vector<std::string> missing;
    const auto check = [&](const char* name, bool isThere) {
      if (!isThere) missing.emplace_back(name);
    };
    check("init", table_.init != nullptr);
    check("devices", table_.devices != nullptr);
    check("getProperties", table_.getProperties != nullptr);
    check("listen", table_.listen != nullptr);
    check("connect", table_.connect != nullptr);
    check("accept", table_.accept != nullptr);
    check("regMr", table_.regMr != nullptr);
    check("deregMr", table_.deregMr != nullptr);
    check("isend", table_.isend != nullptr);
    check("irecv", table_.irecv != nullptr);
    check("iflush", table_.iflush != nullptr);
    check("test", table_.test != nullptr);
    check("closeSend", table_.closeSend != nullptr);
    check("closeRecv", table_.closeRecv != nullptr);
    check("closeListen", table_.closeListen != nullptr);
    if constexpr (kVersion >= 11) check("finalize", table_.finalize != nullptr);
    return missing;
  }

 private:
  const Table& table_;
  [[maybe_unused]] void* context_ = nullptr;
};

template <typename Table, int kVersion>
std::unique_ptr<NetTable> wrap(const void* table) {
  return std::make_unique<VersionedTable<Table, kVersion>>(*static_cast<const Table*>(table));
}

}  // namespace

std::vector<std::string> loggedLines() {
  const std::lock_guard lock(log().mutex);
  return log().lines;
}

std::unique_ptr<NetTable> wrapTable(int version, const void* table) {
  switch (version) {
    case 6: return wrap<TableV6, 6>(table);
    case 7: return wrap<TableV7, 7>(table);
    case 8: return wrap<TableV8, 8>(table);
    case 9: return wrap<TableV9, 9>(table);
    case 10: return wrap<TableV10, 10>(table);
    case 11: return wrap<TableV11, 11>(table);
    case 12: return wrap<TableV12, 12>(table);
    default: return nullptr;
  }
}

LoadedTable loadTable(const TableSource& source) {
  if (source.version == 0) return loadNcclSocket(source.library);
  void* library = dlopen(source.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, dlerror()};
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(source.version);
  const void* table = dlsym(library, symbol.c_str());
  if (table == nullptr) return {nullptr, source.library + " has no " + symbol};
  return {wrapTable(source.version, table), ""};
}

}  // namespace agspeed::comm::nccl
