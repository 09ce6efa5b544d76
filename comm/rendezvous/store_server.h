// SPDX-License-Identifier: Apache-2.0
// StoreServer: a MemoryStore for the ranks of a job on other hosts, served to whoever proves the job key. It listens on
// one address only, answers at once, and holds little for who has not proven anything: 16 KiB for some seconds, of 128
// at most; who comes then takes the place of the first.
//
// Threading: a thread of its own serves; the store is for any thread. Ownership: the destructor closes all connections;
// the store lives on.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "comm/io/clock.h"
#include "comm/io/file_descriptor.h"
#include "comm/rendezvous/store_address.h"
#include "comm/rendezvous/store_protocol.h"

namespace agspeed::comm {

class StoreServer {
 public:
  /// Listens there; port 0: one that is free. Fails without a job key, as there is nothing to prove.
  static StatusOr<std::unique_ptr<StoreServer>> start(const StoreAddress& address, const JobKey& key);
  ~StoreServer();

  uint16_t port() const { return port_; }
  const std::shared_ptr<MemoryStore>& store() const { return store_; }

 private:
  struct Connection;

  StoreServer(FileDescriptor listener, FileDescriptor wakeUp, uint16_t port, const JobKey& key);
  void serve();
  void accept();
  /// All return whether the connection is of use any more.
  bool read(Connection& connection);
  bool answer(Connection& connection);
  bool answerHandshake(Connection& connection);
  static bool write(Connection& connection);
  StoreReply perform(const StoreRequest& request);

  const FileDescriptor listener_, wakeUp_;
  const uint16_t port_;
  const Digest secret_;
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Connection>> connections_;
  std::thread thread_;
};

}  // namespace agspeed::comm
