"""Operators whose CUDA wrappers compare the devices of all their tensors, one word each: ``name`` or ``name.overload``.

Written by make_cuda_checks.py; do not edit. The names come from PyTorch 2.14.1's native_functions.yaml.
"""

# Structured kernels: the wrapper is called wrapper_CUDA_name_overload.
STRUCTURED = frozenset(
    """
    _addmm_activation _convert_indices_from_csr_to_coo _linalg_solve_ex _log_softmax_backward_data
    _scaled_grouped_mm_v2 _scaled_mm_v2 _softmax_backward_data adaptive_max_pool2d_backward
    adaptive_max_pool3d_backward addmm addmm_ addmv addmv_ avg_pool2d_backward avg_pool3d_backward baddbmm baddbmm_
    bmm cat clamp.Tensor clamp_.Tensor clamp_max.Tensor clamp_max_.Tensor clamp_min.Tensor clamp_min_.Tensor
    elu_backward fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d gather gcd gcd_
    gelu_backward hardshrink_backward hardsigmoid_backward igamma igamma_ igammac igammac_ index_add index_add_
    index_copy index_copy_ index_reduce index_reduce_ isin.Tensor_Tensor lcm lcm_ leaky_relu_backward linalg_cross
    linalg_ldl_solve linalg_lu_solve logaddexp logaddexp2 logit_backward lu_unpack max_pool2d_with_indices_backward
    mm nextafter nextafter_ nll_loss_backward nll_loss_forward reflection_pad1d_backward reflection_pad3d_backward
    replication_pad1d_backward scatter.reduce scatter.src scatter.value scatter.value_reduce scatter_.reduce
    scatter_.src scatter_.value scatter_.value_reduce scatter_add scatter_add_ scatter_reduce.two
    scatter_reduce_.two sigmoid_backward silu_backward slow_conv_transpose2d softplus_backward softshrink_backward
    tanh_backward threshold_backward triangular_solve
    """.split()  # noqa: SIM905
)

# The others: wrapper_CUDA_overload_name.
PLAIN = frozenset(
    """
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _amp_foreach_non_finite_check_and_unscale_
    _amp_update_scale_ _batch_norm_with_update _cdist_backward _cdist_forward _cholesky_solve_helper _chunk_cat
    _compute_linear_combination _ctc_loss _ctc_loss.Tensor _ctc_loss_backward _ctc_loss_backward.Tensor
    _cummax_helper _cummin_helper _dirichlet_grad _embedding_bag _embedding_bag_backward
    _embedding_bag_dense_backward _embedding_bag_forward_only _embedding_bag_per_sample_weights_backward
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward
    _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_adagrad_ _fused_adam_ _fused_adamw_
    _fused_moving_avg_obs_fq_helper _fused_sdp_choice _fused_sgd_ _grouped_mm _int_mm
    _jagged_to_padded_dense_forward _make_per_channel_quantized_tensor _masked_softmax _masked_softmax_backward
    _native_batch_norm_legit _native_batch_norm_legit.no_stats _native_multi_head_attention _nested_tensor_from_mask
    _nested_tensor_from_mask_left_aligned _padded_dense_to_jagged_forward _pdist_backward _philox_key_fold_in.Tensor
    _philox_normal_ _philox_uniform_ _prelu_kernel _prelu_kernel_backward _scaled_mm _segment_reduce_backward
    _slow_conv2d_backward.output_mask _slow_conv2d_forward _standard_gamma_grad _transform_bias_rescale_qkv
    _transformer_encoder_layer_fwd _weight_int8pack_mm _weight_norm_interface _weight_norm_interface_backward addbmm
    addbmm_ addr batch_norm_backward batch_norm_update_stats binary_cross_entropy_backward bincount bucketize.Tensor
    convolution_backward dot embedding_dense_backward embedding_renorm_ equal
    fake_quantize_per_channel_affine_cachemask fractional_max_pool3d_backward glu_backward glu_backward_jvp glu_jvp
    grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward hardswish_backward
    hardtanh_backward huber_loss index_select linalg_householder_product linalg_solve_triangular
    log_sigmoid_backward masked_scatter_ masked_select max_pool3d_with_indices_backward max_unpool2d max_unpool3d
    mish_backward mse_loss_backward multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward
    multilabel_margin_loss_forward native_batch_norm native_batch_norm_backward native_dropout_backward
    native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward nll_loss2d_backward
    nll_loss2d_forward normal.Tensor_Tensor ormqr put_ quantize_per_channel quantize_per_tensor.tensor_qparams
    reflection_pad2d_backward replication_pad2d_backward replication_pad3d_backward rrelu_with_noise
    rrelu_with_noise_ searchsorted.Scalar searchsorted.Tensor segment_reduce slow_conv_dilated2d slow_conv_dilated3d
    slow_conv_transpose3d take vdot
    """.split()  # noqa: SIM905
)
