// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/transport.h"

namespace agspeed::comm::transport {

std::string_view toString(LossCause cause) {
  switch (cause) {
    case LossCause::kClosed: return "closed";
    case LossCause::kRefused: return "refused";
    case LossCause::kCorrupted: return "corrupted";
    case LossCause::kStalled: return "stalled";
    case LossCause::kSilent: return "silent";
    case LossCause::kUnreachable: return "unreachable";
    case LossCause::kUnpaired: return "unpaired";
    case LossCause::kIncompatible: return "incompatible";
  }
  return "unknown";
}

}  // namespace agspeed::comm::transport
