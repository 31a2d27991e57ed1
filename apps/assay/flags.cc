#include "assay/flags.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <utility>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>

namespace assay::app {
namespace {

std::string environment_name(const std::string& flag) {
  std::string name = "ASSAY_";
  for (char c : flag.substr(flag.find_first_not_of('-'))) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

}  // namespace

Option& Option::range(int least, int most) {
  option_->check(CLI::Range(least, most));
  return *this;
}
Option& Option::range(int64_t least, int64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}
Option& Option::range(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}
Option& Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}
Option& Option::check(std::function<std::string(const std::string&)> problem, const std::string& kind) {
  option_->check(CLI::Validator(std::move(problem), kind));
  return *this;
}
Option& Option::size_suffixes() {
  option_->transform(CLI::AsSizeValue(false));
  // Runs before: strtoull(), which reads the number, takes -5 for 2^64 - 5.
  option_->transform(CLI::Validator(
      [](std::string& text) { return text.starts_with('-') ? text + " is negative" : std::string(); }, ""));
  return *this;
}
Option& Option::comma_separated() {
  option_->delimiter(',');
  return *this;
}
Option& Option::values(int count) {
  option_->expected(count);
  return *this;
}
Option& Option::repeated() {
  option_->allow_extra_args(false);
  return *this;
}
Option& Option::required(bool yes) {
  option_->required(yes);
  return *this;
}
Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}
Option& Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}
Option& Option::hide() {
  option_->group("");
  return *this;
}
Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}
bool Option::given() const { return option_->count() > 0; }

template <class T>
Option add_option(CLI::App& app, const std::string& flag, T& value, const std::string& description) {
  return Option(app.add_option(flag, value, description)->envname(environment_name(flag)));
}
template Option add_option(CLI::App&, const std::string&, std::string&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::vector<std::string>&, const std::string&);
template Option add_option(CLI::App&, const std::string&, uint16_t&, const std::string&);
template Option add_option(CLI::App&, const std::string&, int32_t&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::vector<int32_t>&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::optional<int32_t>&, const std::string&);
template Option add_option(CLI::App&, const std::string&, int64_t&, const std::string&);
template Option add_option(CLI::App&, const std::string&, uint64_t&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::optional<uint64_t>&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::optional<float>&, const std::string&);
template Option add_option(CLI::App&, const std::string&, double&, const std::string&);

Option add_flag(CLI::App& app, const std::string& flag, bool& value, const std::string& description) {
  return Option(app.add_flag(flag, value, description)->envname(environment_name(flag)));
}

Option add_argument(CLI::App& app, const std::string& name, std::string& value, const std::string& description) {
  return Option(app.add_option(name, value, description));
}

Option find_option(const CLI::App& app, const std::string& name) {
  return Option(const_cast<CLI::App&>(app).get_option(name));
}

CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& description) {
  return *parent.add_subcommand(name, description);
}

void hide(CLI::App& app) { app.group(""); }
void require_flags(CLI::App& app) { app.require_option(1, 0); }

void require_one(CLI::App& app, const std::string& names, std::vector<Option> flags) {
  app.callback([names, flags = std::move(flags)] {
    if (std::none_of(flags.begin(), flags.end(), [](const Option& flag) { return flag.given(); })) {
      throw CLI::RequiredError(names);
    }
  });
}

bool parsed(const CLI::App& app) { return app.parsed(); }

}  // namespace assay::app
