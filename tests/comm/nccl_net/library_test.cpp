// SPDX-License-Identifier: Apache-2.0
// The library as NCCL's loader uses it: its exported symbols, and that it can be closed and opened again.
#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/sources.h"

namespace agspeed::comm::nccl {
namespace {

/// Names of the symbols that the library exports, from its dynamic symbol table.
std::vector<std::string> exportsOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes.data());
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(bytes.data() + header->e_shoff);
  std::vector<std::string> names;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(bytes.data() + sections[i].sh_offset);
    const char* text = bytes.data() + sections[sections[i].sh_link].sh_offset;
    for (size_t at = 0; at < sections[i].sh_size / sizeof(ElfW(Sym)); ++at) {
      if (symbols[at].st_shndx != SHN_UNDEF) names.emplace_back(text + symbols[at].st_name);
    }
  }
  return names;
}

TEST(Library, ShowsTheTablesAndNothingElse) {
  std::vector<std::string> expected;
  for (int version = 6; version <= 12; ++version) expected.push_back("ncclNetPlugin_v" + std::to_string(version));
  EXPECT_THAT(exportsOf(AG_NCCL_NET_LIBRARY), testing::UnorderedElementsAreArray(expected));
}

TEST(Library, IsNamedAgspeedInEveryTable) {
  for (int version = 6; version <= 12; ++version) {
    const LoadedTable loaded = loadTable(ourTable(version));
    ASSERT_NE(loaded.table, nullptr) << loaded.whyNot;
    EXPECT_EQ(loaded.table->name(), "agspeed");
  }
}

TEST(Library, IsClosedAndOpenedAgain) {
  const std::string failure = runOne(ourTable(11), [](NetTable& first) {
    requireOk(first.finalize(), "finalize");
    for (int round = 0; round < 3; ++round) {
      void* library = dlopen(AG_NCCL_NET_LIBRARY, RTLD_NOW | RTLD_LOCAL);
      require(library != nullptr, "dlopen");
      const std::unique_ptr<NetTable> table = wrapTable(11, dlsym(library, "ncclNetPlugin_v11"));
      requireOk(table->init(), "init");
      Handle handle;
      void* listener = nullptr;
      requireOk(table->listen(0, handle, listener), "listen");
      requireOk(table->closeListen(listener), "closeListen");
      requireOk(table->finalize(), "finalize");
      require(dlclose(library) == 0, "dlclose");
    }
    requireOk(first.init(), "init");
  });
  EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace agspeed::comm::nccl
