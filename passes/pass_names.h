// SPDX-License-Identifier: Apache-2.0
// Checks names of passes against passes.def. This file knows neither graphs nor MLIR, so names can be checked before
// anything is compiled. Thread-safety: all functions may be called concurrently.
#pragma once

#include <string_view>

#include "compiler/options.h"
#include "runtime/base/status.h"

namespace agspeed::passes {

/// Checks that every name in options.disabledPasses is the name of a pass that may be disabled. Code that takes options
/// from outside calls this first, because the pipelines skip a disabled pass without a look at its row.
/// Errors: kInvalidArgument for a name that no pass has, or whose pass is required. The message lists the passes that
/// may be disabled.
Status checkDisabledPasses(const compiler::CompileOptions& options);

/// Whether options.disabledPasses contains the name.
bool isDisabled(const compiler::CompileOptions& options, std::string_view pass);

}  // namespace agspeed::passes
