# Wrong rows of a GPU: the source of a healthy row with one piece of text replaced, compiled into assay_faulty alone.
#
#   assay_gpu_fault(OP SOURCE ROW NAME [RACE] FROM TO [FROM TO ...] [RENAME name ...])
#
# FROM must stand in the source exactly once, or the build stops: a fault does not outlive the code it is made of. RENAME:
# functions of the source that others call. RACE: runs may win it, so it is run until one loses. The rows are compiled with
# ASSAY_CUDA_FAULTS=ON, which takes minutes; the texts are compared with every build.
option(ASSAY_CUDA_FAULTS "Build wrong rows of a GPU into assay_faulty" OFF)
set(gpu_fault_folder ${CMAKE_CURRENT_BINARY_DIR}/gpu_faults)
set(gpu_fault_list "")
set(gpu_fault_sources "")
set(gpu_fault_count 0)

function(assay_write_if_new path text)
  if(EXISTS ${path})
    file(READ ${path} old)
    if("${old}" STREQUAL "${text}")
      return()
    endif()
  endif()
  file(WRITE ${path} "${text}")
endfunction()

function(assay_gpu_fault op source row name)
  set(file ${CMAKE_SOURCE_DIR}/src/ops/${source}.cu)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  math(EXPR number "${gpu_fault_count} + 1")
  set(renames "${row}")
  set(last 4)
  set(rare false)
  if("${ARGV4}" STREQUAL "RACE")
    set(rare true)
    set(last 5)
  endif()
  while(last LESS ARGC)
    if("${ARGV${last}}" STREQUAL "RENAME")
      math(EXPR first "${last} + 1")
      math(EXPR end "${ARGC} - 1")
      foreach(i RANGE ${first} ${end})
        list(APPEND renames ${ARGV${i}})
      endforeach()
      break()
    endif()
    math(EXPR next "${last} + 1")
    string(FIND "${text}" "${ARGV${last}}" at)
    string(FIND "${text}" "${ARGV${last}}" again REVERSE)
    if(at EQUAL -1 OR NOT at EQUAL again)
      message(FATAL_ERROR "fault '${name}': not exactly once in ${file}:\n${ARGV${last}}")
    endif()
    string(REPLACE "${ARGV${last}}" "${ARGV${next}}" text "${text}")
    math(EXPR last "${last} + 2")
  endwhile()
  set(defines "")
  foreach(symbol ${renames})
    string(APPEND defines "#define ${symbol} ${symbol}Fault${number}\n")
  endforeach()
  get_filename_component(stem ${source} NAME)
  set(generated ${gpu_fault_folder}/${stem}_fault${number}.cu)
  assay_write_if_new(${generated} "// ${name}\n${defines}${text}")
  set(gpu_fault_count ${number} PARENT_SCOPE)
  set(gpu_fault_sources ${gpu_fault_sources} ${generated} PARENT_SCOPE)
  set(gpu_fault_list "${gpu_fault_list}ASSAY_GPU_FAULT(${op}, ${row}Fault${number}, \"${name}\", ${rare})\n" PARENT_SCOPE)
endfunction()

set(behind_wait "asm volatile(\"griddepcontrol.launch_dependents;\" ::: \"memory\");")

# attention, decode.
set(of AttentionOp attention/attention_cuda_split kAttentionCudaSplit)
assay_gpu_fault(${of} "missing barrier: keys are read before the other warps' copies are there" RACE
  "cuda::wait_copies<kStages - 1>();\n    __syncthreads();" "cuda::wait_copies<kStages - 1>();")
assay_gpu_fault(${of} "stale shared memory: a stage is read before its copies are there" RACE
  "cuda::wait_copies<kStages - 1>();" "cuda::wait_copies<kStages>();")
assay_gpu_fault(${of} "missing barrier: a stage is loaded again while other warps read its values" RACE
  "add_values(out, shared, stage);\n    __syncthreads();" "add_values(out, shared, stage);")
