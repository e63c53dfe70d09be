#include "json.h"

#include <nlohmann/json.hpp>

namespace kvscout::tool {
namespace {

nlohmann::ordered_json converted(const Json& from) {
  struct Visit {
    nlohmann::ordered_json operator()(const Json::Object& object) const {
      auto to = nlohmann::ordered_json::object();
      for (const auto& [key, value] : object) to[key] = converted(value);
      return to;
    }
    nlohmann::ordered_json operator()(const Json::Array& array) const {
      auto to = nlohmann::ordered_json::array();
      for (const Json& value : array) to.push_back(converted(value));
      return to;
    }
    nlohmann::ordered_json operator()(bool value) const { return value; }
    nlohmann::ordered_json operator()(double value) const { return value; }
    nlohmann::ordered_json operator()(std::int64_t value) const { return value; }
    nlohmann::ordered_json operator()(const std::string& value) const { return value; }
  };
  return std::visit(Visit{}, from.value());
}

}  // namespace

std::string Json::text(int indent) const {
  return converted(*this).dump(indent, ' ', false,
                               nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kvscout::tool
