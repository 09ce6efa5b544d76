// SPDX-License-Identifier: Apache-2.0
// Admission: the one place that decides whose request a listener answers, whatever the connection is made of.
// Not thread-safe; the directory's thread.
#pragma once

#include <optional>

#include "comm/rendezvous/directory.h"
#include "comm/wire/handshake.h"

namespace agspeed::comm {

struct Admission {
  enum class Verdict {
    kAnswer,  ///< send the responder's reply
    kWait,    ///< the directory does not know the peer yet: try again
    kRefuse,
  };
  Verdict verdict = Verdict::kRefuse;
  int peer = -1;                       ///< who made the request, or says so (kWait)
  std::optional<Responder> responder;  ///< kAnswer
};

/// Answers a request for this rank, epoch and protection by a rank of this job that knows the pair's secret.
Admission admit(std::span<const std::byte, kRequestBytes> request, Directory& directory);

}  // namespace agspeed::comm