assay_gpu_fault(${of} "wrong swizzle of the values"
  "stage.values[row][unit ^ (row & 7)]));\n      cuda::mma_bf16" "stage.values[row][unit ^ (row & 3)]));\n      cuda::mma_bf16")
assay_gpu_fault(${of} "split-KV: the sum of a split joins without its factor"
  "sum += sums[split] * factor;" "sum += sums[split];")
assay_gpu_fault(${of} "split-KV: a last split that is not full is left out"
  "const int splits = (keys + split_length(keys) - 1) / split_length(keys);"
  "const int splits = max(1, keys / split_length(keys));")
assay_gpu_fault(${of} "tail tile: the key past the end is seen" "mine + 1 < task.end ?" "mine < task.end ?")
assay_gpu_fault(${of} "the last key of a KV page is read from the next page"
  "batch.page_table_stride + position / cache.page_tokens];"
  "batch.page_table_stride + min(position + 1, task.end - 1) / cache.page_tokens];")
assay_gpu_fault(${of} "unsynchronised stream: splits are joined on a stream of their own" RACE
  "void enqueue(const AttentionDesc& desc,"
  "device::Stream other_stream() {\n  static cudaStream_t stream = [] {\n    cudaStream_t made = nullptr;\n    cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);\n    return made;\n  }();\n  return {device::Backend::kCuda, stream};\n}\n\nvoid enqueue(const AttentionDesc& desc,"
  "kDim, 0,\n                 launch.stream, wave);" "kDim, 0,\n                 other_stream(), wave);")
assay_gpu_fault(${of} "overlapped launch: splits are joined before they have ended" RACE
  "cuda::begin_overlapped();\n  const AttentionOp::Args& args = wave.args;"
  "${behind_wait}\n  const AttentionOp::Args& args = wave.args;")

# attention, prefill.
set(of AttentionOp attention/attention_cuda_prefill kAttentionCudaPrefill)
assay_gpu_fault(${of} "missing barrier: values are read before the other warps' copies are there" RACE
  "__syncthreads();  // the values are there, and nobody reads keys" "")
assay_gpu_fault(${of} "prefill: a token sees the next"
  "> positions[i / 2]) scores" "> positions[i / 2] + 1) scores")
assay_gpu_fault(${of} "tail tile: keys and values past the end are read" "unit * 8, row < live);" "unit * 8, true);")
assay_gpu_fault(${of} "wrong swizzle of the keys" "((m % 2) ^ r) * 16;\n#pragma unroll\n  for (int n = 0; n < 4; ++n) {\n#pragma unroll\n    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;"
  "((m % 2) ^ (r & 3)) * 16;\n#pragma unroll\n  for (int n = 0; n < 4; ++n) {\n#pragma unroll\n    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;")
assay_gpu_fault(${of} "the sum of one half of the keys joins without its factor"
  "sums[row + 8 * h] * theirs;" "sums[row + 8 * h];")

# linear, many tokens.
function(assay_gemm_fault name from to)  # ... RACE
  assay_gpu_fault(LinearOp linear/linear_cuda_gemm kLinearCudaGemm "${name}" ${ARGN} "${from}" "${to}"
    "ASSAY_ASSIGN(const LinearTiles tiles, linear_tiles" "prepare_linear_gemm();\n      ASSAY_ASSIGN(const LinearTiles tiles, linear_tiles"
    RENAME linear_gemm_order prepare_linear_gemm enqueue_linear_gemm)
  foreach(result count sources list)
    set(gpu_fault_${result} "${gpu_fault_${result}}" PARENT_SCOPE)
  endforeach()
endfunction()
assay_gemm_fault("missing barrier: a stage is read before the other warps' copies are there"
  "cuda::wait_copies<S::kStages - 2>();\n    __syncthreads();" "cuda::wait_copies<S::kStages - 2>();" RACE)
