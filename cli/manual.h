// The manual page and the completion of a shell, from the same words as --help.
#pragma once

#include <string>

#include "command_line.h"

namespace kvscout::tool {

// For man: roff with the man macros.
std::string manual_page(const ProgramText&);

// To be sourced by bash: completes verbs, options, files, and the values of those that have names.
std::string bash_completion(const ProgramText&);

}  // namespace kvscout::tool
