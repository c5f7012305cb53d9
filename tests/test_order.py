"""Sample order: permutations, the same everywhere, in memory that does not grow."""

import tracemalloc

import numpy as np
import pytest

from trainwright import order
from trainwright.order import (
    EPOCH,
    Cursor,
    KeyedPermutation,
    SampleOrder,
    WeightedDraws,
    permutation,
    random_keys,
    stream_seed,
)
from trainwright.runs.semantics import PARTS


def test_keys_are_those_of_semantics_1() -> None:
    # These values are part of the promise: a change of them must come with a new version in `runs/semantics.py`.
    assert (PARTS["order"].version, PARTS["streams"].version) == (1, 1)
    assert stream_seed(1, 2, 3) == 15020427595393229491
    assert random_keys(42, 3).tolist() == [10996452266160306281, 2958219263312191191, 3069497704473277141]
    assert permutation(7, 8).tolist() == [1, 5, 6, 0, 7, 4, 3, 2]
    assert KeyedPermutation(7, 10).at(0, 10).tolist() == [9, 2, 1, 0, 6, 3, 4, 8, 5, 7]


def test_streams_differ_by_each_part_and_by_order() -> None:
    seeds = {stream_seed(a, b, c) for a in range(5) for b in range(5) for c in range(5)}
    assert len(seeds) == 125


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 1000, 4097])
def test_both_ways_are_permutations(n: int) -> None:
    assert sorted(permutation(3, n)) == list(range(n))
    assert sorted(KeyedPermutation(3, n).at(0, n)) == list(range(n))


def test_a_keyed_permutation_is_the_same_in_any_slices() -> None:
    keyed = KeyedPermutation(11, 1000)
    assert np.concatenate([keyed.at(0, 300), keyed.at(300, 1000)]).tolist() == keyed.at(0, 1000).tolist()