assay_gemm_fault("stale shared memory: a stage is read before its copies are there"
  "cuda::wait_copies<S::kStages - 2>();" "cuda::wait_copies<S::kStages - 1>();" RACE)
assay_gemm_fault("wrong swizzle of the activations"
  "swizzled(row, j * 4 + t)) * 16);" "swizzled(row + 1, j * 4 + t)) * 16);")
assay_gemm_fault("tail tile: token 127 of a tile is not written"
  "if (token < span.end) store_output" "if (token < span.end && token % 128 != 127) store_output")
assay_gemm_fault("tail tile: the last 8 inputs are left out"
  "first_token + row < end_token && column < k;" "first_token + row < end_token && column < k - 8;")
assay_gemm_fault("overlapped launch: inputs are read before they are there"
  "cuda::begin_overlapped();" "${behind_wait}" RACE)

# linear, few tokens.
set(of LinearOp linear/linear_cuda_gemv kLinearCudaGemv)
set(renamed RENAME refuse_linear_tiles linear_tiles linear_gemv_order enqueue_linear_gemv)
assay_gpu_fault(${of} "overlapped launch: inputs are read before they are there" RACE
  "cuda::begin_overlapped();" "${behind_wait}" ${renamed})
assay_gpu_fault(${of} "tail tile: the last 8 inputs are left out"
  "static_cast<int>(weight.desc.k)));" "static_cast<int>(weight.desc.k) - 8));" ${renamed})

# linear, prefill by cuBLASLt.
set(of LinearOp linear/linear_cublaslt kLinearCublaslt)
assay_gpu_fault(${of} "the last prefill token is not stored" "token >= span.end ||" "token >= span.end - 1 ||")

# experts.
set(of ExpertsOp experts/experts_cuda_grouped kExpertsCudaGrouped)
assay_gpu_fault(${of} "N05 expert 5 has the scales of expert 4"
  "+ expert * 3;" "+ (expert == 5 ? 4 : expert) * 3;")
assay_gpu_fault(${of} "missing barrier: sums of the next tile overwrite those still read" RACE
  "sums[column * 17 + row + 8], expert.factors);\n    }\n    __syncthreads();"
  "sums[column * 17 + row + 8], expert.factors);\n    }")
assay_gpu_fault(${of} "an expert with more than 16 tokens loses the last"
  "min(group_size, count - i * group_size);" "min(group_size, max(1, count - i * group_size - (count > 16)));")
assay_gpu_fault(${of} "overlapped launch: partial sums are joined before they are there" RACE
  "cuda::begin_overlapped();\n  __shared__ int slots[kMaxTopK];" "${behind_wait}\n  __shared__ int slots[kMaxTopK];")
assay_gpu_fault(${of} "gate meets the up of its neighbour"
  "hidden_value(sums[column * 17 + row], sums[column * 17 + row + 8]" "hidden_value(sums[column * 17 + row], sums[column * 17 + (row + 1) % 8 + 8]")

# gated_delta, token by token.
set(of GatedDeltaOp gated_delta/gated_delta_cuda_recurrent kGatedDeltaCudaRecurrent)
assay_gpu_fault(${of} "missing barrier: keys are read before the other warps wrote them" RACE
  "= now.q;\n    __syncthreads();" "= now.q;")
assay_gpu_fault(${of} "stale shared memory: one buffer for every token" RACE
  "*k = keys[t % 2], *q = queries[t % 2];" "*k = keys[0], *q = queries[0];")
assay_gpu_fault(${of} "N57 the state is left in the slot it came from"
  "batch.state_write[sequence] *" "max(batch.state_read[sequence], 0) *")
assay_gpu_fault(${of} "N57 a sequence starts from the state of the one before"
  "batch.state_read[sequence];\n  const float* before" "batch.state_read[max(sequence - 1, 0)];\n  const float* before")

# gated_delta, by chunks.
set(of GatedDeltaOp gated_delta/gated_delta_cuda_chunk kGatedDeltaCudaChunk)
assay_gpu_fault(${of} "missing barrier: deltas are read before the other warps wrote them" RACE
  "__syncthreads();  // D is there" "")
