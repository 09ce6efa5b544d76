// SPDX-License-Identifier: Apache-2.0
// Admission: decides which handshake requests the listeners of a rank answer, for all rails and for shared memory
// (comm/transport/handshake_server.h). The server of the store is the exception: it has no directory, so it decides by
// itself (store_server.cpp). Only the directory's thread may use it.
#pragma once

#include <optional>

#include "comm/rendezvous/directory.h"
#include "comm/wire/handshake.h"

namespace agspeed::comm::rendezvous {

struct Admission {
  enum class Verdict {
    kAnswer,  ///< send the reply of `responder`
    kWait,    ///< the directory does not know the peer yet: try again later
    kRefuse,
  };
  Verdict verdict = Verdict::kRefuse;
  int peer = -1;  ///< the rank that the request names as its sender; proven only if the verdict is kAnswer
  std::optional<wire::Responder> responder;  ///< set if the verdict is kAnswer
};

/// Decides about a request. The verdict is kAnswer if the request names this rank, epoch and protection, and if its
/// sender is a rank of this job that has proven the secret of the two ranks.
Admission admit(std::span<const std::byte, wire::kRequestBytes> request, Directory& directory);

}  // namespace agspeed::comm::rendezvous
