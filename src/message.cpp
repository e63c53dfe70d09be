#define FMT_HEADER_ONLY  // here alone: {fmt} becomes part of this object, the library needs no
                         // other
#include "message.h"

#include <fmt/format.h>

namespace kvscout {

std::string message_of(fmt::string_view format, fmt::format_args arguments) {
  return fmt::vformat(format, arguments);
}

}  // namespace kvscout
