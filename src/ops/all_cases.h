// The cases of every part op. Each function is in its op's `<op>_cases.cc`; overloaded by Desc, so that code over all
// ops can call it by name. Block ops have none: their rows made of parts are proven with the parts, and by the model.
#pragma once

#include <concepts>
#include <vector>

#include "ops/all_ops.h"
#include "ops/cases.h"

namespace assay::ops {

// Inputs, expected values and bounds for rows of one Desc with these weights.
std::vector<Case<EmbedOp>> make_cases(const EmbedDesc&, const EmbedOp::Weights&, const CaseContext&);
std::vector<Case<RmsNormOp>> make_cases(const RmsNormDesc&, const RmsNormOp::Weights&, const CaseContext&);
std::vector<Case<LinearOp>> make_cases(const LinearDesc&, const LinearOp::Weights&, const CaseContext&);
std::vector<Case<QkNormRopeOp>> make_cases(const QkNormRopeDesc&, const QkNormRopeOp::Weights&, const CaseContext&);
std::vector<Case<AttentionOp>> make_cases(const AttentionDesc&, const NoWeights&, const CaseContext&);
std::vector<Case<ConvGatesOp>> make_cases(const ConvGatesDesc&, const ConvGatesOp::Weights&, const CaseContext&);
std::vector<Case<GatedDeltaOp>> make_cases(const GatedDeltaDesc&, const NoWeights&, const CaseContext&);
std::vector<Case<RouterOp>> make_cases(const RouterDesc&, const RouterOp::Weights&, const CaseContext&);
std::vector<Case<ExpertsOp>> make_cases(const ExpertsDesc&, const ExpertsOp::Weights&, const CaseContext&);
std::vector<Case<SiluMulOp>> make_cases(const SiluMulDesc&, const NoWeights&, const CaseContext&);
std::vector<Case<SampleOp>> make_cases(const SampleDesc&, const NoWeights&, const CaseContext&);

// Made-up weights of a Desc's true shapes.
EmbedOp::Weights synthetic(const EmbedDesc&, CaseWeights&, CaseRandom&);
RmsNormOp::Weights synthetic(const RmsNormDesc&, CaseWeights&, CaseRandom&);
LinearOp::Weights synthetic(const LinearDesc&, CaseWeights&, CaseRandom&);
QkNormRopeOp::Weights synthetic(const QkNormRopeDesc&, CaseWeights&, CaseRandom&);
ConvGatesOp::Weights synthetic(const ConvGatesDesc&, CaseWeights&, CaseRandom&);
RouterOp::Weights synthetic(const RouterDesc&, CaseWeights&, CaseRandom&);
ExpertsOp::Weights synthetic(const ExpertsDesc&, CaseWeights&, CaseRandom&);
template <class Desc>
NoWeights synthetic(const Desc&, CaseWeights&, CaseRandom&) {
  return {};
}

// The ids in an op's Weights, for code that copies or hashes them.
inline std::vector<WeightId*> weight_ids(EmbedOp::Weights& w) { return {&w.table}; }
inline std::vector<WeightId*> weight_ids(RmsNormOp::Weights& w) { return {&w.weight}; }
inline std::vector<WeightId*> weight_ids(LinearOp::Weights& w) { return {&w.matrix}; }
inline std::vector<WeightId*> weight_ids(QkNormRopeOp::Weights& w) { return {&w.q_norm, &w.k_norm}; }
inline std::vector<WeightId*> weight_ids(ConvGatesOp::Weights& w) { return {&w.conv, &w.a_log, &w.dt_bias}; }
inline std::vector<WeightId*> weight_ids(RouterOp::Weights& w) { return {&w.gate, &w.shared_gate}; }
inline std::vector<WeightId*> weight_ids(ExpertsOp::Weights& w) { return {&w.experts}; }
inline std::vector<WeightId*> weight_ids(NoWeights&) { return {}; }

template <class Op>
concept HasCases = requires(const typename Op::Desc& desc, const typename Op::Weights& weights,
                            const CaseContext& context) {
  { make_cases(desc, weights, context) } -> std::same_as<std::vector<Case<Op>>>;
};

}  // namespace assay::ops
