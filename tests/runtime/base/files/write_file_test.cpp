// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/files/write_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace agspeed {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string textOf(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Makes a folder for each test, and in it the file "own", which must never change.
class WriteFile : public testing::Test {
 protected:
  WriteFile() {
    std::string pattern = (fs::temp_directory_path() / "agspeed_write_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    std::ofstream(folder_ / "own") << "precious";
  }
  ~WriteFile() override { fs::remove_all(folder_); }
  size_t numFiles() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
};

TEST_F(WriteFile, ReplacesAWholeFilePrivately) {
  const fs::path path = folder_ / "report";
  ASSERT_TRUE(writeFile(path, "first, which is longer").isOk());
  ASSERT_TRUE(writeFile(path, "second").isOk());
  EXPECT_EQ(textOf(path), "second");
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(numFiles(), 2u);
}

TEST_F(WriteFile, ALinkInItsPlaceIsReplacedAndNotFollowed) {
  for (const bool isHard : {false, true}) {
    const fs::path path = folder_ / "planted";
    for (const bool isCreated : {false, true}) {
      fs::remove(path);
      isHard ? fs::create_hard_link(folder_ / "own", path) : fs::create_symlink(folder_ / "own", path);
      if (isCreated) {
        const StatusOr<int> file = createFile(path);
        ASSERT_TRUE(file.hasValue()) << file.status().toString();
        EXPECT_EQ(write(*file, "new", 3), 3);
        close(*file);
      } else {
        ASSERT_TRUE(writeFile(path, "new").isOk());
      }
      EXPECT_EQ(textOf(folder_ / "own"), "precious");
      EXPECT_EQ(textOf(path), "new");
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path)));
    }
  }
}

TEST_F(WriteFile, WhatIsNoRegularFileStays) {
  fs::create_directory(folder_ / "folder");
  fs::create_symlink("/dev/null", folder_ / "device");
  for (const char* name : {"folder", "device"}) {
    EXPECT_THAT(writeFile(folder_ / name, "new").message(), HasSubstr("not a regular file"));
    EXPECT_THAT(createFile(folder_ / name).status().message(), HasSubstr("not a regular file"));
  }
  EXPECT_TRUE(fs::is_symlink(folder_ / "device"));
  EXPECT_EQ(numFiles(), 3u);
}

TEST_F(WriteFile, AFolderThatIsMissingIsSaidSo) {
  EXPECT_THAT(writeFile(folder_ / "missing" / "file", "new").message(), HasSubstr("No such file"));
  EXPECT_THAT(createFile(folder_ / "missing" / "file").status().message(), HasSubstr("No such file"));
}

}  // namespace
}  // namespace agspeed
