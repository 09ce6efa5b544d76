// SPDX-License-Identifier: Apache-2.0
// Checks whether the requests of all ranks for one operation agree, and returns the agreed values. Pure functions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/named/request.h"

namespace agspeed::comm::coordinator {

using RequestHandle = std::shared_ptr<const named::Request>;
/// The requests of one operation by rank; null if a rank has not requested it.
using Requests = std::vector<RequestHandle>;

/// Returns the first request that is not null. Requires: there is one.
const named::Request& firstOf(const Requests& requests);
/// Checks whether the requests of all ranks agree, so that the operation can run. Returns nullopt if they agree, else
/// an error. Most errors name two ranks and both values. Requires: at least one request is not null.
std::optional<std::string> findMismatch(const Requests& requests);
/// Returns the agreement of requests without a mismatch: the first request, with the rows of all ranks. Requires: at
/// least one request is not null.
named::AgreementHandle agreementOf(const Requests& requests);

}  // namespace agspeed::comm::coordinator
