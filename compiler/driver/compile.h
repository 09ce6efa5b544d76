// SPDX-License-Identifier: Apache-2.0
// compile(): GraphSpecs in, Executable out. It is the only entry to the compiler from outside. libagspeed_compiler.so
// exports only the functions here. Callers of that library have their own copy of runtime/base.
//
// Thread-safety: may be called from several threads at once; holds no Python lock and starts no thread of its own.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiler/options.h"
#include "runtime/base/settings.h"
#include "runtime/base/status.h"
#include "runtime/executable.h"

namespace agspeed::compiler {

/// By entry: the bytes of its last inputs, row-major.
using Constants = std::map<std::string, std::vector<std::vector<std::byte>>>;

/// Compiles each named entry ("forward", "backward") from its GraphSpec JSON text into one Executable. The Executable
/// holds the inputs named by `constants`, so they are not arguments of its entries.
/// Errors: kInvalidArgument for a malformed GraphSpec (node named), an unknown target or a pass that cannot be
/// disabled, kUnsupported if a graph cannot run natively, kResourceExhausted if a limit of the generator is exceeded,
/// kInternal for our bugs.
[[gnu::visibility("default")]] StatusOr<std::unique_ptr<runtime::Executable>> compile(
    const std::map<std::string, std::string>& graphSpecs, const CompileOptions& options, Constants constants = {});

/// configureSettings() for the settings that the compiler reads.
[[gnu::visibility("default")]] Status configure(const SettingValues& values,
                                                const std::map<std::string, std::string>& origins);

}  // namespace agspeed::compiler
