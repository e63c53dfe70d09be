// The JSON is read event by event, because a document tree keeps only the last of two equal keys
// and because a hostile header should cost no more memory than its own length.
#include "safetensors_header.h"

#include <nlohmann/json.hpp>

namespace kvscout::safetensors {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxRank = 64;

class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  Header take() {
    if (where_ != Where::end) fail("is not an object");
    return std::move(header_);
  }

  bool start_object(std::size_t) override {
    if (where_ == Where::begin) return go(Where::root);
    if (where_ != Where::root) unexpected("an object");
    return go(key_ == "__metadata__" ? Where::metadata : Where::tensor);
  }

  bool end_object() override {
    if (where_ == Where::root) return go(Where::end);
    if (where_ == Where::tensor) {
      if (!have_dtype_ || !have_shape_ || !have_offsets_)
        fail("tensor " + one_line(name_) + " lacks dtype, shape or data_offsets");
      have_dtype_ = have_shape_ = have_offsets_ = false;
    }
    return go(Where::root);
  }

  bool key(std::string& text) override {
    key_ = text;
    if (where_ == Where::root) {
      name_ = text;
      const bool fresh =
          text == "__metadata__" ? !have_metadata_ : header_.tensors.try_emplace(text).second;
      if (text == "__metadata__") have_metadata_ = true;
      if (!fresh) fail("has the key " + one_line(text) + " twice");
    } else if (where_ == Where::metadata) {
      if (header_.metadata.contains(text))
        fail("has the metadata key " + one_line(text) + " twice");
    } else if (where_ == Where::tensor) {
      bool* have = text == "dtype"          ? &have_dtype_
                   : text == "shape"        ? &have_shape_
                   : text == "data_offsets" ? &have_offsets_
                                            : nullptr;
      if (!have) fail("tensor " + one_line(name_) + " has an unknown field " + one_line(text));
      if (*have) fail("tensor " + one_line(name_) + " has the field " + one_line(text) + " twice");
      *have = true;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::tensor || key_ == "dtype") unexpected("a list");
    return go(key_ == "shape" ? Where::shape : Where::offsets);
  }

  bool end_array() override {
    if (where_ == Where::offsets && tensor().offsets.size() != 2)
      fail("data_offsets of tensor " + one_line(name_) + " are not two numbers");
    return go(Where::tensor);
  }

  bool number_unsigned(std::uint64_t value) override {
    if (where_ != Where::shape && where_ != Where::offsets) unexpected("a number");
    if (where_ == Where::offsets && tensor().offsets.size() == 2)
      fail("data_offsets of tensor " + one_line(name_) + " are not two numbers");
    if (where_ == Where::shape && tensor().shape.size() == kMaxRank)
      fail("tensor " + one_line(name_) + " has over 64 dimensions");
    (where_ == Where::shape ? tensor().shape : tensor().offsets).push_back(value);
    return true;
  }

  bool string(std::string& text) override {
    if (where_ == Where::metadata) {
      header_.metadata.emplace(key_, text);
    } else if (where_ == Where::tensor && key_ == "dtype") {
      tensor().dtype = text;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(std::int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    unexpected("a number that is not an integer below 2^64");
  }
  bool binary(json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    fail("is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Where { begin, root, tensor, shape, offsets, metadata, end };

  [[noreturn]] static void fail(const std::string& what) { throw FormatError("header " + what); }
  [[noreturn]] void unexpected(const std::string& what) {
    fail("has " + what + " where none belongs, near the key " + one_line(key_));
  }
  bool go(Where next) {
    where_ = next;
    return true;
  }
  HeaderEntry& tensor() { return header_.tensors.find(name_)->second; }

  Header header_;
  Where where_ = Where::begin;
  std::string name_, key_;
  bool have_metadata_ = false, have_dtype_ = false, have_shape_ = false, have_offsets_ = false;
};

}  // namespace

Header parse_header(std::string_view text) {
  // The parser takes a zero byte for the end of the text and skips a byte order mark.
  if (text.empty() || text.front() != '{') throw FormatError("header does not begin with {");
  if (text.find('\0') != text.npos) throw FormatError("header has a zero byte");
  HeaderReader reader;
  json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

std::string header_text(const Header& header) {
  json root = json::object();
  if (!header.metadata.empty()) root["__metadata__"] = header.metadata;
  for (const auto& [name, entry] : header.tensors)
    root[name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", entry.offsets}};
  return root.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace kvscout::safetensors
