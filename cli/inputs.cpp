#include "inputs.h"

#include <charconv>
#include <cstring>

#include "text.h"

namespace kvscout::tool {
namespace {

safetensors::File open_input(const std::string& path, Inputs::Access access) {
  try {
    return safetensors::File(path, access);
  } catch (const safetensors::IoError& error) {
    throw Failure(kBadInput, error.what());
  }
}

using safetensors::View;

// A view's type as one of the library's. 16-bit integers are patterns whose type the caller names.
DType dtype_of(const std::string& name, const View& view,
               const std::optional<std::string>& pattern) {
  const std::string& t = view.dtype;
  if (t == "U8") return DType::u8;
  if (t == "F4") return DType::e2m1x2;
  if (t == "F8_E4M3") return DType::e4m3;
  if (t == "F16") return DType::f16;
  if (t == "BF16") return DType::bf16;
  if (t == "F32") return DType::f32;
  if (t == "I32") return DType::i32;
  if (t == "I64") return DType::i64;
  if (t == "I16" || t == "U16") {
    if (pattern == "bf16") return DType::bf16;
    if (pattern == "fp16" || pattern == "f16") return DType::f16;
    throw Failure(
        kBadInput,
        formatted("tensor '{}': {} patterns of an unknown type, expected --dtype bf16 or fp16",
                  name, t));
  }
  throw Failure(kBadInput, formatted("tensor '{}': {} is a type of no argument", name, t));
}

template <class T>
bool parse_all(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Inputs::Inputs(const std::vector<std::string>& paths, const std::vector<std::string>& use,
               Given given, Access access)
    : given_(std::move(given)) {
  files_.reserve(paths.size());  // views point into the files
  for (const std::string& path : paths) {
    const safetensors::Contents& contents =
        files_.emplace_back(open_input(path, access)).contents();
    for (const auto& [name, view] : contents.tensors)
      if (!tensors_.emplace(name, &view).second)
        throw Failure(kBadInput,
                      formatted("tensor {} is in more than one file", safetensors::one_line(name)));
    for (const auto& [key, value] : contents.metadata)
      if (const auto [it, fresh] = metadata_.emplace(key, value); !fresh && it->second != value)
        ambiguous_.insert(key);
  }
  for (const std::string& entry : use) {
    const std::size_t equals = entry.find('=');
    if (equals == entry.npos || equals == 0)
      throw Failure(kUsage, formatted("--use: got '{}', expected ARGUMENT=NAME", entry));
    names_[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
}

std::string Inputs::name_of(std::string_view argument) const {
  const auto it = names_.find(argument);
  return it == names_.end() ? std::string(argument) : it->second;
}

void* Inputs::own(std::size_t bytes) { return owned_.emplace_back(bytes / 8 + 1).data(); }

bool Inputs::has(std::string_view argument) const { return tensors_.contains(name_of(argument)); }

Tensor Inputs::named(const std::string& name) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end())
    throw Failure(kBadInput, formatted("no tensor {} in the input", safetensors::one_line(name)));
  const View& view = *it->second;
  std::vector<std::int64_t> shape = view.shape;
  const DType type = dtype_of(name, view, text("dtype"));
  if (type == DType::e2m1x2) {  // a file counts codes, a tensor counts bytes
    if (shape.empty() || shape.back() % 2 != 0)
      throw Failure(kBadInput, formatted("tensor '{}': F4 with an odd last dimension", name));
    shape.back() /= 2;
  }
  if (shape.size() > Tensor::kMaxRank)
    throw Failure(kBadInput, formatted("tensor '{}': got {} dimensions, expected at most 4", name,
                                       shape.size()));
  void* data = view.data;
  if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes_of(type)) != 0)
    data = std::memcpy(own(view.bytes), view.data, view.bytes);
  return dense(data, type, shape);
}

Tensor Inputs::tensor(std::string_view argument) { return named(name_of(argument)); }
Tensor Inputs::optional(std::string_view argument) {
  return has(argument) ? tensor(argument) : Tensor();
}

Tensor Inputs::int32(std::string_view argument) {
  Tensor t = optional(argument);
  if (!t.defined || t.dtype != DType::i64) return t;
  const auto* from = static_cast<const std::int64_t*>(t.data);
  auto* to = static_cast<std::int32_t*>(own(static_cast<std::size_t>(t.count()) * 4));
  for (std::int64_t i = 0; i < t.count(); ++i) {
    if (from[i] != static_cast<std::int32_t>(from[i]))
      throw Failure(kBadInput,
                    formatted("tensor '{}': {} is beyond 32 bits", name_of(argument), from[i]));
    to[i] = static_cast<std::int32_t>(from[i]);
  }
  t.data = to;
  t.dtype = DType::i32;
  return t;
}

std::optional<std::string> Inputs::text(std::string_view argument) const {
  if (const auto it = given_.find(argument); it != given_.end()) return it->second;
  const std::string name = name_of(argument);
  const auto it = metadata_.find(name);
  if (it == metadata_.end()) return std::nullopt;
  if (ambiguous_.contains(name))
    throw Failure(kBadInput, formatted("{}: the files' metadata disagree about it",
                                       safetensors::one_line(name)));
  return it->second;
}

void Inputs::bad_scalar(std::string_view argument, const std::string& expected) const {
  throw Failure(given_.contains(argument) ? kUsage : kBadInput,
                formatted("{}: got {}, expected {}", argument,
                          safetensors::one_line(*text(argument)), expected));
}

std::optional<std::int64_t> Inputs::integer(std::string_view argument) const {
  const auto word = text(argument);
  if (!word) return std::nullopt;
  std::int64_t value = 0;
  if (!parse_all(*word, value)) bad_scalar(argument, "an integer");
  return value;
}

int Inputs::small(std::string_view argument, int otherwise) const {
  const std::int64_t value = integer(argument).value_or(otherwise);
  if (value != static_cast<int>(value)) bad_scalar(argument, "an integer of 32 bits");
  return static_cast<int>(value);
}

std::optional<double> Inputs::number(std::string_view argument) const {
  const auto word = text(argument);
  if (!word) return std::nullopt;
  double value = 0;
  if (!parse_all(*word, value)) bad_scalar(argument, "a number");
  return value;
}

bool Inputs::boolean(std::string_view argument, bool otherwise) const {
  const auto word = text(argument);
  if (!word) return otherwise;
  if (*word == "1" || *word == "true" || *word == "True") return true;
  if (*word == "0" || *word == "false" || *word == "False") return false;
  bad_scalar(argument, "true or false");
}

bool Inputs::is_scalar(std::string_view argument) const {
  return given_.contains(argument) || (!has(argument) && text(argument));
}

GlobalScale Inputs::scale(std::string_view argument) {
  if (!is_scalar(argument) && has(argument)) {
    const Tensor t = tensor(argument);
    if (t.dtype != DType::f32 || t.count() != 1)
      throw Failure(kBadInput, formatted("tensor '{}': expected one f32 value", name_of(argument)));
    return {0, static_cast<const float*>(t.data)};
  }
  return {static_cast<float>(number(argument).value_or(1.0)), nullptr};
}

Reduce Inputs::reduce() const {
  const std::string word = text("reduce_heads").value_or("none");
  if (word == "none" || word == "false" || word == "False" || word == "0") return Reduce::none;
  if (word == "all" || word == "true" || word == "True" || word == "1") return Reduce::all;
  if (word == "kv_group") return Reduce::kv_group;
  bad_scalar("reduce_heads", "none, all or kv_group");
}

SfLayout Inputs::layout() const {
  const std::string word = text("sfLayout").value_or("128x4");
  if (word == "128x4") return SfLayout::layout_128x4;
  if (word == "8x4") return SfLayout::layout_8x4;
  if (word == "linear") return SfLayout::layout_linear;
  bad_scalar("sfLayout", "128x4, 8x4 or linear");
}

Tensor dense(void* data, DType type, const std::vector<std::int64_t>& shape) {
  Tensor t(data, type, {});
  t.rank = static_cast<int>(shape.size());
  std::int64_t step = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  return t;
}

const char* file_dtype(DType type) {
  switch (type) {
    case DType::u8:
    case DType::e2m1x2:
      return "U8";
    case DType::e4m3:
      return "F8_E4M3";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::f32:
      return "F32";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
  }
  return "U8";
}

}  // namespace kvscout::tool
