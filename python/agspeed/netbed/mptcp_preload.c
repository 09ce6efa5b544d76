// SPDX-License-Identifier: Apache-2.0
// A library to preload into a command. It makes the command's TCP sockets MPTCP sockets, if the kernel supports them.
// TCP allows setting SO_REUSEADDR on a connected socket, but MPTCP fails with EINVAL, and Gloo aborts on that error. So
// this library hides that one error. Thread-safe, because dlsym is thread-safe and nothing else is shared.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

int socket(int domain, int type, int protocol) {
  int (*next)(int, int, int) = dlsym(RTLD_NEXT, "socket");
  int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  int internet = domain == AF_INET || domain == AF_INET6;
  if (internet && kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP)) {
    int made = next(domain, type, IPPROTO_MPTCP);
    if (made >= 0) return made;
  }
  return next(domain, type, protocol);
}

int setsockopt(int descriptor, int level, int name, const void *value, socklen_t size) {
  int (*next)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
  int result = next(descriptor, level, name, value, size);
  if (result < 0 && errno == EINVAL && level == SOL_SOCKET && name == SO_REUSEADDR) return 0;
  return result;
}
