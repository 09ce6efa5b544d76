// SPDX-License-Identifier: Apache-2.0
#include "comm/world/rendezvous_store.h"

#include <string_view>
#include <utility>

#include "comm/network/network_options.h"
#include "comm/rendezvous/store_server.h"
#include "comm/rendezvous/stream_store.h"

namespace agspeed::comm::world {
namespace {

constexpr std::string_view kFile = "file:", kTcp = "tcp:";

/// Returns the part of the text after the prefix `kind`, or an empty text if the text does not begin with the prefix.
std::string behind(std::string_view kind, const std::string& text) {
  return text.starts_with(kind) ? text.substr(kind.size()) : "";
}

}  // namespace

StatusOr<std::shared_ptr<rendezvous::Store>> openRendezvousStore(const std::string& where, int rank, int size,
                                                                 std::chrono::steady_clock::time_point deadline) {
  if (const std::string folder = behind(kFile, where); !folder.empty()) {
    return std::shared_ptr<rendezvous::Store>(std::make_shared<rendezvous::FileStore>(folder));
  }
  const std::string place = behind(kTcp, where);
  if (place.empty()) {
    return invalidArgument("ranks cannot find each other at '{}': write file:FOLDER or tcp:HOST:PORT", where);
  }
  AG_ASSIGN_OR_RETURN(const rendezvous::StoreAddress address, rendezvous::StoreAddress::parse(place));
  AG_ASSIGN_OR_RETURN(const network::NetworkOptions options, network::NetworkOptions::fromSettings(rank, size));
  if (rank > 0) {
    AG_ASSIGN_OR_RETURN(std::unique_ptr<rendezvous::StreamStore> store,
                        rendezvous::StreamStore::connect(address, options.key, deadline));
    return std::shared_ptr<rendezvous::Store>(std::move(store));
  }
  AG_ASSIGN_OR_RETURN(std::shared_ptr<rendezvous::StoreServer> server,
                      rendezvous::StoreServer::start(address, options.key));
  rendezvous::Store* store = server->store().get();
  return std::shared_ptr<rendezvous::Store>(std::move(server), store);  // the pointer keeps the server alive
}

}  // namespace agspeed::comm::world
