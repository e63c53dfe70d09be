// Formatted text. {fmt} checks the format while compiling; the formatting itself is compiled once,
// in text.cpp: included everywhere it cost nine seconds a file under the sanitizers.
#pragma once

#include <fmt/core.h>

#include <string>

namespace kvscout::tool {

std::string formatted_by(fmt::string_view format, fmt::format_args arguments);
void print_text(const std::string& text);  // to stdout

template <class... T>
std::string formatted(fmt::format_string<T...> format, T&&... arguments) {
  return formatted_by(format, fmt::make_format_args(arguments...));
}
template <class... T>
void print(fmt::format_string<T...> format, T&&... arguments) {
  print_text(formatted_by(format, fmt::make_format_args(arguments...)));
}

}  // namespace kvscout::tool
