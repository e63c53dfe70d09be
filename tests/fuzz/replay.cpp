// The differential fuzzer without libFuzzer, at full speed: the seeds of a folder, every small
// named case, and COUNT random inputs, whose numbers start at FIRST (default 0). An input depends
// on its number alone.
//
//   kvscout_fuzz_replay FOLDER COUNT [FIRST]
//   kvscout_fuzz_replay --seeds FOLDER   writes seeds that are small named cases
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "cases.h"
#include "cpu/kernels.h"
#include "fuzz_operations.h"
#include "problems.h"

namespace {

using namespace kvscout;
namespace fs = std::filesystem;

long current = -1;  // the number of the random input that runs

void on_abort(int) {
  if (current >= 0) std::fprintf(stderr, "random input %ld\n", current);
}

void ask(const std::string& bytes) {
  cases::ask(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), INT64_MAX);
}

// One file for all cases whose names differ in numbers alone; the names of cases become names of
// files.
int write_seeds(const fs::path& folder) {
  fs::create_directories(folder);
  std::set<std::string> kinds;
  for (const cases::Case& c : cases::all()) {
    if (!c.small || c.name.find("/pair_") != c.name.npos) continue;
    std::string name = c.name, kind;
    for (const char letter : name)
      if (!std::isdigit(static_cast<unsigned char>(letter))) kind += letter;
    const std::string seed = cases::seed_of(c.name);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(seed.data());
    if (cases::fuzz_problem(bytes, seed.size()).work > cases::kWorkUnderSanitizers) continue;
    if (!kinds.insert(kind).second) continue;
    for (char& letter : name)
      if (letter == '/') letter = '.';
    std::ofstream(folder / name, std::ios::binary) << seed;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--seeds") return write_seeds(argv[2]);
  if (argc != 3 && argc != 4) return 2;
  std::signal(SIGABRT, on_abort);
  int seeds = 0, named = 0;
  for (const auto& entry : fs::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    ask({std::istreambuf_iterator<char>(file), {}});
    ++seeds;
  }
  for (const cases::Case& c : cases::all())
    if (c.small && c.name.find("/pair_") == c.name.npos) ask(cases::seed_of(c.name)), ++named;
  const long count = std::atol(argv[2]), first = argc == 4 ? std::atol(argv[3]) : 0;
  for (current = first; current < first + count; ++current) {
    cases::Random random(static_cast<std::uint64_t>(current));
    std::string bytes(static_cast<std::size_t>(20 + random.below(random.one_in(2) ? 20 : 120)),
                      '\0');
    for (char& b : bytes) b = static_cast<char>(random.next());
    ask(bytes);
  }
  std::printf("%d seeds, %d named cases, %ld random inputs; instruction sets:", seeds, named,
              count);
  for (const cpu::Kernels* k : cpu::available_kernels()) std::printf(" %s", k->name);
  std::printf("\n");
  bool every_one = true;
  for (const auto& [operation, n] : cases::outcomes()) {
    std::printf("%-22s %8ld answered %8ld refused\n", operation.c_str(), n.answered, n.refused);
    every_one &= n.answered > 0;
  }
  return seeds > 0 && named > 0 && every_one && cases::outcomes().size() == 6 ? 0 : 1;
}
