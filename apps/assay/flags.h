// Flags of the command line. flags.cc and main.cc alone include CLI11, which takes seconds of compile time a file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace assay::app {

// What a flag accepts and how it is shown. Valid as long as its subcommand.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& range(int least, int most);
  Option& range(int64_t least, int64_t most);
  Option& range(double least, double most);
  Option& one_of(const std::vector<std::string>& values);
  // problem: what is wrong with a text, or nothing; kind: what --help calls the value.
  Option& check(std::function<std::string(const std::string&)> problem, const std::string& kind);
  Option& size_suffixes();  // KB, MB, GB of 1024
  Option& comma_separated();
  Option& values(int count);
  Option& repeated();  // one value each time, never several behind one flag
  Option& required(bool yes = true);
  Option& excludes(const Option& other);
  Option& needs(const Option& other);
  Option& hide();
  Option& show_default();  // in --help: the value that it has now

  bool given() const;  // once the command line is read

 private:
  CLI::Option* option_;
};

// What ASSAY_<NAME> sets too ("--top-p": ASSAY_TOP_P); without dashes a positional argument. T: as in flags.cc.
template <class T>
Option add_option(CLI::App& app, const std::string& flag, T& value, const std::string& description);

Option add_flag(CLI::App& app, const std::string& flag, bool& value, const std::string& description);

// A positional argument that the environment does not set.
Option add_argument(CLI::App& app, const std::string& name, std::string& value, const std::string& description);

Option find_option(const CLI::App& app, const std::string& name);

CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& description);
void hide(CLI::App& app);           // from --help
void require_flags(CLI::App& app);  // at least one
// One of these must be given.
void require_one(CLI::App& app, const std::string& names, std::vector<Option> flags);
bool parsed(const CLI::App& app);  // whether the command line named it

}  // namespace assay::app
