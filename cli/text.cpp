#define FMT_HEADER_ONLY  // here alone
#include "text.h"

#include <fmt/format.h>

#include <cstdio>

namespace kvscout::tool {

std::string formatted_by(fmt::string_view format, fmt::format_args arguments) {
  return fmt::vformat(format, arguments);
}

void print_text(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace kvscout::tool
