// What --json prints. The text is made by nlohmann/json, which json.cpp alone includes: it took
// seven seconds a file under the sanitizers.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kvscout::tool {

class Json {
 public:
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order in which it is printed
  using Array = std::vector<Json>;

  Json() : value_(Object{}) {}
  Json(bool x) : value_(x) {}
  Json(double x) : value_(x) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T x) : value_(static_cast<std::int64_t>(x)) {}
  Json(std::string x) : value_(std::move(x)) {}
  Json(const char* x) : value_(std::string(x)) {}
  Json(Object x) : value_(std::move(x)) {}
  Json(Array x) : value_(std::move(x)) {}
  template <class T>
  static Json list(const std::vector<T>& values) {
    return Json(Array(values.begin(), values.end()));
  }

  void set(const std::string& key, Json value) {
    std::get<Object>(value_).emplace_back(key, std::move(value));
  }

  // Indented by `indent` blanks, or on one line. Bytes that are not UTF-8 are replaced.
  std::string text(int indent = -1) const;

  const auto& value() const { return value_; }

 private:
  std::variant<bool, double, std::int64_t, std::string, Object, Array> value_;
};

}  // namespace kvscout::tool
