// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/system_error.h"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

#include "runtime/base/format.h"

namespace agspeed {

std::string describeError(int error) {
  const std::string text = std::generic_category().message(error);
  if (error == ENFILE) return text + "; close some files on this host, or raise fs.file-max";
  if (error != EMFILE) return text;
  rlimit limit = {};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return formatText("{}; raise the limit of descriptors of this process (ulimit -n), which is {}, or close some", text,
                    limit.rlim_cur);
}

}  // namespace agspeed
