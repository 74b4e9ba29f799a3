"""The parts of a `ModelSpec`: rotary embedding, layer, experts."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeSpec:
    """Rotary embedding: base frequency and scaling. Fields that a type does not use keep their defaults."""

    theta: float = 10000.0
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_position_embeddings: int = 0  # llama3, yarn, dynamic, longrope: positions before scaling
    attention_factor: float | None = None  # yarn, longrope: scale of cos and sin; None: from factor (and yarn's two mscales)
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    short_factor: tuple[float, ...] = ()  # longrope: divisors of the frequencies up to the original length
    long_factor: tuple[float, ...] = ()  # longrope: and beyond it


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpec:
    """What may differ between the layers of one model."""

    window: int = 0  # tokens that attention looks back, the own one included; 0: all
    rope: RopeSpec | None = None  # None: positions do not turn queries and keys
    is_moe: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MoESpec:
    """Experts of a mixture layer, and how tokens are sent to them."""

    num_experts: int
    top_k: int
    intermediate_size: int  # of one expert
    shared_size: int = 0  # of the shared expert that sees every token; 0: there is none
    shared_gate: bool = False  # its output is scaled by a sigmoid gate
    score: str = "softmax"  # of router logits: softmax, sigmoid, or sparsemixer (each choice against those near it)
    renormalize: bool = False  # weights of the chosen ones are made to sum to 1
    scale: float = 1.0  # of the weights
    score_bias: bool = False  # a bias that counts for the choice, not for the weights
    num_groups: int = 1  # of experts; only the best groups can be chosen from
    top_groups: int = 1
    group_score: str = "max"  # of a group: max, or top2, the sum of its two best experts
    jitter: float = 0.0  # sparsemixer
    bias: bool = False  # in router and experts
    swiglu_limit: float = 0.0  # experts clamp gate and up to it, use up + 1 and a steeper sigmoid; 0: plain


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-AI 2024): keys and values are projections of one short vector, which is cached."""

    q_rank: int  # 0: queries are projected directly
    kv_rank: int
    nope_dim: int  # of a head's query and key, not turned by the position
    rope_dim: int  # turned; the key's part is the same for all heads
    v_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSpec:
    """What only encoders have: kinds of tokens, and the head of their classifiers."""

    type_vocab_size: int = 0  # kinds of tokens, which tell the two texts of a pair apart
    classifier_pooling: str = "cls"
    classifier_bias: bool = True
    classifier_act: str = "tanh"
