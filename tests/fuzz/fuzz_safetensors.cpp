// Bytes as a .safetensors file: refused with a FormatError, or accepted with every byte accounted
// for and the same contents again from a header of our own.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "safetensors.h"
#include "safetensors_header.h"

namespace {

using namespace kvscout::safetensors;

void require(bool true_for_every_input) {
  if (!true_for_every_input) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> bytes(data, data + size);
  Contents contents;
  try {
    contents = parse(bytes);
  } catch (const FormatError& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    return 0;
  }
  std::size_t total = 0;
  Header header{{}, contents.metadata};
  for (const auto& [name, view] : contents.tensors) {
    require(view.data >= bytes.data() && view.data + view.bytes <= bytes.data() + bytes.size());
    for (std::size_t i = 0; i < view.bytes; ++i) view.data[i] ^= 1;  // the sanitizer watches
    total += view.bytes;
    const auto begin = static_cast<std::uint64_t>(view.data - bytes.data());
    header.tensors[name] = {
        view.dtype, {view.shape.begin(), view.shape.end()}, {begin, begin + view.bytes}};
  }
  require(total <= size);
  const Header again = parse_header(header_text(header));
  require(again.metadata == contents.metadata && again.tensors.size() == contents.tensors.size());
  for (const auto& [name, entry] : again.tensors) {
    const View& view = contents.tensors.at(name);
    require(entry.dtype == view.dtype && entry.shape.size() == view.shape.size());
    for (std::size_t i = 0; i < entry.shape.size(); ++i)
      require(entry.shape[i] == static_cast<std::uint64_t>(view.shape[i]));
  }
  return 0;
}
