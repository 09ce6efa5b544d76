// SPDX-License-Identifier: Apache-2.0
// Admission: decides which handshake requests a listener answers. It is the only place that does so, for every kind of
// connection. Not thread-safe; the directory's thread.
#pragma once

#include <optional>

#include "comm/rendezvous/directory.h"
#include "comm/wire/handshake.h"

namespace agspeed::comm {

struct Admission {
  enum class Verdict {
    kAnswer,  ///< send the responder's reply
    kWait,    ///< the directory does not know the peer yet: try again later
    kRefuse,
  };
  Verdict verdict = Verdict::kRefuse;
  int peer = -1;                       ///< the rank that made the request; unproven while kWait
  std::optional<Responder> responder;  ///< kAnswer
};

/// Answers a request if it names this rank, epoch and protection, and its sender is a rank of this job and has proven
/// the pair's secret.
Admission admit(std::span<const std::byte, kRequestBytes> request, Directory& directory);

}  // namespace agspeed::comm
