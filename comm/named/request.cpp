// SPDX-License-Identifier: Apache-2.0
#include "comm/named/request.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <numeric>

#include "runtime/base/format.h"

namespace agspeed::comm::named {

std::string_view toString(NamedKind kind) {
  switch (kind) {
#define AG_NAMED_KIND(kind, name, constant, rows, prepare) \
  case NamedKind::k##kind: return name;
#include "comm/named/named_kinds.def"
  }
  return "unknown operation";
}

NamedRows rowsOf(NamedKind kind) {
  switch (kind) {
#define AG_NAMED_KIND(kind, name, constant, rows, prepare) \
  case NamedKind::k##kind: return NamedRows::rows;
#include "comm/named/named_kinds.def"
  }
  return NamedRows::kNone;
}

std::string upperCase(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::toupper(c); });
  return result;
}

std::string_view toString(NamedReduction reduction) {
  switch (reduction) {
    case NamedReduction::kAverage: return "Average";
    case NamedReduction::kSum: return "Sum";
    case NamedReduction::kMin: return "Min";
    case NamedReduction::kMax: return "Max";
    case NamedReduction::kProduct: return "Product";
  }
  return "unknown reduction";
}

std::string toString(const Dimensions& dimensions) {
  std::string text = "[";
  for (const int64_t each : dimensions) text += formatText("{}{}", text.size() > 1 ? ", " : "", each);
  return text + "]";
}

int64_t numElements(const Dimensions& dimensions) {
  return std::accumulate(dimensions.begin(), dimensions.end(), int64_t{1}, std::multiplies<>());
}

int64_t elementsPerRow(const Dimensions& dimensions) {
  if (dimensions.empty()) return 1;
  return std::accumulate(dimensions.begin() + 1, dimensions.end(), int64_t{1}, std::multiplies<>());
}

Dimensions scatteredRows(int64_t rows, int numRanks) {
  Dimensions shares(static_cast<size_t>(numRanks), rows / numRanks);
  for (int64_t i = 0; i < rows % numRanks; ++i) ++shares[static_cast<size_t>(i)];
  return shares;
}

size_t bytesOf(const Request& request) {
  int64_t count = 0;
  for (const Dimensions& shape : request.shapes) count += numElements(shape);
  return static_cast<size_t>(count) * sizeInBytes(request.dtype);
}

}  // namespace agspeed::comm::named