def test_a_keyed_permutation_mixes() -> None:
    ids = KeyedPermutation(1, 100_000).at(0, 1000)
    assert abs(ids.mean() / 50_000 - 1) < 0.1
    assert abs(np.corrcoef(np.arange(1000), ids)[0, 1]) < 0.1


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_epoch_sees_each_sample_once_and_keeps_the_partial_batch(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.setattr(order, "IN_MEMORY_ROWS", 10)
        monkeypatch.setattr(order, "_BLOCK_ROWS", 20)
    samples = SampleOrder(107, 10, seed=5)
    epochs = [np.concatenate([samples.batch(e * 11 + i) for i in range(11)]) for e in range(2)]
    assert samples.steps_per_epoch == 11
    assert len(samples.batch(10)) == 7
    assert [sorted(epoch) for epoch in epochs] == [list(range(107))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("rows", "batch", "steps"), [(107, 10, 10), (100, 10, 10), (107, 107, 1), (107, 60, 1)]
)
def test_the_partial_batch_is_left_out(
    rows: int, batch: int, steps: int, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.setattr(order, "IN_MEMORY_ROWS", 10)
        monkeypatch.setattr(order, "_BLOCK_ROWS", 20)
    dropped, kept = SampleOrder(rows, batch, 5, drop_last=True), SampleOrder(rows, batch, 5)
    assert (dropped.steps_per_epoch, dropped.used) == (steps, steps * batch)
    for epoch in range(3):
        for step in range(steps):
            ids = dropped.batch(epoch * steps + step)
            assert len(ids) == batch
            assert ids.tolist() == kept.batch(epoch * kept.steps_per_epoch + step).tolist()
    assert [dropped.epochs(steps * epochs) for epochs in (1, 2, 7)] == [1, 2, 7]
    assert [dropped.end_of(epochs) for epochs in (1, 2, 7)] == [steps, 2 * steps, 7 * steps]


@pytest.mark.parametrize(("consumed", "left"), [(30, 7), (100, 0), (107, 0)])
def test_an_order_that_begins_within_an_epoch_leaves_out_its_partial_batch(consumed: int, left: int) -> None:
    samples = SampleOrder(107, 10, 5, begin=Cursor(25, 2, consumed), drop_last=True)
    assert samples.first_end == 25 + left
    second, third = (permutation(stream_seed(5, order.EPOCH, epoch), 107).tolist() for epoch in (2, 3))
    batches = [samples.batch(step).tolist() for step in range(25, 25 + left + 10)]
    assert [id_ for ids in batches for id_ in ids] == [*second[consumed : consumed + 10 * left], *third[:100]]
    assert samples.cursor(25 + left) == (25 + left, 3, 0)
    assert samples.end_of(4) == 25 + left + 10


def test_a_step_needs_no_earlier_step() -> None:
    walked, jumped = SampleOrder(1000, 32, 1), SampleOrder(1000, 32, 1)
    for step in range(70):
        ids = walked.batch(step)
    assert jumped.batch(69).tolist() == ids.tolist()


def test_the_order_of_a_hundred_million_samples_takes_little_memory() -> None:
    tracemalloc.start()
    SampleOrder(10**8, 32, 1).batch(1_500_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def test_epochs_counts_samples() -> None:
    samples = SampleOrder(100, 30, 0)
    assert [samples.epochs(step) for step in (0, 1, 4, 5)] == [0.0, 0.3, 1.0, 1.3]


# -- the same in Python's own integers, by the papers: SplitMix64, and a Feistel network with cycle walking

MASK = (1 << 64) - 1


def splitmix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def feistel(seed: int, n: int, position: int) -> int:
    """Six rounds over the smallest power of two, of 2 bits at least, that holds n.

    The higher half may be a bit wider.
    """
    bits = next(bits for bits in range(2, 65) if 1 << bits >= n)
    low_bits = bits // 2
    high_mask, low_mask = (1 << (bits - low_bits)) - 1, (1 << low_bits) - 1
    while True:
        high, low = position >> low_bits, position & low_mask
        for i in range(6):
            key = stream_seed(seed, i)
            if i % 2:
                low ^= splitmix(high ^ key) & low_mask
            else:
                high ^= splitmix(low ^ key) & high_mask
        position = (high << low_bits) | low
        if position < n:
            return position


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100])
def test_a_keyed_permutation_is_the_network_of_the_papers(n: int) -> None:
    assert KeyedPermutation(5, n).at(0, n).tolist() == [feistel(5, n, position) for position in range(n)]


def test_keys_are_splitmix_of_a_counter() -> None:
    golden = 0x9E3779B97F4A7C15
    for seed in (0, 7, MASK, 1 << 64 | 7):
        start = splitmix(seed & MASK)
        expected = [splitmix((i * golden + start) & MASK) for i in range(1, 50)]
        assert random_keys(seed, 49).tolist() == expected
        assert permutation(seed, 49).tolist() == sorted(range(49), key=expected.__getitem__)


def test_large_orders_are_computed_from_ten_million_rows_on() -> None:
    """The limit decides between two orders, so that it is part of their meaning."""
    seed = stream_seed(3, order.EPOCH, 1)
    small, large = (SampleOrder(rows, 4_000_000, 3) for rows in (10_000_000, 10_000_001))
    assert large.batch(3)[:5].tolist() == KeyedPermutation(seed, 10_000_001).at(0, 5).tolist()
    assert order.IN_MEMORY_ROWS == 10_000_000
    assert small._in_memory


@pytest.mark.parametrize("block_rows", [1, 10, 25, 64])
def test_batches_do_not_depend_on_how_much_of_the_order_is_kept(
    block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "IN_MEMORY_ROWS", 10)
    monkeypatch.setattr(order, "_BLOCK_ROWS", block_rows)
    samples = SampleOrder(107, 10, seed=5)
    for step in (0, 3, 10, 11, 12, 21, 5):
        epoch, at = divmod(step, 11)
        whole = KeyedPermutation(stream_seed(5, order.EPOCH, epoch), 107).at(0, 107)
        assert samples.batch(step).tolist() == whole[at * 10 : at * 10 + 10].tolist()


def test_the_order_of_an_epoch_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    monkeypatch.setattr(order, "permutation", lambda seed, n: (computed.append(n), permutation(seed, n))[1])
    samples = SampleOrder(107, 10, seed=5)
    for step in (*range(22), *range(11, 22)):
        samples.batch(step)
    assert computed == [107, 107]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("batch", [1, 7, 20, 107, 200])
def test_an_order_that_begins_within_an_epoch_leaves_no_sample_out(
    batch: int, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 3 steps of 10, the rest of epoch 2 and all of epoch 3, cut into batches of another size."""
    if not in_memory:
        monkeypatch.setattr(order, "IN_MEMORY_ROWS", 10)
        monkeypatch.setattr(order, "_BLOCK_ROWS", 25)
    samples = SampleOrder(107, batch, seed=5, begin=SampleOrder(107, 10, seed=5).cursor(25))
    assert samples.begin == (25, 2, 30)
    second, third = (
        permutation(stream_seed(5, order.EPOCH, epoch), 107)
        if in_memory
        else KeyedPermutation(stream_seed(5, order.EPOCH, epoch), 107).at(0, 107)
        for epoch in (2, 3)
    )
    ends = [25 + -(-77 // batch), 25 + -(-77 // batch) + -(-107 // batch)]
    assert [samples.end_of(epochs) for epochs in (1, 2, 3, 4)] == [25, 25, *ends]
    assert samples.first_end == ends[0]
    assert [samples.epochs(step) for step in (25, *ends)] == [2 + 30 / 107, 3, 4]
    batches = [samples.batch(step).tolist() for step in range(25, ends[1])]
    assert [id_ for ids in batches for id_ in ids] == [*second[30:].tolist(), *third.tolist()]
    rest = [len(one) for one in batches]
    assert rest == [min(batch, 77 - i) for i in range(0, 77, batch)] + [
        min(batch, 107 - i) for i in range(0, 107, batch)
    ]
    assert [samples.batch(step).tolist() for step in (ends[1] - 1, 25)] == [batches[-1], batches[0]]


def test_an_order_that_goes_on_with_the_same_batches_is_the_same() -> None:
    whole = SampleOrder(107, 10, seed=5)
    for step in (0, 3, 11, 25, 33):
        rest = SampleOrder(107, 10, seed=5, begin=whole.cursor(step))
        for later in range(step, 50):
            assert rest.batch(later).tolist() == whole.batch(later).tolist()
            assert (rest.cursor(later), rest.epochs(later)) == (whole.cursor(later), whole.epochs(later))
        assert [rest.end_of(epochs) for epochs in (5, 6)] == [55, 66]


def drawn_by_hand(seed: int, weights: list[float], number: int) -> int:
    """Draw `number`, in Python's whole numbers: SplitMix64, and the sums of the weights from the left."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    share = (mix(((number + 1) * 0x9E3779B97F4A7C15 + mix(seed)) & mask) >> 11) / 2**53 * sum(weights)
    return next(i for i in range(len(weights)) if sum(weights[: i + 1]) > share)


def test_draws_are_a_function_of_seed_epoch_and_number() -> None:
    weights = [0.0, 1.0, 0.25, 0.0, 0.5, 0.0]
    draws = WeightedDraws(np.array(weights) * 4)  # only their proportions count
    samples = SampleOrder(50, 8, seed=9, draws=draws)
    for step in (6, 3, 8, 0):  # in any order
        epoch, first = divmod(step, 7)[0], step % 7 * 8
        numbers = samples.draw_numbers(step)
        assert numbers is not None
        assert numbers.tolist() == list(range(first, min(first + 8, 50)))
        seed = stream_seed(9, EPOCH, epoch)
        assert samples.batch(step).tolist() == [drawn_by_hand(seed, weights, i) for i in numbers.tolist()]
    assert SampleOrder(50, 8, seed=9).draw_numbers(0) is None


def test_huge_weights_are_drawn_as_small_ones() -> None:
    """Their sum is no number."""
    weights = np.array([1.0, 0.5, 1.5])
    draws = WeightedDraws(weights * 2.0**1023).at(3, 0, 100)
    assert draws.tolist() == [drawn_by_hand(3, weights.tolist(), i) for i in range(100)]


def test_a_weight_of_zero_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a random number that is 0, or just where two shares meet."""
    keys = np.array([0, 1 << 62, 1 << 63, 3 << 62, (1 << 64) - 1], dtype=np.uint64)
    monkeypatch.setattr(order, "random_keys", lambda seed, n, start: keys[start : start + n])
    assert WeightedDraws(np.array([0.0, 1.0, 0.0, 0.0, 1.0])).at(0, 0, 5).tolist() == [1, 1, 4, 4, 4]


def test_draws_have_the_distribution_of_their_weights() -> None:
    weights = np.random.default_rng(0).pareto(1.0, 40)
    weights[::7] = 0.0
    drawn = np.bincount(WeightedDraws(weights).at(5, 0, 200_000), minlength=40)
    expected = weights / weights.sum() * 200_000
    assert not drawn[weights == 0].any()
    some = weights > 0
    chi_squared = ((drawn - expected)[some] ** 2 / expected[some]).sum()
    assert 15 < chi_squared < 65  # of 33 degrees of freedom, all but one in 10^3
    pairs = WeightedDraws(weights).at(5, 0, 200_000).reshape(-1, 2)
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.01
