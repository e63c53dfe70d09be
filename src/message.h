// Text of error messages and descriptions. {fmt} checks the format while compiling; the formatting
// itself is compiled once, in message.cpp: included everywhere it cost four seconds a file.
#pragma once

#include <fmt/core.h>

#include <string>

namespace kvscout {

std::string message_of(fmt::string_view format, fmt::format_args arguments);

template <class... T>
std::string message(fmt::format_string<T...> format, T&&... arguments) {
  return message_of(format, fmt::make_format_args(arguments...));
}

}  // namespace kvscout
