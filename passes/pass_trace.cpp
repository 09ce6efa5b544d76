// SPDX-License-Identifier: Apache-2.0
#include "passes/pass_trace.h"

#include "runtime/base/files/write_file.h"
#include "runtime/base/format.h"

namespace agspeed::passes {

PassTrace::PassTrace(std::string dumpDir, std::string stem, std::string extension)
    : dumpDir_(std::move(dumpDir)), stem_(std::move(stem)), extension_(std::move(extension)) {}

void PassTrace::dump(std::string_view pass, const std::function<std::string()>& print) {
  if (dumpDir_.empty()) return;
  std::string text = print();
  writeFile(formatText("{}-{}{}", numDumps_++, pass, extension_), text == lastDump_ ? "(unchanged)\n" : text);
  lastDump_ = std::move(text);
}

void PassTrace::addTiming(std::string_view pass, TimePoint begin) {
  if (dumpDir_.empty()) return;
  std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  timings_ += formatText("{} {}\n", pass, elapsed.count());
}

void PassTrace::dumpTimings() const { writeFile("timings.txt", timings_); }

std::string PassTrace::writeFile(std::string_view name, std::string_view text) const {
  if (dumpDir_.empty()) return "";
  std::string path = formatText("{}/{}{}", dumpDir_, stem_, name);
  return agspeed::writeFile(path, text).isOk() ? path : "";
}

}  // namespace agspeed::passes
