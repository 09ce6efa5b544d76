// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/admission.h"

#include "comm/io/clock.h"

namespace agspeed::comm::rendezvous {

Admission admit(std::span<const std::byte, wire::kRequestBytes> request, Directory& directory) {
  Admission admission;
  const std::optional<wire::Claim> claim = wire::readClaim(request);
  const DirectoryOptions& self = directory.options();
  const bool isForUs = claim && claim->to == static_cast<uint32_t>(self.rank) && claim->epoch == self.epoch &&
                       claim->protection == self.protection && claim->from != claim->to &&
                       claim->from < static_cast<uint32_t>(self.size);
  if (!isForUs) return admission;
  admission.peer = static_cast<int>(claim->from);
  const StatusOr<const Peer*> peer = directory.find(admission.peer, io::Clock::now());
  if (!peer.hasValue()) return admission;
  if (*peer == nullptr) {
    admission.verdict = Admission::Verdict::kWait;  // the peer may have published its record after the last look-up
    return admission;
  }
  admission.responder = wire::Responder::answer(request, (*peer)->secret);
  if (!admission.responder) return admission;
  admission.verdict = Admission::Verdict::kAnswer;
  return admission;
}

}  // namespace agspeed::comm::rendezvous
