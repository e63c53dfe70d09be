// Writes a file so that it is either the old one or the whole new one: a temporary name beside the
// target, then a rename. A device or pipe is written to directly.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kvscout {

struct Chunk {
  const void* data;
  std::size_t bytes;
};

// True, or false with errno set and the target untouched.
bool write_file(const std::string& path, std::span<const Chunk> chunks);

}  // namespace kvscout
