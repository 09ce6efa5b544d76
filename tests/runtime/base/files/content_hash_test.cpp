// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/files/content_hash.h"

#include <gtest/gtest.h>

#include <set>

namespace agspeed {
namespace {

TEST(ContentHash, IsTheSameInEveryBuildBecauseFilesAreNamedByIt) {
  EXPECT_EQ(hash64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash64("a"), 0xaf63dc4c8601ec8cu) << "FNV-1a";
  EXPECT_EQ(contentHash("kernel"), contentHash("kernel"));
  EXPECT_EQ(contentHash("kernel").size(), 32u);
}

TEST(ContentHash, DiffersAfterAnyChangeOfOneByte) {
  const std::string text(100, 'x');
  std::set<std::string> hashes = {contentHash(text)};
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = 'y';
    hashes.insert(contentHash(changed));
  }
  EXPECT_EQ(hashes.size(), text.size() + 1);
}

}  // namespace
}  // namespace agspeed
