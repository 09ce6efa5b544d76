// SPDX-License-Identifier: Apache-2.0
// StoreServer: serves a MemoryStore to ranks on other hosts that prove the job key. It listens on one address only. It
// answers each request at once, also if a key is not set. PendingConnections bounds the cost of unauthenticated peers.
//
// Threading: the server's own thread serves all connections; any thread may use the store. Ownership: the destructor
// closes all connections; the store may outlive the server.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "comm/io/file_descriptor.h"
#include "comm/rendezvous/pending_connections.h"
#include "comm/rendezvous/store_address.h"
#include "comm/rendezvous/store_protocol.h"

namespace agspeed::comm::rendezvous {

class StoreServer {
 public:
  /// Starts a server at `address`; port 0 selects a free port. Fails without a job key, because the server could not
  /// authenticate its clients.
  static StatusOr<std::unique_ptr<StoreServer>> start(const StoreAddress& address, const security::JobKey& key);
  ~StoreServer();

  uint16_t port() const { return port_; }
  const std::shared_ptr<MemoryStore>& store() const { return store_; }

 private:
  struct Connection;

  StoreServer(io::FileDescriptor listener, io::FileDescriptor wakeUp, uint16_t port, const security::JobKey& key);
  void serve();
  void accept();
  /// Reads or writes on a connection that is ready. Destroys the connection if it has ended or failed.
  void proceed(Connection& connection);
  // read(), answer(), answerHandshake() and write() return whether the connection may stay open.
  bool read(Connection& connection);
  bool answer(Connection& connection);
  bool answerHandshake(Connection& connection);
  static bool write(Connection& connection);
  StoreReply perform(const StoreRequest& request);

  const io::FileDescriptor listener_, wakeUp_;
  const uint16_t port_;
  const security::Digest secret_;
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  PendingConnections<Connection> pending_;
  std::vector<std::unique_ptr<Connection>> connections_;  ///< connections whose clients have proven the key
  std::thread thread_;
};

}  // namespace agspeed::comm::rendezvous
