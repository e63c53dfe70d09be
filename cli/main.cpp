// The command line tool: every operation of the library on .safetensors files.
#include <csignal>
#include <cstdio>
#include <new>

#include "verbs.h"

namespace {

constexpr const char* kNotes = R"(Examples:
  kvscout info --plan --queries 4 --keys 1000000
  kvscout quantize keys.safetensors --as k -o k.safetensors
  kvscout score tests/golden/flat_hq4_hkv1_causal.safetensors --compare expected
  kvscout select scores.safetensors --topk 16 -o ids.safetensors
  kvscout index problem.safetensors --topk 16 --force-end 1 -o ids.safetensors
  kvscout append cache.safetensors new_keys.safetensors -o cache.safetensors
  kvscout show scores.safetensors --svg map.svg
  kvscout check --small
  kvscout bench --keys 1000000

Exit codes: 0 done; 1 a comparison or check failed; 2 wrong command line; 3 malformed file or refused
arguments; 4 no back end or its device failed; 5 output not written or not enough memory.
Every error is one line on stderr. docs/tool.md tells more.)";

int fail(int code, const char* message) {
  std::fprintf(stderr, "kvscout: %s\n", message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvscout::tool;
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of write, not the end
  try {
    CommandLine line("kvscout", kvscout::version(),
                     "Which blocks of a long KV cache are worth reading: the operations of kvscout "
                     "on files.",
                     kNotes);
    for (const auto add : {add_info, add_quantize, add_score, add_select, add_index, add_append,
                           add_show, add_check, add_bench})
      add(line);
    return line.run(argc, argv);
  } catch (const Failure& failure) {
    return fail(failure.exit_code, failure.what());
  } catch (const kvscout::safetensors::FormatError& error) {
    return fail(kBadInput, error.what());
  } catch (const kvscout::safetensors::IoError& error) {
    return fail(kSystem, error.what());
  } catch (const kvscout::Error& error) {
    return fail(error.code() == kvscout::Error::invalid_argument ? kBadInput : kNoBackend,
                error.what());
  } catch (const std::bad_alloc&) {
    return fail(kSystem, "not enough memory");
  } catch (const std::exception& error) {
    return fail(kSystem, error.what());
  } catch (...) {
    return fail(kSystem, "an error of unknown kind");
  }
}