assay_gpu_fault(${of} "missing barrier: keys are overwritten while others read them" RACE
  "__syncthreads();  // nobody reads R and k" "")
assay_gpu_fault(${of} "wrong swizzle of keys and state"
  "split(*reinterpret_cast<const float4*>(at(row, column)))" "split(*reinterpret_cast<const float4*>(at(row, column ^ 4)))")
assay_gpu_fault(${of} "tail tile: the state decays by a chunk's first token alone"
  "matrices.row(head, first + count - 1)];" "matrices.row(head, first)];")
assay_gpu_fault(${of} "N57 a sequence starts from the state of the one before"
  "args.batch.state_read[all.sequence];" "args.batch.state_read[max(all.sequence - 1, 0)];")

# The others.
set(of ConvGatesOp conv_gates/conv_gates_cuda_head kConvGatesCudaHead)
assay_gpu_fault(${of} "N57 inputs of another slot" "slots + read * args.state.conv_stride" "slots + (read ^ 1) * args.state.conv_stride")
assay_gpu_fault(${of} "the inputs left are one token old" "t + 1 - (width - 1) + i % (width - 1)" "t - (width - 1) + i % (width - 1)")
set(of QkNormRopeOp qk_norm_rope/qk_norm_rope_cuda_warp kQkNormRopeCudaWarp)
assay_gpu_fault(${of} "the last token of a KV page is written to another page"
  "batch.page_table[table + position / cache.page_tokens];" "max(0, batch.page_table[table + (position + 1) / cache.page_tokens]);")
set(of RmsNormOp rms_norm/rms_norm_cuda_block kRmsNormCudaBlock)
assay_gpu_fault(${of} "tail tile: the last 8 values do not count"
  "if (begin < desc.width) load(begin," "if (begin + 8 < desc.width) load(begin,")
assay_gpu_fault(${of} "overlapped launch: inputs are read before they are there" RACE "cuda::begin_overlapped();" "${behind_wait}")
set(of RouterOp router/router_cuda_tile kRouterCudaTile)
assay_gpu_fault(${of} "overlapped launch: logits are read before they are there" RACE "cuda::begin_overlapped();" "${behind_wait}")
assay_gpu_fault(${of} "the neighbour of the best expert is chosen"
  "(0xFFFFFFFFu - static_cast<uint32_t>(expert));" "(0xFFFFFFFFu - static_cast<uint32_t>(expert ^ 1));")
set(of SampleOp sample/sample_cuda_parts kSampleCudaParts)
assay_gpu_fault(${of} "the sum of a part joins without its factor"
  "sum += parts[p].sum * expf(parts[p].largest - whole.largest);" "sum += parts[p].sum;")
assay_gpu_fault(${of} "the last part of a row is left out"
  "p < kParts; ++p) sum += parts[p].sum" "p < kParts - 1; ++p) sum += parts[p].sum")
set(of EmbedOp embed/embed_cuda_gather kEmbedCudaGather)
assay_gpu_fault(${of} "overlapped launch: ids are read before they are there" RACE "cuda::begin_overlapped();" "${behind_wait}")
set(of SiluMulOp silu_mul/silu_mul_cuda_elementwise kSiluMulCudaElementwise)
assay_gpu_fault(${of} "tail tile: the last value is not written" "if (i >= width ||" "if (i >= width - 1 ||")

if(NOT ASSAY_CUDA_FAULTS)
  set(gpu_fault_list "")
  set(gpu_fault_sources "")
endif()
assay_write_if_new(${gpu_fault_folder}/gpu_fault_rows.inc "${gpu_fault_list}")
assay_cuda_gencode(gencode ${ASSAY_CUDA_ARCHS})
set_source_files_properties(${gpu_fault_sources} PROPERTIES COMPILE_OPTIONS "${gencode};-w")
