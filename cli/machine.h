// What a report says about the machine.
#pragma once

#include <string>

namespace kvscout::tool {

std::string processor();
std::string system_name();

}  // namespace kvscout::tool
