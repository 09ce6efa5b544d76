// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_net/nccl_socket.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

namespace agspeed::comm::nccl {
namespace {

/// The bytes of a file, memory-mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status = {};
    if (file >= 0 && fstat(file, &status) == 0) {
      size_ = static_cast<size_t>(status.st_size);
      bytes_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    if (file >= 0) close(file);
  }
  ~MappedFile() {
    if (bytes_ != MAP_FAILED) munmap(bytes_, size_);
  }
  MappedFile(const MappedFile&) = delete;

  bool isOpen() const { return bytes_ != MAP_FAILED; }
  template <typename T>
  const T* at(size_t offset, size_t count = 1) const {
    if (offset > size_ || count > (size_ - offset) / sizeof(T)) return nullptr;
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(bytes_) + offset);
  }

 private:
  void* bytes_ = MAP_FAILED;
  size_t size_ = 0;
};

/// Offsets of the named symbols in the library, from its full symbol table. Symbols that it lacks are left out.
std::map<std::string, uintptr_t> findSymbols(const std::string& path, std::span<const char* const> names) {
  std::map<std::string, uintptr_t> found;
  const MappedFile file(path);
  const auto* header = file.isOpen() ? file.at<ElfW(Ehdr)>(0) : nullptr;
  if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return found;
  const auto* sections = file.at<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
  for (int i = 0; sections != nullptr && i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const ElfW(Shdr) & strings = sections[sections[i].sh_link];
    const size_t count = sections[i].sh_size / sizeof(ElfW(Sym));
    const auto* symbols = file.at<ElfW(Sym)>(sections[i].sh_offset, count);
    const char* text = file.at<char>(strings.sh_offset, strings.sh_size);
    for (size_t at = 0; symbols != nullptr && text != nullptr && at < count; ++at) {
      for (const char* name : names) {
        if (std::strcmp(text + symbols[at].st_name, name) == 0) found[name] = symbols[at].st_value;
      }
    }
  }
  return found;
}

/// Overwrites the function: it now stores 0 where its argument points, and returns 0.
bool answerZero(void* function) {
  constexpr unsigned char kCode[] = {0xC7, 0x07, 0, 0, 0, 0, 0x31, 0xC0, 0xC3};  // mov [rdi], 0; xor eax, eax; ret
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(function) / page * page;
  const size_t size = reinterpret_cast<uintptr_t>(function) + sizeof(kCode) - begin;
  if (mprotect(reinterpret_cast<void*>(begin), size, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return false;
  std::memcpy(function, kCode, sizeof(kCode));
  return mprotect(reinterpret_cast<void*>(begin), size, PROT_READ | PROT_EXEC) == 0;
}

/// The version of the table inside an NCCL of that version; 0: not known.
int tableVersion(int ncclVersion) {
  const int minor = ncclVersion / 100 % 100;
  if (ncclVersion < 20000) return 0;
  if (minor >= 30) return 12;
  if (minor >= 28) return 11;
  if (minor >= 26) return 10;
  return minor >= 24 ? 9 : 0;
}

}  // namespace

std::string findNccl() {
  if (const char* path = std::getenv("AG_TEST_NCCL_LIBRARY")) return path;
  std::error_code none;
  const std::filesystem::path root = std::filesystem::path(AG_SOURCE_DIR) / ".venv" / "lib";
  for (const auto& python : std::filesystem::directory_iterator(root, none)) {
    const auto library = python.path() / "site-packages/nvidia/nccl/lib/libnccl.so.2";
    if (std::filesystem::exists(library)) return library.string();
  }
  // Searches the loader's usual folders for the path. dlopen() without a path would load the library into the test.
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/cuda/lib64"}) {
    const auto library = std::filesystem::path(folder) / "libnccl.so.2";
    if (std::filesystem::exists(library)) return library.string();
  }
  return "";
}

LoadedTable loadNcclSocket(const std::string& path) {
  if (path.empty()) return {nullptr, "libnccl.so.2 was found neither in .venv nor where the system has libraries"};
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, dlerror()};
  const char* const names[] = {"ncclNetSocket", "cudaGetDevice"};
  const std::map<std::string, uintptr_t> symbols = findSymbols(path, names);
  const link_map* map = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  auto* version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int ncclVersion = 0;
  if (symbols.size() < std::size(names) || map == nullptr || version == nullptr || version(&ncclVersion) != 0) {
    return {nullptr, path + " is stripped: its socket transport cannot be found"};
  }
  if (tableVersion(ncclVersion) == 0) return {nullptr, path + " is too old or new: " + std::to_string(ncclVersion)};
  if (!answerZero(reinterpret_cast<void*>(map->l_addr + symbols.at("cudaGetDevice")))) {
    return {nullptr, "memory of " + path + " cannot be changed here"};
  }
  const auto* table = reinterpret_cast<const void*>(map->l_addr + symbols.at("ncclNetSocket"));
  return {wrapTable(tableVersion(ncclVersion), table), ""};
}

}  // namespace agspeed::comm::nccl
