#include "machine.h"

#include <sys/utsname.h>

#include <fstream>

namespace kvscout::tool {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0 && line.find(": ") != line.npos)
      return line.substr(line.find(": ") + 2);
  return "unknown processor";
}

std::string system_name() {
  utsname u{};
  if (::uname(&u) != 0) return "unknown system";
  return std::string(u.sysname) + " " + u.release + " " + u.machine;
}

}  // namespace kvscout::tool
