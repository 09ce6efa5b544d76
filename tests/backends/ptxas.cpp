// SPDX-License-Identifier: Apache-2.0
#include "tests/backends/ptxas.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include "runtime/base/format.h"

namespace agspeed::backends::nvptx {
namespace {

// Removes the lines that open a module; a module may have them only once.
std::string withoutHeader(const std::string& ptx) {
  std::string result;
  for (size_t begin = 0; begin < ptx.size();) {
    size_t end = std::min(ptx.find('\n', begin), ptx.size());
    std::string_view line(ptx.data() + begin, end - begin);
    bool isHeader = line.starts_with(".version") || line.starts_with(".target") || line.starts_with(".address_size");
    if (!isHeader) result += std::string(line) + "\n";
    begin = end + 1;
  }
  return result;
}

struct Output {
  int code = 0;
  std::string text;
};

Output runCommand(const std::string& command) {
  Output output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return {-1, "cannot start " + command};
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.text.append(buffer, n);
  int status = pclose(pipe);
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

int numberBefore(const std::string& line, const char* what) {
  std::smatch match;
  return std::regex_search(line, match, std::regex("([0-9]+) " + std::string(what))) ? std::stoi(match[1]) : 0;
}

std::vector<AssembledKernel> parseReport(const std::string& text) {
  std::vector<AssembledKernel> kernels;
  std::smatch match;
  const std::regex compiling("Compiling entry function '([^']+)'");
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (std::regex_search(line, match, compiling)) kernels.push_back({match[1]});
    if (kernels.empty()) continue;
    AssembledKernel& kernel = kernels.back();
    kernel.stackBytes += numberBefore(line, "bytes stack frame");
    kernel.spillBytes += numberBefore(line, "bytes spill stores") + numberBefore(line, "bytes spill loads");
    kernel.registers += numberBefore(line, "registers");
  }
  return kernels;
}

}  // namespace

std::string ptxasPath() {
  std::string path = AG_PTXAS;
  return path.find("NOTFOUND") != std::string::npos || access(path.c_str(), X_OK) != 0 ? "" : path;
}

std::string joinPtx(const std::vector<std::string>& texts) {
  std::string joined = texts.front();
  for (size_t i = 1; i < texts.size(); ++i) joined += withoutHeader(texts[i]);
  return joined;
}

StatusOr<std::vector<AssembledKernel>> assemble(const std::string& ptx, Capability capability) {
  std::string folder = (std::filesystem::temp_directory_path() / "ag_ptx_XXXXXX").string();
  if (!mkdtemp(folder.data())) return unavailable("cannot make a folder like {}", folder);
  std::string file = folder + "/kernels.ptx";
  std::ofstream(file) << ptx;
  Output output = runCommand(formatText("'{}' -v -arch=sm_{}{} -o '{}/kernels.cubin' '{}'", ptxasPath(),
                                        capability.major, capability.minor, folder, file));
  std::filesystem::remove_all(folder);
  if (output.code != 0) return internalError("ptxas ends with {}:\n{}", output.code, output.text);
  return parseReport(output.text);
}

}  // namespace agspeed::backends::nvptx
