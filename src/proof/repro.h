// A failed row as a small file that shows the failure again on any machine: made-up weights and inputs come from a
// seed, so op, Desc, bucket, row and seed are all there is.
//
//   {"schema": 1, "kind": "assay repro", "op": .., "desc": .., "desc_bytes": "hex", "tokens": .., "sequences": ..,
//    "outputs": .., "row": .., "seed": .., "full": .., "repeats": .., "reason": ..}
// desc_bytes are the Desc as this version of the program lays it out; "desc" must describe the same, or the file is
// refused.
#pragma once

#include <string>
#include <vector>

#include "ops/instances.h"
#include "proof/kernels.h"

namespace assay::proof {

// One file for each failed verdict, in the directory. Returns their paths. Verdicts about weights, and of which no Desc
// is in `instances`, get none.
std::vector<std::string> write_repros(const std::string& directory, const ops::Instances& instances,
                                      const std::vector<Verdict>& verdicts, const KernelOptions& options);

// Errors: kInvalidArgument, naming the file and field; kUnsupported when the row refuses this machine.
Result<Verdict> run_repro(const std::string& path, device::Device& device);

}  // namespace assay::proof
