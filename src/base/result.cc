#include "base/result.h"

namespace assay {

std::string Error::message() const {
  std::string text;
  if (!where.empty()) text += where + ": ";
  text += what;
  if (!got.empty()) text += ": got " + got;
  if (!wanted.empty()) text += (got.empty() ? ": wanted " : ", wanted ") + wanted;
  if (!hint.empty()) text += " (" + hint + ")";
  return text;
}

}  // namespace assay
