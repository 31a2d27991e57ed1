#include "server/json_bounds.h"

#include <vector>

namespace assay::server {

JsonBounds check_json_bounds(std::string_view text, int max_depth, int max_members) {
  std::vector<int> members;  // commas so far, of each open bracket; -1: an array
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '{':
      case '[':
        if (static_cast<int>(members.size()) == max_depth) return JsonBounds::kTooDeep;
        members.push_back(c == '{' ? 0 : -1);
        break;
      case '}':
      case ']':
        if (!members.empty()) members.pop_back();
        break;
      case ',':
        if (!members.empty() && members.back() >= 0 && ++members.back() >= max_members) {
          return JsonBounds::kTooManyMembers;
        }
        break;
      default:
        break;
    }
  }
  return JsonBounds::kOk;
}

}  // namespace assay::server
