// Receipt: evidence kept between starts, in one file a build and machine.
//
//   {"schema": 2, "kind": "assay receipt", "build": .., "machine": .., "checksum": .., "kernels": [..], "weights":
//   [..],
//    "models": [..], "choices": [..]}
// build: hash of this executable; machine: device, its UUID, versions of the driver (or kernel and microcode) and of
// the C library. A file of another build or machine, of another schema, or one that does not parse is ignored with one
// line: evidence is of this code on this machine or it is none. Kernel evidence is keyed by op x Desc x bucket x row x
// effort, weight evidence by hash of the tensor's bytes x layout x row, model evidence by a hash over all tensors and
// chosen rows, choices by op x Desc x bucket.
//
// What failed is kept too, with its reason: a row that hangs shall not cost its time limit at every start. It is tried
// again when that is asked for.
//
// Written to a temporary file and renamed, under a lock, after reading what others wrote meanwhile: two servers may
// share a directory, and a kill at any point leaves the old file or the new one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "device/device.h"
#include "proof/report.h"

namespace assay::proof {

// Hash of the bytes of this executable.
uint64_t build_id();
std::string machine_id(const device::DeviceCaps& caps);

// $XDG_CACHE_HOME/assay, else $HOME/.cache/assay, else empty.
std::string default_receipt_directory();

struct ModelEntry {
  uint64_t key = 0;
  ModelVerdict verdict;
};

class Receipt {
 public:
  // An empty directory: nothing is kept. `notes`: a line for each file that was ignored.
  static Receipt open(const std::string& directory, const device::DeviceCaps& caps, std::vector<std::string>& notes);

  // Passed or failed.
  const Verdict* kernel(const Verdict& wanted, std::string_view effort) const;
  const WeightVerdict* weight(const WeightVerdict& wanted) const;
  const ModelVerdict* model(uint64_t key) const;
  // Row that an earlier start chose; "" if none did.
  std::string choice(std::string_view op, std::string_view desc, const ops::Bucket& bucket) const;
  // Each takes the place of what was known of the same key. Only what passed or failed is kept, and of that
  // nothing that was never tried.
  void add(const Verdict& verdict, std::string_view effort);
  void add(const WeightVerdict& verdict);
  void add(uint64_t key, const ModelVerdict& verdict);
  void add_choice(std::string_view op, std::string_view desc, const ops::Bucket& bucket, std::string_view row);

  // Errors: kIo.
  Result<void> save();
  const std::string& path() const { return path_; }

 private:
  struct KernelEntry {
    std::string effort;
    Verdict verdict;
    bool own = false;      // found by this process
    bool retried = false;  // and known to have failed before: the failure may be forgotten
    bool same_key(const KernelEntry& other) const;
  };
  struct ChoiceEntry {
    std::string op, desc;
    ops::Bucket bucket;
    std::string row;
    bool same_key(const ChoiceEntry& other) const {
      return op == other.op && desc == other.desc && bucket == other.bucket;
    }
  };
  void load(std::vector<std::string>& notes);
  void merge(const Receipt& others);
  std::string text() const;

  std::string directory_, path_, build_, machine_;
  std::vector<KernelEntry> kernels_;
  std::vector<WeightVerdict> weights_;
  std::vector<ModelEntry> models_;
  std::vector<ChoiceEntry> choices_;
  bool changed_ = false;
};

// A tensor of the checkpoint, for the manifest.
struct ManifestTensor {
  std::string name;
  uint64_t hash = 0;
};

// Manifest: hashes of a checkpoint's tensors. The publisher's assay-manifest.json in the model's directory if there is
// one; else what was seen at the first start, kept with the receipts ("trust on first use").
struct ManifestCheck {
  bool first_use = false;
  std::string path;                  // of the manifest compared with or written; empty: there is none
  std::vector<std::string> changed;  // names of tensors whose bytes differ, are new or are gone
};
// accept: replaces a kept manifest instead of comparing.
ManifestCheck check_manifest(const std::string& directory, const std::string& model_directory,
                             const std::vector<ManifestTensor>& tensors, bool accept, std::vector<std::string>& notes);

// Text to a file so that a reader sees the old file or the new one. Errors: kIo.
Result<void> write_atomically(const std::string& path, const std::string& text);

}  // namespace assay::proof
