"""Models under quantization: exact where nothing is rounded, put back bit for bit, and right layer by layer."""

import time

import pytest
import torch
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer, next_token_loss
from residlab.precision.quantization import Quantizer
from residlab.precision.quantized_models import Scheme, linear_layers, quantized, rotation
from residlab.probes.activations import observe_inputs


def make(**changes):
    options = {"depth": 2, "width": 24, "heads": 2, "vocabulary": 50, "context": 16, "norm": norm_options("rmsnorm")}
    model = Transformer(ModelConfig(**{**options, **changes}), seed=0)
    return model, torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(0))


def huggingface(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "llama":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
            )
        ).eval()
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=24, n_layer=2, n_head=2, vocab_size=50, n_positions=16)
    ).eval()


def test_names_of_schemes():
    assert Scheme.named("W8A6") == Scheme(Quantizer(8), Quantizer(6))
    assert Scheme.named("W4") == Scheme(Quantizer(4), None)
    assert Scheme.named("A16") == Scheme(None, Quantizer(16))
    assert Scheme.named("FP8") == Scheme(Quantizer("e4m3fn"), Quantizer("e4m3fn"))
    assert Scheme.named("FP8-e5m2 row").weights == Quantizer("e5m2", "row")
    everything = Scheme.named("W4A4 row clip=0.999 hadamard")
    assert everything == Scheme(Quantizer(4, "row", 0.999), Quantizer(4, "row", 0.999), "hadamard")


@pytest.mark.parametrize("name", ["", "8", "W8B8", "A8W8", "w8a8", "FP4", "FP8-e3m4", "W8.5", " "])
def test_no_scheme(name):
    with pytest.raises(ResidlabError, match="a scheme is named like W8A6"):
        Scheme.named(name)


def test_bad_options():
    for name in ("W8A8 rows", "W8A8 clip=", "W8A8 clip=x"):
        with pytest.raises(ResidlabError, match="a scheme's options are row, clip=SHARE, random, hadamard; got"):
            Scheme.named(name)
    with pytest.raises(ResidlabError, match="from 2 to 16"):
        Scheme.named("W1A8")
    with pytest.raises(ResidlabError, match="clip must be in"):
        Scheme.named("W8A8 clip=0")
    with pytest.raises(ResidlabError, match="rotation must be one of none, random, hadamard"):
        Scheme(rotation="fft")


@pytest.mark.parametrize("kind", ["random", "hadamard"])
@pytest.mark.parametrize("width", [2, 24, 64, 96])
def test_rotations_are_orthogonal_and_seeded(kind, width):
    R = rotation(width, kind, seed=3)
    assert torch.allclose(R @ R.T, torch.eye(width, dtype=torch.float64), atol=1e-13)
    assert torch.equal(R, rotation(width, kind, seed=3))
    assert any(not torch.equal(R, rotation(width, kind, seed=seed)) for seed in range(4, 9))


