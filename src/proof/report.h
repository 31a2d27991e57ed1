// Report: everything the proof found, read-only once it is made. What the table, `--json`, /v1/verification and the
// metrics show.
#pragma once

#include <string>
#include <vector>

#include "proof/verdict.h"

namespace assay::proof {

// A weight in the layout of the row that will serve it: identity and a dense case on the model's own bytes.
struct WeightVerdict {
  std::string op, desc, row;
  std::string weight;  // name of the tensor or stack of tensors
  std::string layout;
  uint64_t hash = 0;  // of the checkpoint's bytes
  State state = State::kPassed;
  std::string reason;
  double error_over_bound = 0;
  double milliseconds = 0;
  bool remembered = false;
};

// The whole model: chosen rows against reference rows, and against themselves cut and batched otherwise.
struct ModelVerdict {
  bool run = false;
  State state = State::kPassed;
  std::string reason;
  int32_t tokens = 0;              // compared with the reference rows
  double mean_kl = 0, max_kl = 0;  // nats a token, KL(reference || chosen)
  double noise_kl = 0;             // KL(reference rows in fp32 || reference rows)
  double limit = 0;                // of mean_kl
  int32_t cut_tokens = 0;          // compared bit for bit between whole, cut and batched
  double milliseconds = 0;
  bool remembered = false;
};

struct ChosenRow {
  std::string op, desc, row;
  uint64_t order = 0;
  bool proven = true;
};

// Where the time of the proof went, by the clock on the wall, in the order in which it went.
struct Stage {
  std::string name;
  double milliseconds = 0;
};

struct Report {
  std::vector<Verdict> verdicts;
  std::vector<WeightVerdict> weights;
  ModelVerdict model;
  std::vector<ChosenRow> chosen;
  bool partial = false;  // only some rows were asked for: nothing was chosen
  bool proven = false;   // every chosen row passed, and the model
  double seconds = 0;    // of proving alone, without loading
  std::vector<Stage> stages;
  std::string receipt_path;  // empty: none is kept
  std::string build, machine;
  std::vector<std::string> notes;  // one line each: foreign receipts, changed tensors
  std::string explanation;         // per op and Desc, why each row was chosen or not
  std::string fingerprint;         // hash of weights, orders of the chosen rows, and the rule of seeds
};

// {"schema": 2, "kind": "assay proof", ...}: see docs/proof.md and docs/proof.schema.json.
std::string report_json(const Report& report);
// The tables that people read: verdicts, weights, the model, what was chosen.
std::string report_text(const Report& report);

}  // namespace assay::proof
