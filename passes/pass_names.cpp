// SPDX-License-Identifier: Apache-2.0
#include "passes/pass_names.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "runtime/base/format.h"

namespace agspeed::passes {
namespace {

enum class Need { kOptional, kRequired };

struct Row {
  std::string_view name;
  Need need;
};

constexpr Row kRows[] = {
#define AG_GRAPH_PASS(name, function, need) {name, Need::need},
#define AG_PLAN(name, need) {name, Need::need},
#define AG_KERNEL_PASS(name, stem, need) {name, Need::need},
#include "passes/passes.def"
};

std::string optionalNames() {
  std::string names;
  for (const Row& row : kRows) {
    if (row.need == Need::kOptional) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names;
}

Status checkDisabled(std::string_view name) {
  const Row* row = std::ranges::find(kRows, name, &Row::name);
  if (row == std::end(kRows)) {
    return invalidArgument("there is no pass named \"{}\"; the passes that can be disabled are {}", name,
                           optionalNames());
  }
  if (row->need == Need::kOptional) return {};
  return invalidArgument("pass \"{}\" cannot be disabled: later stages need it; the passes that can are {}", name,
                         optionalNames());
}

}  // namespace

Status checkDisabledPasses(const compiler::CompileOptions& options) {
  for (const std::string& name : options.disabledPasses) AG_RETURN_IF_ERROR(checkDisabled(name));
  return {};
}

bool isDisabled(const compiler::CompileOptions& options, std::string_view pass) {
  return std::ranges::find(options.disabledPasses, pass) != options.disabledPasses.end();
}

}  // namespace agspeed::passes
