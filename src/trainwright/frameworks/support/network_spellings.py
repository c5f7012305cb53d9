"""Meanings of other names of the options of neural networks; readable without any library."""

from __future__ import annotations

from trainwright.config.spellings import Refusal, Spellings, each, spelled

_WIDTHS = "write hidden: [128, 128], the width of each hidden layer"
_ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "tanh": "Tanh"}


def _activations() -> dict[str, tuple[str, str]]:
    """Return `ReLU`, `nn.ReLU` ... -> relu."""
    others = {"swish": "silu", "Swish": "silu"}
    for ours, cls in _ACTIVATIONS.items():
        others |= each(f"{cls} {ours.upper()} nn.{cls} torch.nn.{cls} F.{ours} torch.{ours}", ours)
    return {other: ("activation", ours) for other, ours in others.items()}


NETWORKS = Spellings(
    aliases={
        **spelled(
            {
                "hidden": "hidden_layers hidden_layer_sizes hidden_dims hidden_sizes hidden_units layers "
                "units layer_sizes neurons",
                "filters": "channels conv_channels num_filters n_filters",
                "kernel_size": "kernel",
                "dropout": "dropout_rate dropout_prob dropout_p drop_rate p_dropout drop_prob p",
                "activation": "act activation_fn activation_function nonlinearity act_fn",
                "normalization": "norm batch_norm batchnorm use_batch_norm use_batchnorm use_bn bn",
                "num_layers": "n_layers n_layer num_hidden_layers n_blocks num_blocks depth",
                "num_heads": "n_heads n_head nhead heads num_attention_heads",
                "num_kv_heads": "n_kv_heads n_kv_head num_key_value_heads kv_heads",
                "intermediate_size": "ffn_dim d_ff dim_feedforward ffn_hidden_size mlp_dim",
                "rotary_base": "rope_theta rope_base rotary_theta",
                "tie_embeddings": "tie_word_embeddings weight_tying tie_weights",
                "position": "position_embedding positional_encoding position_encoding",
                "hidden_size": "d_model n_embd embed_dim embedding_dim hidden_dim width d_token",
            }
        ),
    },
    values={
        "activation": _activations(),
        "normalization": {
            **each("batchnorm batch_norm bn BatchNorm1d BatchNorm", ("normalization", "batch")),
            **each("layernorm layer_norm ln LayerNorm", ("normalization", "layer")),
            **each("rmsnorm rms_norm RMSNorm", ("normalization", "rms")),
            True: ("normalization", "batch"),
            False: ("normalization", "none"),
        },
        "position": each("rope RoPE RotaryEmbedding", ("position", "rotary")),
    },
    unused=each("input_dim input_size in_features n_features num_features", "the data say so"),
    refused={
        **each("num_layers hidden_size", Refusal(_WIDTHS)),
        "layer_norm": Refusal("write normalization: layer", (False,)),
        **each(
            "output_dim output_size out_features num_classes n_classes",
            Refusal("the data say so; leave it out"),
        ),
    },
    lists=("hidden", "filters"),
)
