// SPDX-License-Identifier: Apache-2.0
// Errors of mismatches begin with Horovod's words, so that users can search for them.
#include "comm/named/coordinator/agreement.h"

#include <algorithm>

#include "runtime/base/format.h"

namespace agspeed::comm::coordinator {
namespace {

/// Two ranks and their requests, which are compared.
struct Two {
  int firstRank, otherRank;
  const named::Request& first;
  const named::Request& other;

  std::string differ(const std::string& what, const std::string& ofFirst, const std::string& ofOther) const {
    return formatText("Mismatched {}: rank {} has {}, but rank {} has {}, for '{}'. Make the same call at all ranks.",
                      what, firstRank, ofFirst, otherRank, ofOther, first.name);
  }
};

std::string factors(const named::Request& request) {
  return formatText("({}, {})", request.prescale, request.postscale);
}

std::string device(const named::Request& request) { return request.isOnDevice ? "GPU" : "CPU"; }

bool mayDifferInRows(named::NamedKind kind) {
  return rowsOf(kind) == named::NamedRows::kGathered || rowsOf(kind) == named::NamedRows::kExchanged;
}

bool areShapesAlike(named::NamedKind kind, const named::Dimensions& left, const named::Dimensions& right) {
  if (!mayDifferInRows(kind)) return left == right;
  return left.size() == right.size() && std::equal(left.begin() + 1, left.end(), right.begin() + 1);
}

std::optional<std::string> shapesDiffer(const Two& two) {
  const named::NamedKind kind = two.first.kind;
  const std::string what = named::upperCase(toString(kind)) + " tensor shapes";
  const auto &left = two.first.shapes, &right = two.other.shapes;
  if (left.size() != right.size()) {
    return two.differ(what, formatText("{} tensors", left.size()), formatText("{} tensors", right.size()));
  }
  for (size_t i = 0; i < left.size(); ++i) {
    if (!areShapesAlike(kind, left[i], right[i]))
      return two.differ(what, named::toString(left[i]), named::toString(right[i]));
  }
  return std::nullopt;
}

std::optional<std::string> difference(const Two& two) {
  const named::Request &first = two.first, &other = two.other;
  if (first.kind != other.kind) {
    return two.differ("operations", std::string(toString(first.kind)), std::string(toString(other.kind)));
  }
  if (first.dtype != other.dtype) {
    return two.differ("data types", std::string(toString(first.dtype)), std::string(toString(other.dtype)));
  }
  if (first.isOnDevice != other.isOnDevice) {
    return two.differ(std::string(toString(first.kind)) + " CPU/GPU device selection", device(first), device(other));
  }
  if (first.reduction != other.reduction) {
    return two.differ("reduction operation", std::string(toString(first.reduction)),
                      std::string(toString(other.reduction)));
  }
  if (first.prescale != other.prescale || first.postscale != other.postscale) {
    return two.differ("prescale and/or postscale factors", factors(first), factors(other));
  }
  if (first.root != other.root) {
    return two.differ("broadcast root ranks", formatText("root {}", first.root), formatText("root {}", other.root));
  }
  return shapesDiffer(two);
}

/// Returns an error if the request of `rank` is invalid on its own, without comparing it to other requests.
std::optional<std::string> findInvalid(int rank, const named::Request& request, size_t numRanks) {
  const auto who = [&] {
    return formatText("rank {} calls {} '{}' with ", rank, toString(request.kind), request.name);
  };
  if (mayDifferInRows(request.kind) || rowsOf(request.kind) == named::NamedRows::kScattered) {
    for (const named::Dimensions& shape : request.shapes) {
      if (shape.empty())
        return who() + "a tensor without dimensions, which has no rows to divide; call reshape(1) first";
    }
  }
  if (rowsOf(request.kind) != named::NamedRows::kExchanged) return std::nullopt;
  if (request.shapes.size() != 1) return who() + formatText("{} tensors; pass one tensor", request.shapes.size());
  int64_t sum = 0;
  for (const int64_t each : request.splits) sum += each;
  const bool isEven = std::none_of(request.splits.begin(), request.splits.end(), [](int64_t each) { return each < 0; });
  if (request.splits.size() == numRanks && isEven && sum == request.shapes[0][0]) return std::nullopt;
  return who() + formatText("splits {} for {} rows and {} ranks; pass one count per rank; their sum must be the rows",
                            named::toString(request.splits), request.shapes[0][0], numRanks);
}

}  // namespace

const named::Request& firstOf(const Requests& requests) {
  return **std::find_if(requests.begin(), requests.end(), [](const auto& each) { return each != nullptr; });
}

std::optional<std::string> findMismatch(const Requests& requests) {
  const auto isThere = [](const auto& each) { return each != nullptr; };
  const auto first = std::find_if(requests.begin(), requests.end(), isThere);
  const auto firstRank = static_cast<int>(first - requests.begin());
  const bool isAllThere = std::all_of(requests.begin(), requests.end(), isThere);
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    if (requests[rank] == nullptr) continue;
    if (auto text = findInvalid(static_cast<int>(rank), *requests[rank], requests.size())) return text;
  }
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    if (requests[rank] == nullptr) continue;
    const Two two{firstRank, static_cast<int>(rank), **first, *requests[rank]};
    if (auto text = difference(two)) return text;
  }
  if (isAllThere || (*first)->kind == named::NamedKind::kAllReduce) return std::nullopt;
  return formatText(
      "{} '{}' is not supported with Join at this time: rank {} has joined. Let all ranks call it before join().",
      named::upperCase(toString((*first)->kind)), (*first)->name,
      std::find_if_not(requests.begin(), requests.end(), isThere) - requests.begin());
}

named::AgreementHandle agreementOf(const Requests& requests) {
  auto made = std::make_shared<named::Agreement>(named::Agreement{firstOf(requests), {}});
  named::Agreement& agreement = *made;
  named::Request& request = agreement.request;
  if (rowsOf(request.kind) == named::NamedRows::kGathered) {
    agreement.rows.resize(request.shapes.size());
    for (size_t i = 0; i < request.shapes.size(); ++i) {
      for (const auto& each : requests) agreement.rows[i].push_back(each->shapes[i][0]);
    }
  } else if (rowsOf(request.kind) == named::NamedRows::kExchanged) {
    for (const auto& each : requests) agreement.rows.push_back(each->splits);
  }
  request.splits.clear();
  return made;
}

}  // namespace agspeed::comm::coordinator
