// The header of a .safetensors file: text in, fields out, nothing but the grammar checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors.h"

namespace kvscout::safetensors {

struct HeaderEntry {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;  // begin, end
};

struct Header {
  std::map<std::string, HeaderEntry, std::less<>> tensors;
  Metadata metadata;
};

// Throws FormatError for anything but the one grammar: also for duplicate and unknown keys.
Header parse_header(std::string_view text);

std::string header_text(const Header& header);

}  // namespace kvscout::safetensors
