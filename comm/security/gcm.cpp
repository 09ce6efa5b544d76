// SPDX-License-Identifier: Apache-2.0
#include "comm/security/gcm.h"

#include <cstring>
#include <utility>

namespace agspeed::comm::security {

#if !AG_HAS_IPSEC_MB
std::unique_ptr<Gcm> makeIpsecMbGcm() { return nullptr; }
#endif

std::unique_ptr<Gcm> makeGcm() {
  std::unique_ptr<Gcm> quick = makeIpsecMbGcm();
  return quick != nullptr ? std::move(quick) : makeOpensslGcm();
}

std::array<unsigned char, 12> gcmNonce(uint64_t counter) {
  std::array<unsigned char, 12> nonce{};
  std::memcpy(nonce.data(), &counter, sizeof(counter));
  return nonce;
}

}  // namespace agspeed::comm::security
