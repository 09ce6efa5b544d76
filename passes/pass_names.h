// SPDX-License-Identifier: Apache-2.0
// Passes by name, as passes.def lists them. Knows neither graphs nor MLIR, so that names are checked before anything is
// compiled. Thread-safety: functions of values.
#pragma once

#include <string_view>

#include "compiler/options.h"
#include "runtime/base/status.h"

namespace agspeed::passes {

/// Who takes options from outside calls this first: pipelines skip what isDisabled() without a look at its row.
/// Errors: kInvalidArgument for a disabled name that no pass has or whose pass is required; lists those that may be.
Status checkDisabledPasses(const compiler::CompileOptions& options);

bool isDisabled(const compiler::CompileOptions& options, std::string_view pass);

}  // namespace agspeed::passes