def test_a_hadamard_rotation_spreads_a_spike_over_its_block():
    R = rotation(24, "hadamard")
    spread = torch.eye(24, dtype=torch.float64)[5] @ R
    assert torch.allclose(spread[:8].abs(), torch.full((8,), 8**-0.5, dtype=torch.float64))
    assert not spread[8:].any()
    with pytest.raises(ResidlabError, match="an even width; got 9: use random"):
        rotation(9, "hadamard")
    with pytest.raises(ResidlabError, match="rotation must be one of"):
        rotation(8, "fft")
    assert torch.equal(rotation(9, "none"), torch.eye(9, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["random", "hadamard"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rotation_alone_changes_nothing(kind, dtype):
    model, ids = make(bias=True)
    model.to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        plain = model(ids)
        with quantized(model, Scheme(rotation=kind)):
            turned = model(ids)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(turned, plain, rtol=tolerance, atol=tolerance)
    assert not torch.equal(turned, plain)


def test_without_rounding_it_is_the_same_model():
    model, ids = make()
    with torch.no_grad():
        plain = model(ids)
        with quantized(model, Scheme()):
            assert torch.equal(model(ids), plain)


@pytest.mark.parametrize("name", ["W8A6", "W3A5 row", "FP8", "W4", "A4", "W4A4 clip=0.9"])
def test_a_model_with_rounded_weights_and_rounding_hooks_is_the_same(name):
    """The oracle: a copy whose weights are rounded, with hooks that round what each layer is given."""
    model, ids = make(bias=True)
    other, _ = make(bias=True)
    scheme = Scheme.named(name)
    layers = linear_layers(other)
    assert len(layers) == 14
    handles = []
    for layer in layers.values():
        if scheme.weights is not None:
            layer.weight.data = scheme.weights(layer.weight.data)
        if scheme.activations is not None:
            handles.append(layer.register_forward_pre_hook(lambda _, arguments: (scheme.activations(arguments[0]),)))
    with torch.no_grad(), quantized(model, name):
        assert torch.equal(model(ids), other(ids))


@pytest.mark.parametrize("kind", ["random", "hadamard"])
def test_rotated_by_hand(kind):
    layer = nn.Linear(24, 7, dtype=torch.float64)
    block = nn.Module()
    block.layers = nn.ModuleList([layer])
    x = torch.randn(5, 24, dtype=torch.float64)
    R, Q = rotation(24, kind, 0), Quantizer(4)
    with torch.no_grad(), quantized(block, f"W4A4 {kind}"):
        got = layer(x)
    torch.testing.assert_close(got, Q(x @ R) @ Q(layer.weight.detach() @ R).T + layer.bias.detach())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_models_of_hugging_face(kind):
    model = huggingface(kind)
    ids = torch.randint(0, 50, (2, 9))
    layers = linear_layers(model)
    assert len(layers) == {"llama": 14, "gpt2": 8}[kind]
    assert not any("head" in name or "embed" in name for name in layers)
    with torch.no_grad():
        plain = model(ids).logits
        with quantized(model, "W3A3"):
            coarse = model(ids).logits
        with quantized(model, "W16A16"):
            fine = model(ids).logits
        with quantized(model, Scheme(rotation="hadamard")):
            turned = model(ids).logits
        assert torch.equal(model(ids).logits, plain)
    assert (coarse - plain).abs().max() > 100 * (fine - plain).abs().max() > 0
    torch.testing.assert_close(turned, plain, rtol=1e-4, atol=1e-5)


def test_gpt2s_rows_are_outputs():
    """Its matrices are stored the other way round: (in, out)."""
    model = huggingface("gpt2")
    layer = model.transformer.h[0].mlp.c_fc
    with torch.no_grad():
        layer.weight[:, 3] *= 1000  # an output row
        x = torch.randn(4, 24)
        plain = layer(x)
        with quantized(model, "W4 row"):
            rows = layer(x)
        with quantized(model, "W4"):
            tensor = layer(x)
    assert (rows - plain)[:, :3].abs().max() < 0.1
    assert torch.equal(tensor[:, :3], layer.bias[:3].expand(4, 3))  # one peak for all flattens the others


def test_everything_is_put_back_also_after_an_exception():
    model, ids = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = model(ids)
    rounded = []

    def work():
        with quantized(model, "W2A2"):
            rounded.append(model(ids))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not torch.equal(rounded[0], plain)
    assert torch.equal(model(ids), plain)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())
    assert list(model.state_dict()) == list(before)


def test_hooks_see_what_is_not_rounded():
    model, ids = make()
    seen = []
    first = {"first": model.layers[0].attention.W_Q}
    with torch.no_grad(), observe_inputs(first, lambda name, x: seen.append(x)):
        model(ids)
        with quantized(model, "W8A2"):
            model(ids)
    assert torch.equal(*seen)


def test_which_layers():
    model, ids = make(tied_embeddings=False)
    assert "output" not in linear_layers(model)
    assert "output" in linear_layers(model, outside=True)
    with torch.no_grad():
        plain = model(ids)
        with quantized(model, "W2A2", layers={"output": model.output}):
            assert not torch.equal(model(ids), plain)
    with pytest.raises(ResidlabError, match=r"Linear has no linear layer in a block \(nn.ModuleList\)"):
        linear_layers(nn.Linear(3, 3))
    assert list(linear_layers(nn.Linear(3, 3), outside=True)) == [""]


def test_what_cannot_be_quantized():
    model, _ = make()
    with (
        pytest.raises(ResidlabError, match="norm must be a plain linear layer; it is RMSNorm"),
        quantized(model, "W8A8", layers={"norm": model.final_norm}),
    ):
        pass
    with (
        quantized(model, "W8A8"),
        pytest.raises(ResidlabError, match="as in another such context"),
        quantized(model, "W4A4"),
    ):
        pass
    assert not any("forward" in vars(module) for module in model.modules())

    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(ResidlabError, match="it is Scaled"), quantized(model, "W8", layers={"scaled": Scaled(2, 2)}):
        pass


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), r"layers\.0 is a TransformerEncoderLayer"),
        (nn.TransformerDecoderLayer(8, 2, 16), r"layers\.0\.self_attn is a MultiheadAttention"),
        (nn.MultiheadAttention(8, 2), r"layers\.0 is a MultiheadAttention"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_layers_of_torch_that_read_weights_past_their_layers_are_refused(layer, named):
    model = nn.Module()
    model.layers = nn.ModuleList([layer])
    with (
        pytest.raises(ResidlabError, match=f"{named}, which reads weights without calling .*: they would not be"),
        quantized(model, "W4A4"),
    ):
        pass
    assert not any("forward" in vars(module) for module in model.modules())


def test_what_torch_s_decoder_does_call_is_rounded():
    layer, x = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    model = nn.Module()
    model.layers = nn.ModuleList([layer])
    with torch.no_grad():
        plain = layer(x, x)
        with quantized(model, "W2A2", layers={"linear1": layer.linear1}):
            assert not torch.equal(layer(x, x), plain)


def test_inputs_may_be_named():
    block, layer, x = alone()
    gpt2 = huggingface("gpt2")
    conv = gpt2.transformer.h[0].mlp.c_fc
    y = torch.randn(4, 24)
    with torch.no_grad(), quantized(block, "W4A4"), quantized(gpt2, "W4A4"):
        assert torch.equal(layer(input=x), layer(x))
        assert torch.equal(conv(x=y), conv(y))


def test_the_layer_with_nan_is_named():
    model, ids = make()
    with torch.no_grad():
        model.layers[1].feedforward.W_up.weight[0, 0] = torch.nan
        with (
            quantized(model, "W8A8"),
            pytest.raises(ResidlabError, match=r"the weight of blocks\.1\.feedforward\.W_up"),
        ):
            model(ids)
        model.layers[0].attention.W_V.weight.fill_(torch.inf)
        with quantized(model, "A8"), pytest.raises(ResidlabError, match=r"the input of blocks\.0\.attention\.W_O"):
            model(ids)


def test_kept_weights_follow_changes():
    model, ids = make()
    with torch.no_grad(), quantized(model, "W4A8"):
        first = model(ids)
        assert torch.equal(model(ids), first)
        for block in model.layers:
            block.attention.W_V.weight.mul_(1.7)
        kept = model(ids)
        assert not torch.equal(kept, first)
    with torch.no_grad(), quantized(model, "W4A8", keep=False):
        assert torch.equal(model(ids), kept)


def alone(**options):
    """A model of one linear layer in a block, the layer, and what it can read."""
    block = nn.Module()
    block.layers = nn.ModuleList([nn.Linear(8, 8, bias=False, **options)])
    return block, block.layers[0], torch.randn(2, 8, generator=torch.Generator().manual_seed(1))


def test_what_inference_mode_does_not_count_is_rounded_again():
    Q = Quantizer(4)
    with torch.inference_mode():
        block, layer, x = alone()
        with quantized(block, "W4A4"):
            for _ in range(2):
                torch.testing.assert_close(layer(x), Q(x) @ Q(layer.weight).T)
                x.mul_(2)
            for _ in range(2):
                torch.testing.assert_close(layer(x), Q(x) @ Q(layer.weight).T)
                layer.weight[0] *= 3


@pytest.mark.parametrize("clear", [False, True], ids=["with gradients", "without"])
def test_kept_weights_follow_fused_optimizers(clear):
    """They change weights without counting it."""
    block, layer, x = alone()
    Q, optimizer = Quantizer(4), torch.optim.AdamW(layer.parameters(), lr=0.3, fused=True)
    with quantized(block, "W4"):
        for _ in range(2):
            with torch.no_grad():
                layer(x)
            layer(x).square().sum().backward()
            with torch.no_grad():
                torch.testing.assert_close(layer(x), x @ Q(layer.weight).T)
            optimizer.step()
            if clear:
                optimizer.zero_grad()
            with torch.no_grad():
                torch.testing.assert_close(layer(x), x @ Q(layer.weight).T)


def test_kept_weights_follow_another_tensor_in_their_place():
    block, layer, x = alone()
    with torch.no_grad(), quantized(block, "W4"):
        layer.weight = nn.Parameter(layer.weight.data)
        layer(x)
        kept = layer.weight.data.clone()
        layer.weight.data.mul_(3)  # nobody counts this: the memory is the same, and so is the version
        layer.weight = nn.Parameter(layer.weight.data)
        torch.testing.assert_close(layer(x), x @ Quantizer(4)(3 * kept).T)


@pytest.mark.parametrize("kind", ["random", "hadamard"])
def test_a_rotation_is_that_of_the_model_s_dtype_under_autocast(kind):
    block, layer, x = alone()
    R, Q = rotation(8, kind, 0).float(), Quantizer(8)
    expected, exact = Q(x @ R), Q(layer.weight.detach() @ R)
    with torch.no_grad(), quantized(block, f"W8A8 {kind}"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = layer(x)
        high = layer(x)  # what is kept of the weight is not of bfloat16
    assert low.dtype == torch.bfloat16
    assert torch.equal(low, expected.bfloat16() @ exact.bfloat16().T)
    torch.testing.assert_close(high, expected @ exact.T)


def test_an_input_that_was_written_to_is_rounded_again():
    block = nn.Module()
    block.layers = nn.ModuleList([nn.Linear(8, 8, bias=False)])
    (layer,), x = block.layers, torch.randn(2, 8)
    with torch.no_grad(), quantized(block, "A4"):
        first = layer(x)
        x.mul_(3)
        assert torch.allclose(layer(x), 3 * first)
        assert not torch.equal(layer(x), first)


def test_training_through_rounding():
    model, ids = make()
    with torch.no_grad():
        model(ids)
    with quantized(model, "W4A8"):
        with torch.no_grad():
            model(ids)  # keeps weights, which must not be taken below
        loss = next_token_loss(model(ids), ids)
        loss.backward()
    gradients = [parameter.grad for name, parameter in model.named_parameters()]
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    optimizer.step()
    with torch.no_grad(), quantized(model, "W4A8"):
        assert next_token_loss(model(ids), ids) < loss.detach()


def test_inference_mode():
    model, ids = make()
    with torch.inference_mode(), quantized(model, "W8A8"):
        once = model(ids)
    with torch.no_grad(), quantized(model, "W8A8"):
        assert torch.equal(model(ids), once)
    with torch.inference_mode():
        born, _ = make()
        with quantized(born, "W8A8"):
            assert torch.equal(born(ids), once)


def test_half_precision_is_rounded_in_single():
    model, ids = make()
    model.bfloat16()
    with torch.no_grad(), quantized(model, "W8A8 hadamard"):
        assert model(ids).dtype == torch.bfloat16


def test_evaluation_costs_little():
    """1.5 times a plain forward is the budget on an idle machine; a test allows twice that."""
    model, _ = make(depth=2, width=256, heads=4, context=128)
    ids = torch.randint(0, 50, (8, 128))

    def seconds():
        samples = []
        for _ in range(5):
            begin = time.process_time()
            model(ids)
            samples.append(time.process_time() - begin)
        return min(samples)

    with torch.no_grad():
        model(ids)
        plain = seconds()
        with quantized(model, "W8A8"):
            model(ids)
            assert seconds() < 3 * plain
